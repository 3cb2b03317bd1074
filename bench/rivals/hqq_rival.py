"""hqq_rival.py: HQQ (half-quadratic quantization), which needs no calibration."""

from importlib.metadata import version

from candidate import Candidate, is_layer_matrix, is_transposed, read_folder, write_folder

SETTINGS = {f"{bits} bits, groups of {group}": (bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (64, 128)}


def versions(_options):
    return f"hqq {version('hqq')}"


def settings(_options):
    return list(SETTINGS)


def make(options, setting, folder):
    import torch
    from hqq.core.quantize import Quantizer
    from safetensors.torch import save_file

    bits, group = SETTINGS[setting]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    stored, tensors, left = {}, {}, []
    for name, tensor in read_folder(options.model).items():
        rows = tensor.t() if is_transposed(name) and tensor.ndim == 2 else tensor
        if not is_layer_matrix(name, tensor) or rows.shape[1] % group:
            stored[name] = tensor.to(torch.bfloat16)
            tensors[name] = stored[name].float()
            if is_layer_matrix(name, tensor):
                left.append(name)
            continue
        codes, meta = Quantizer.quantize(rows.contiguous().to(device), nbits=bits, group_size=group, axis=1,
                                         optimize=True, device=device, compute_dtype=torch.float32)
        # As HQQLinear ships them for float16.
        scale, zero = meta["scale"].half(), meta["zero"].half()
        stored |= {name: codes.cpu(), f"{name}.scale": scale.cpu(), f"{name}.zero": zero.cpu()}
        meta["scale"], meta["zero"] = scale.float(), zero.float()
        values = Quantizer.dequantize(codes, meta).float().cpu().reshape(rows.shape)
        tensors[name] = values.t() if rows is not tensor else values
    path = folder / "hqq.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, str(path))
    notes = ["embedding in bf16"]
    if bits in (5, 6):
        notes.append("codes in bytes")
    if left:
        notes.append(f"{len(left)} matrices in bf16")
    return Candidate([str(path)], write_folder(options.model, tensors, folder / "weights"), ", ".join(notes))
