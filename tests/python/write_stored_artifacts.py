"""write_stored_artifacts.py: makes the artifacts that stored_artifacts_test.py reads, one per method and codec.

    python3 tests/python/write_stored_artifacts.py PROGRAM [FOLDER]

Run it with the program of a release that writes a new kind of file, and keep what is new: a stored artifact is never
replaced, since it stands for the files that users of its release have. FOLDER is tests/python/artifacts unless given.
Prints the digest of each file for DIGESTS.
"""

import json
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from stored_artifacts_test import CODECS, FOLDER, weights_digest  # noqa: E402

# name: (shape, dtype); the first has a Hessian, the second none, the others are stored as they are.
SHAPES = {"solved": ((40, 24), "F32"), "rounded": ((17, 30), "F32"), "small": ((9,), "F32"), "counts": ((3,), "I32")}
METHODS = {"slope": ["--log2-step", "-3"], "trace": ["--bits", "4,5", "--high", "0"], "nvfp4": []}


def write_safetensors(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_inputs(folder):
    draws = random.Random(1)
    tensors = {}
    for name, (shape, dtype) in SHAPES.items():
        count = 1
        for dimension in shape:
            count *= dimension
        values = [draws.gauss(0, 0.5) if dtype == "F32" else draws.randrange(1000) for _ in range(count)]
        tensors[name] = (dtype, shape, struct.pack(f"<{count}{'f' if dtype == 'F32' else 'i'}", *values))
    write_safetensors(folder / "model.safetensors", tensors, {"config": '{"architecture":"stored"}'})
    width = SHAPES["solved"][0][1]
    hessian = [2.0 if i == j else 1.0 / (1 + abs(i - j)) for i in range(width) for j in range(width)]
    content = struct.pack(f"<{len(hessian)}f", *hessian)
    write_safetensors(folder / "hessians.safetensors", {"solved": ("F32", (width, width), content)}, {"tokens": "1"})


def main():
    program, folder = sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else FOLDER
    with tempfile.TemporaryDirectory() as inputs:
        write_inputs(Path(inputs))
        for method, options in METHODS.items():
            for codec in CODECS:
                output = folder / f"{method}-{codec}.thmb"
                subprocess.run([program, "quantize", f"{inputs}/model.safetensors", "-o", str(output), "--hessians",
                                f"{inputs}/hessians.safetensors", "--method", method, "--codec", codec, *options,
                                "--min-elements", "100", "--no-resume", "--quiet"], check=True)
                print(output.name, weights_digest(program, output))


if __name__ == "__main__":
    main()
