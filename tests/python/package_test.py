"""package_test.py: the Python package thimble, where it is installed (pip install .) with numpy; with torch where that
is, too.

Run through ctest or by an environment's own python3, with THIMBLE naming the program: what the package decodes is
compared with what the program writes.
"""

import json
import random
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

from needs import needs, thimble_program

needs("thimble", "numpy")

import numpy  # noqa: E402: what needs() has looked for
import thimble  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = REPOSITORY / "examples" / "tiny"
STORED = REPOSITORY / "tests" / "packer" / "artifacts"
QUICK = "--calibration-sequences 4 --calibration-length 64 --distill-steps 0 --cross-term 0 --no-resume"
DAMAGED_COPIES = 500
NUMPY_TYPES = {"F32": "<f4", "F16": "<f2", "I32": "<i4", "I64": "<i8", "U8": "u1", "BOOL": "?"}


def exported(program: str, artifact: Path, dtype: str, folder: Path) -> dict[str, numpy.ndarray]:
    """The tensors that `thimble export` writes."""
    path = folder / "exported.safetensors"
    command = [program, "export", str(artifact), "--dtype", dtype, "-o", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    tensors = {}
    for name, entry in json.loads(raw[8 : 8 + length]).items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            values = numpy.frombuffer(raw[begin:end], NUMPY_TYPES[entry["dtype"]])
            tensors[name] = values.reshape(entry["shape"])
    return tensors


class PackageTest(unittest.TestCase):
    folder: Path
    program: str
    artifact: Path

    @classmethod
    def setUpClass(cls):
        cls.program = thimble_program()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.artifact = cls.folder / "tiny.thmb"
        command = [cls.program, "quantize", str(TINY), "-o", str(cls.artifact), "--budget", "600000", *QUICK.split()]
        subprocess.run(command, check=True, capture_output=True)

    def assert_equal_tensors(self, found, expected):
        self.assertEqual(sorted(found), sorted(expected))
        for name, values in expected.items():
            self.assertEqual((found[name].dtype, found[name].shape), (values.dtype, values.shape), name)
            self.assertEqual(found[name].tobytes(), values.tobytes(), name)

    def test_state_dict_is_what_export_writes(self):
        for dtype, code in (("float32", "F32"), ("float16", "F16")):
            with self.subTest(dtype=dtype):
                found = thimble.state_dict(self.artifact, dtype=dtype)
                self.assert_equal_tensors(found, exported(self.program, self.artifact, code, self.folder))
        self.assertIn("qo_bank", found)

    def test_tensors_are_those_of_every_stored_artifact(self):
        """Of all format versions and codecs, one by one and together; banks are in single matrices."""
        artifacts = sorted(STORED.glob("*.thmb"))
        self.assertGreater(len(artifacts), 50)
        for path in artifacts:
            with self.subTest(artifact=path.name):
                tensors = thimble.load(path)
                together = tensors.read()
                self.assert_equal_tensors({name: tensors[name] for name in tensors}, together)
                expected = exported(self.program, path, "F32", self.folder)
                for name in expected.keys() & together.keys():
                    self.assertEqual(together[name].tobytes(), expected[name].tobytes(), name)
                if "golf" not in path.name:
                    self.assertEqual(expected.keys(), together.keys())

    def test_open_says_what_inspect_says(self):
        command = [self.program, "inspect", str(self.artifact), "--json"]
        said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        artifact = thimble.open(self.artifact)
        self.assertEqual(artifact.file_bytes, self.artifact.stat().st_size)
        self.assertEqual(artifact.config, said["config"])
        self.assertEqual(sorted(artifact.tensors), sorted(tensor["name"] for tensor in said["tensors"]))
        for tensor in said["tensors"]:
            info = artifact.tensors[tensor["name"]]
            self.assertEqual((list(info.shape), info.stored_as), (tensor["shape"], tensor["precision"]))
            self.assertAlmostEqual(info.bits_per_weight, tensor["bits_per_weight"], delta=1e-9)
        self.assertEqual(artifact.parameters, 1_432_028)
        self.assertIn("52 tensors, 1,432,028 parameters", repr(artifact))
        artifact.check()

    def test_arrays_live_on_their_own(self):
        tensors = thimble.load(self.artifact)
        values = tensors["tok_emb.weight"]
        copy = values.copy()
        del tensors
        self.assertTrue(numpy.array_equal(values, copy))
        values[0, 0] = 7  # memory of the caller's
        self.assertEqual(thimble.load(self.artifact)["tok_emb.weight"][0, 0], copy[0, 0])

    def test_threads_may_share_what_is_open(self):
        tensors = thimble.load(self.artifact)
        expected = tensors.read()
        wrong = []

        def read():
            for name in tensors:
                if not numpy.array_equal(tensors[name], expected[name]):
                    wrong.append(name)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_errors_mirror_the_exit_codes(self):
        truncated = self.folder / "truncated.thmb"
        truncated.write_bytes(self.artifact.read_bytes()[:1000])
        other = self.folder / "version.thmb"
        data = bytearray(self.artifact.read_bytes())
        data[8] = 99
        other.write_bytes(data)
        for call, kind, code, text in (
            (lambda: thimble.load(self.folder / "none.thmb"), OSError, 5, "none.thmb: cannot open"),
            (lambda: thimble.load(TINY / "text.txt"), ValueError, 4, "text.txt: "),
            (lambda: thimble.load(truncated), ValueError, 4, "truncated.thmb: the file has 1000 B"),
            (lambda: thimble.open(other), ValueError, 4, "version.thmb: "),
            (lambda: thimble.state_dict(truncated), ValueError, 4, "truncated.thmb: the file has 1000 B"),
            (lambda: thimble.load(self.artifact, dtype="int8"), ValueError, 2, "float32, float16, bfloat16"),
            (lambda: thimble.load(self.artifact, dtype="bfloat16"), ValueError, 2, "NumPy has no bfloat16"),
        ):
            with self.assertRaises(thimble.Error) as caught:
                call()
            self.assertIsInstance(caught.exception, kind)
            self.assertEqual(caught.exception.exit_code, code)
            self.assertIn(text, str(caught.exception))
        with self.assertRaisesRegex(KeyError, "tiny.thmb has no tensor 'nothing'"):
            thimble.load(self.artifact)["nothing"]
        with self.assertRaisesRegex(KeyError, "no tensor 'nothing'"):
            thimble.load(self.artifact).read(["tok_emb.weight", "nothing"])

    def test_damaged_artifacts_are_errors(self):
        pick = random.Random(3)
        path = self.folder / "damaged.thmb"
        stored = sorted(STORED.glob("*.thmb"))  # of all format versions and codecs
        for copy in range(DAMAGED_COPIES):
            good = stored[copy % len(stored)].read_bytes()
            data = bytearray(good)
            for _ in range(pick.randrange(1, 4)):
                data[pick.randrange(len(data))] ^= 1 << pick.randrange(8)
            if copy % 3 == 0:
                del data[pick.randrange(len(data)) :]
            path.write_bytes(data)
            with self.subTest(copy=copy):
                if bytes(data) == good:
                    continue
                with self.assertRaises(thimble.FormatError) as caught:
                    thimble.open(path).check()
                self.assertIn("damaged.thmb: ", str(caught.exception))
                with self.assertRaises(thimble.FormatError):
                    thimble.state_dict(path)
                try:
                    thimble.load(path).read()  # where no section that it reads is damaged, all is well
                except thimble.FormatError:
                    pass

    def test_import_is_quick_and_leaves_torch_alone(self):
        code = "import sys, thimble; print(sorted({'torch', 'numpy'} & set(sys.modules)))"
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        self.assertEqual(done.stdout.strip(), "[]")


class TorchTest(unittest.TestCase):
    def test_tensors_of_torch(self):
        needs("torch")
        import torch

        path = STORED / "slope-portable-golf.thmb"
        arrays = thimble.load(path)
        for device in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
            tensors = thimble.load(path, device=device)
            narrow = thimble.load(path, device=device, dtype="bfloat16")
            for name, values in arrays.items():
                self.assertTrue(numpy.array_equal(tensors[name].cpu().numpy(), values), name)
                self.assertEqual(tensors[name].device.type, device)
                self.assertTrue(torch.equal(narrow[name], tensors[name].to(torch.bfloat16)), name)


if __name__ == "__main__":
    unittest.main()
