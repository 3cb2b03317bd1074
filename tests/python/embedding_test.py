"""embedding_test.py: the programs that docs/embedding.md shows do what it says: built as the page says, run on an
artifact, compared with what the program decodes.

Run through ctest, which says where the program is and where the decoder is built. A language whose tools are missing is
skipped: JavaScript without Emscripten or Node, Kotlin without kotlinc, java or JNA.
"""

import json
import math
import os
import re
import shutil
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path

from browser_page import BROWSER, QUICK, REPOSITORY, TINY, build_module
from needs import thimble_program

PAGE = REPOSITORY / "docs" / "embedding.md"
DECODER = REPOSITORY / "packer" / "embed"
JNA = Path("/usr/share/java/jna.jar")
STORED = REPOSITORY / "tests" / "packer" / "artifacts" / "slope-portable.thmb"
FORMATS = {"F32": "f", "I32": "i"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def means_of(safetensors: Path) -> dict[str, float]:
    raw = safetensors.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    means = {}
    for name, tensor in json.loads(raw[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in tensor["data_offsets"])
        values = struct.unpack(f"<{(end - begin) // 4}{FORMATS[tensor['dtype']]}", raw[begin:end])
        means[name] = math.fsum(values) / max(1, len(values))
    return means


def setUpModule() -> None:
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    EmbeddingTest.folder = Path(folder.name)
    EmbeddingTest.build = Path(os.environ.get("DECODER_BUILD", EmbeddingTest.folder / "build"))
    EmbeddingTest.artifact = EmbeddingTest.folder / "model.thmb"
    options = f"-o {EmbeddingTest.artifact} --budget 600000 --codec rans --portable {QUICK}"
    subprocess.run([thimble_program(), "quantize", str(TINY), *options.split()], check=True, capture_output=True)
    for command in (
        ["cmake", "-S", str(DECODER), "-B", str(EmbeddingTest.build / "decode"), "-G", "Unix Makefiles"],
        ["cmake", "--build", str(EmbeddingTest.build / "decode"), "--parallel", "2"],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


class EmbeddingTest(unittest.TestCase):
    folder: Path
    build: Path
    artifact: Path

    def check(self, output: str, artifact: Path) -> None:
        """Lines of a name and a mean, against the tensors that `thimble export` writes, which joins some to banks."""
        values = self.folder / "values.safetensors"
        command = ["export", artifact, "--to", "safetensors", "--dtype", "F32", "-o", values]
        self.run_it(thimble_program(), *command)
        means = means_of(values)
        lines = [line for line in output.splitlines() if not re.fullmatch(r"\d+ of \d+ bytes", line)]
        found = {line.split()[0]: float(line.split()[-1]) for line in lines}
        self.assertLessEqual({name for name in means if "bank" not in name}, found.keys())
        for name in means.keys() & found.keys():
            self.assertAlmostEqual(found[name], means[name], delta=1e-5 * abs(means[name]) + 1e-7, msg=name)

    def run_it(self, *command: object, status: int = 0, **options: object) -> subprocess.CompletedProcess:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
        self.assertEqual(done.returncode, status, done.stderr)
        return done

    def damaged(self) -> Path:
        path = self.folder / "damaged.thmb"
        data = bytearray(self.artifact.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        return path

    def test_c(self):
        (program,) = blocks("c")
        self.assertLessEqual(len([line for line in program.splitlines() if line.strip()]), 40)
        (self.folder / "decode.c").write_text(program, encoding="utf-8")
        self.run_it("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", DECODER, "decode.c",
                    self.build / "decode" / "libthimble-decode.a", "-lstdc++", "-lm", "-o", "decode", cwd=self.folder)  # fmt: skip
        for artifact in (self.artifact, STORED):
            self.check(self.run_it("./decode", artifact, cwd=self.folder).stdout, artifact)
        error = self.run_it("./decode", self.damaged(), cwd=self.folder, status=4).stderr
        self.assertIn("damaged.thmb: ", error)

    def test_javascript(self):
        for program in ("emcmake", "make", "node"):
            if shutil.which(program) is None:
                self.skipTest(f"{program} is not installed")
        module = build_module(DECODER, self.build / "wasm", "thimble_decode_module")
        folder = self.folder / "js"
        folder.mkdir()
        for name in ("bytes.mjs", "thimble.mjs"):
            shutil.copy(BROWSER / name, folder)
        shutil.copy(module, folder)
        (program,) = blocks("js")
        # Node fetches no files: a server's part is played by this.
        files = (
            "import { readFileSync } from 'node:fs'\n"
            "globalThis.fetch = async (url) => { const bytes = readFileSync(new URL(url))\n"
            "  return new Response(bytes, { headers: { 'content-length': String(bytes.length) } }) }\n"
        )
        (folder / "fetch.mjs").write_text(files, encoding="utf-8")
        (folder / "values.mjs").write_text("import './fetch.mjs'\n" + program, encoding="utf-8")
        for artifact in (self.artifact, STORED):
            shutil.copy(artifact, folder / "model.thmb")
            output = self.run_it("node", "values.mjs", cwd=folder).stdout
            self.check(output, artifact)
            self.assertIn(f"{artifact.stat().st_size} of {artifact.stat().st_size} bytes", output)

    def test_kotlin(self):
        for program in ("kotlinc", "java"):
            if shutil.which(program) is None:
                self.skipTest(f"{program} is not installed")
        if not JNA.exists():
            self.skipTest(f"{JNA} is not there")
        (program,) = blocks("kotlin")
        (self.folder / "Decode.kt").write_text(program, encoding="utf-8")
        self.run_it("kotlinc", "-nowarn", "-cp", JNA, "Decode.kt", "-include-runtime", "-d", "decode.jar",
                    cwd=self.folder)  # fmt: skip
        command = ["java", "-cp", f"decode.jar:{JNA}", "DecodeKt"]
        options = {"cwd": self.folder, "env": {**os.environ, "LD_LIBRARY_PATH": str(self.build / "decode")}}
        for artifact in (self.artifact, STORED):
            self.check(self.run_it(*command, artifact, **options).stdout, artifact)
        self.assertIn("damaged.thmb: ", self.run_it(*command, self.damaged(), status=1, **options).stderr)



if __name__ == "__main__":
    unittest.main()
