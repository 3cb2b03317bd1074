"""nncodec_rival.py: NNCodec, the reference software of ISO/IEC 15938-17 (Neural Network Coding), without data."""

from importlib.metadata import version

from candidate import Candidate, read_folder, write_folder

# 4 less halve the steps. Those between come last, so that a run that ends early has the whole range.
STEPS = {f"QP {qp}": qp for qp in (*range(-16, -41, -4), *range(-14, -41, -4))}


def versions(_options):
    return f"nncodec {version('nncodec')}"


def settings(_options):
    return list(STEPS)


def make(options, setting, folder):
    import numpy as np
    import torch
    from nncodec.nn import decode, encode

    original = {name: tensor.numpy() for name, tensor in read_folder(options.model).items()}
    path = folder / "nncodec.nnc"
    path.write_bytes(encode({name: np.array(values) for name, values in original.items()},
                            args={"qp": STEPS[setting], "use_dq": True, "verbose": False, "results": str(folder)}))
    decoded = decode(bytearray(path.read_bytes()))
    tensors = {name: torch.from_numpy(np.array(decoded[name], np.float32).reshape(values.shape))
               for name, values in original.items()}
    return Candidate([str(path)], write_folder(options.model, tensors, folder / "weights"), is_compressible=False)
