"""read_thmb_test.py: scripts/read_thmb.py gives exactly the weights that `thimble export` writes.

Run with THIMBLE=path/to/thimble WRITE_STEPPED_ARTIFACT=path/to/write_stepped_artifact python3 tests/python/run_file.py
tests/python/read_thmb_test.py; skipped without numpy.
"""

import itertools
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from needs import needs, thimble_program

needs("numpy")
PROGRAM = thimble_program()

import numpy as np  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "scripts"))
import read_thmb  # noqa: E402

TINY = REPOSITORY / "examples" / "tiny"


def thimble(*arguments) -> None:
    subprocess.run([PROGRAM, *map(str, arguments)], check=True, capture_output=True)


def read_float32(path: Path) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(data[8 + length + begin : 8 + length + end], "<f4").reshape(entry["shape"])
    return tensors


def without_banks(tensors: dict[str, np.ndarray], layers: int) -> dict[str, np.ndarray]:
    banks = {"qo_bank": ("attn.c_q", "attn.proj"), "kv_bank": ("attn.c_k", "attn.c_v"), "mlp_up_bank": ("mlp.fc",),
             "mlp_down_bank": ("mlp.proj",)}  # fmt: skip
    result = {}
    for name, tensor in tensors.items():
        if name not in banks:
            result[name] = tensor
        for part, matrix in enumerate(banks.get(name, ())):
            for i in range(layers):
                result[f"blocks.{i}.{matrix}.weight"] = tensor[part * layers + i]
    return result


class ReadThmbTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.layers = json.loads((TINY / "config.json").read_text())["num_layers"]

    def quantize(self, codec: str, *options, method="trace") -> Path:
        path = self.folder / f"{codec}.thmb"
        thimble("quantize", TINY / "model.safetensors", "-o", path, "--method", method, "--codec", codec, "--min-elements", 4096,
                "--calibration-sequences", 1, "--calibration-length", 64, "--no-resume", *options)  # fmt: skip
        return path

    def expect_exported_weights(self, artifact: Path):
        exported = self.folder / "exported.safetensors"
        thimble("export", artifact, "-o", exported)
        expected = without_banks(read_float32(exported), self.layers)
        found = read_thmb.load(artifact)
        self.assertEqual(sorted(found), sorted(expected))
        for name, tensor in expected.items():
            self.assertEqual(found[name].shape, tensor.shape, name)
            self.assertTrue(np.array_equal(found[name], tensor), name)

    def test_weights_are_those_of_export(self):
        self.expect_exported_weights(self.quantize("rans"))
        self.expect_exported_weights(self.quantize("rans", method="slope"))
        self.expect_exported_weights(self.quantize("rans", method="nvfp4"))

    def test_other_codecs_and_precisions(self):
        self.expect_exported_weights(self.quantize("none", "--bits", "3,4"))
        self.expect_exported_weights(self.quantize("none", method="nvfp4"))
        self.expect_exported_weights(self.quantize("xz", "--bits", "2,8"))

    def test_stepped_tensors(self):
        if not os.environ.get("WRITE_STEPPED_ARTIFACT"):
            self.skipTest("WRITE_STEPPED_ARTIFACT does not name the program")
        for codec in ("rans", "none", "xz"):
            artifact = self.folder / f"stepped_{codec}.thmb"
            subprocess.run([os.environ["WRITE_STEPPED_ARTIFACT"], str(artifact), codec], check=True)
            self.expect_exported_weights(artifact)

    def test_damage_is_noticed(self):
        artifact = self.quantize("rans")
        data = bytearray(artifact.read_bytes())
        first = next(i for i in range(data[12]) if data[32 + 20 * i + 1] == read_thmb.RANS)
        begin = 32 + 20 * data[12] + sum(struct.unpack_from("<I", data, 32 + 20 * i + 8)[0] for i in range(first))
        (length,) = struct.unpack_from("<I", data, 32 + 20 * first + 8)
        data[begin + length // 2] ^= 0x10
        for bad in (data, data[:-1], b"x" + data[1:]):
            artifact.write_bytes(bad)
            with self.assertRaises(ValueError):
                read_thmb.load(artifact)


class ScaleTableTest(unittest.TestCase):
    def test_tables_are_those_of_the_format(self):
        reach, slots = read_thmb.scale_table(read_thmb.density_sums(0), 12, 1000)
        self.assertEqual(reach, 4)
        self.assertEqual(np.cumsum([0, *slots]).tolist(), [0, 1, 25, 273, 1263, 2832, 3822, 4070, 4094, 4095, 4096])
        reach, slots = read_thmb.scale_table(read_thmb.density_sums(0), 12, 1000, 1, 2)
        self.assertEqual(reach, 3)
        self.assertEqual(np.cumsum([0, *slots]).tolist(), [0, 5, 93, 650, 2047, 3444, 4001, 4089, 4094, 4095, 4096])

    def test_every_slot_is_shared_out(self):
        for shape, (set_, sets) in itertools.product(range(4), ((0, 1), (0, 2), (1, 2))):
            sums = read_thmb.density_sums(shape)
            for scale_class in range(read_thmb.CLASSES):
                for max_magnitude in (0, 1, 15, 127, 128):
                    _, slots = read_thmb.scale_table(sums, scale_class, max_magnitude, set_, sets)
                    self.assertEqual(sum(slots), read_thmb.SLOTS)
                    self.assertGreater(min(slots), 0)


if __name__ == "__main__":
    unittest.main()
