"""hqq_rival.py: HQQ (half-quadratic quantization), which needs no calibration."""

from importlib.metadata import version
from pathlib import Path

from candidate import Candidate, bytes_of, is_linear, read_folder, write_folder, xz_bytes

SETTINGS = [(bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (64, 128)]


def versions(_options):
    return f"hqq {version('hqq')}"


def candidates(options, folder):
    import torch
    from hqq.core.quantize import Quantizer
    from safetensors.torch import save_file

    original = read_folder(options.model)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for bits, group in SETTINGS:
        setting = f"{bits} bits, groups of {group}"
        if not options.is_wanted("hqq", setting):
            continue
        stored, tensors = {}, {}
        for name, tensor in original.items():
            if not is_linear(name, tensor) or tensor.numel() % group:
                stored[name], tensors[name] = tensor.to(torch.bfloat16), tensor.to(torch.bfloat16).float()
                continue
            codes, meta = Quantizer.quantize(tensor.to(device), nbits=bits, group_size=group, axis=1, optimize=True,
                                             device=device, compute_dtype=torch.float32)
            meta["scale"], meta["zero"] = meta["scale"].half().float(), meta["zero"].half().float()
            stored |= {name: codes.cpu(), f"{name}.scale": meta["scale"].half().cpu(),
                       f"{name}.zero": meta["zero"].half().cpu()}
            tensors[name] = Quantizer.dequantize(codes, meta).float().cpu().reshape(tensor.shape)
        path = Path(folder) / "hqq.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in stored.items()}, str(path))
        weights = write_folder(options.model, tensors, Path(folder) / "hqq")
        yield Candidate("hqq", setting, bytes_of([path]), xz_bytes([path]), weights, "embedding in bf16")
