"""exported_artifacts_test.py: `thimble export` writes the weights of stored artifacts as earlier releases did.

tests/packer/stored_artifacts_test.cpp compares every tensor of all of them. Run with
python3 tests/python/run_file.py tests/python/exported_artifacts_test.py; skipped unless THIMBLE names the program.
"""

import hashlib
import json
import subprocess
import tempfile
import unittest
from pathlib import Path

from needs import thimble_program

FOLDER = Path(__file__).resolve().parents[1] / "packer" / "artifacts"
VERSION_OFFSET = 8  # of the format version, after the magic

CODECS = ("none", "brotli", "zstd", "xz", "rans")
# Of the files of each method: SHA-256 over names, shapes and weights as `thimble export` writes them in F32. A codec
# changes the bytes of a file, never its weights.
DIGESTS = {
    "slope": "88a635a7ccf8ff222acdebc3e70501f0d0a610ecc37e3943f141674094ce0b4f",
    "trace": "5ff4f55a67c57127018df664a40fce0c365d0438405d93e0b1a51caa14244c05",
    "nvfp4": "8e86f888209ff099aa50cada42826303d0c89175b15d5ae879e233bfb82b01f1",
}
STORED = {FOLDER / f"{method}-{codec}.thmb": digest for method, digest in DIGESTS.items() for codec in CODECS}


def weights_digest(program, artifact):
    """The digest of what the artifact stands for, whatever order and metadata the exported file has."""
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "weights.safetensors"
        subprocess.run([program, "export", str(artifact), "-o", str(exported), "--quiet"], check=True)
        content = exported.read_bytes()
    data = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:data])
    digest = hashlib.sha256()
    for name in sorted(set(header) - {"__metadata__"}):
        begin, end = header[name]["data_offsets"]
        digest.update(f"{name} {header[name]['dtype']} {header[name]['shape']}\n".encode())
        digest.update(content[data + begin:data + end])
    return digest.hexdigest()


class ExportedArtifactsTest(unittest.TestCase):
    def setUp(self):
        self.program = thimble_program()

    def test_stored_artifacts_have_the_same_weights(self):
        for path, digest in STORED.items():
            with self.subTest(name=path.name):
                self.assertEqual(weights_digest(self.program, path), digest)

    def test_a_newer_version_is_refused_by_its_number(self):
        content = bytearray(next(iter(STORED)).read_bytes())
        content[VERSION_OFFSET] = 200
        with tempfile.TemporaryDirectory() as folder:
            newer = Path(folder) / "newer.thmb"
            newer.write_bytes(content)
            done = subprocess.run([self.program, "verify", str(newer)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 4)
        self.assertIn("200", done.stderr)


if __name__ == "__main__":
    unittest.main()
