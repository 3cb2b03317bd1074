"""auto_round_rival.py: AutoRound (sign-gradient rounding), calibrated on the same tokens."""

from importlib.metadata import version
from pathlib import Path

from candidate import Candidate, bytes_of, read_folder, weight_files, write_folder, xz_bytes

SETTINGS = [(bits, 128) for bits in (2, 3, 4, 8)]


def versions(_options):
    return f"auto-round {version('auto-round')}"


def candidates(options, folder):
    import torch
    from auto_round import AutoRound
    from transformers import AutoModelForCausalLM, AutoTokenizer

    length = options.calibration_length
    ids = torch.from_numpy(options.calibration_ids.astype("int64")).reshape(-1, length)
    samples = [{"input_ids": row.unsqueeze(0)} for row in ids]
    for bits, group in SETTINGS:
        setting = f"{bits} bits, groups of {group}"
        if not options.is_wanted("auto-round", setting):
            continue
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16)
        tokenizer = AutoTokenizer.from_pretrained(options.model)
        tuner = AutoRound(model, tokenizer, bits=bits, group_size=group, sym=False, dataset=samples, seqlen=length,
                          nsamples=len(samples))
        tuner.quantize()
        packed, plain = Path(folder) / f"auto-round-{bits}", Path(folder) / "auto-round-plain"
        tuner.save_quantized(str(plain), format="fake", inplace=False)
        tuner.save_quantized(str(packed), format="auto_round", inplace=True)
        files = weight_files(packed)
        weights = write_folder(options.model, read_folder(plain), Path(folder) / "auto-round")
        yield Candidate("auto-round", setting, bytes_of(files), xz_bytes(files), weights, "embedding in bf16")
