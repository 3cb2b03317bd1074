"""nncodec_rival.py: NNCodec, the reference software of ISO/IEC 15938-17 (Neural Network Coding), without data."""

from importlib.metadata import version
from pathlib import Path

from candidate import Candidate, bytes_of, read_folder, write_folder, xz_bytes

STEPS = [-12, -16, -20, -24, -28, -32, -36]  # QP: 4 more halve the steps


def versions(_options):
    return f"nncodec {version('nncodec')}"


def candidates(options, folder):
    import numpy as np
    import torch
    from nncodec.nn import decode, encode

    original = {name: tensor.numpy().astype(np.float32) for name, tensor in read_folder(options.model).items()}
    for qp in STEPS:
        setting = f"QP {qp}"
        if not options.is_wanted("nncodec", setting):
            continue
        path = Path(folder) / "nncodec.nnc"
        path.write_bytes(bytes(encode(original, args={"qp": qp, "use_dq": True})))
        decoded = decode(path.read_bytes())
        tensors = {name: torch.from_numpy(np.asarray(decoded[name], np.float32)) for name in original}
        weights = write_folder(options.model, tensors, Path(folder) / "nncodec")
        yield Candidate("nncodec", setting, bytes_of([path]), xz_bytes([path]), weights)
