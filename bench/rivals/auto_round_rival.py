"""auto_round_rival.py: AutoRound (sign-gradient rounding), calibrated on the same tokens."""

from importlib.metadata import version

from candidate import Candidate, read_folder, weight_files, write_folder

SETTINGS = {f"{bits} bits, groups of {group}": (bits, group) for bits, group in ((2, 64), (2, 128), (3, 128), (4, 128))}


def versions(_options):
    return f"auto-round {version('auto-round')}"


def settings(_options):
    return list(SETTINGS)


def make(options, setting, folder):
    import numpy as np
    import torch
    from auto_round import AutoRound
    from transformers import AutoModelForCausalLM

    bits, group = SETTINGS[setting]
    length = options.calibration_length
    ids = torch.from_numpy(np.fromfile(options.calibration_int32, "<i4").astype("int64")).reshape(-1, length)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    tuner = AutoRound(model, None, bits=bits, group_size=group, sym=False, dataset=[{"input_ids": row[None]} for row in ids],
                      seqlen=length, nsamples=len(ids), iters=options.auto_round_iterations)
    tuner.quantize()
    packed, plain = folder / "packed", folder / "plain"
    tuner.save_quantized(str(plain), format="fake", inplace=False)
    tuner.save_quantized(str(packed), format="auto_round", inplace=True)
    weights = write_folder(options.model, read_folder(plain), folder / "weights")
    return Candidate(weight_files(packed), weights, "embedding as it was")
