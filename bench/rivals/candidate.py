"""candidate.py: what every rival hands over, and how weights are written for thimble to score."""

import json
import lzma
import shutil
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Candidate:
    rival: str
    setting: str
    file_bytes: int  # all that must be shipped, but for the tokenizer's files beside it
    xz_bytes: int    # the same after xz -9e
    weights: str     # what the file stands for, as `thimble eval` reads it
    notes: str = ""  # fallbacks: tensors that the setting could not be used for


def xz_bytes(paths):
    """Of all the files after xz -9e."""
    return sum(len(lzma.compress(Path(path).read_bytes(), preset=9 | lzma.PRESET_EXTREME)) for path in paths)


def bytes_of(paths):
    return sum(Path(path).stat().st_size for path in paths)


def weight_files(folder):
    return sorted(Path(folder).glob("*.safetensors"))


def read_folder(folder):
    """Tensors of a folder of Hugging Face, float32, by name."""
    import torch
    from safetensors.torch import load_file

    tensors = {}
    for path in weight_files(folder):
        tensors.update(load_file(str(path)))
    return {name: tensor.to(torch.float32) for name, tensor in tensors.items()}


def write_folder(original, tensors, out):
    """A folder with these float32 tensors, and the config and the tokenizer of the original."""
    from safetensors.torch import save_file

    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    for path in Path(original).iterdir():
        if path.suffix in (".json", ".model", ".jinja", ".txt") and not path.name.endswith(".index.json"):
            shutil.copy(path, out / path.name)
    config = json.loads((out / "config.json").read_text())
    config["dtype"] = config["torch_dtype"] = "float32"
    (out / "config.json").write_text(json.dumps(config, indent=2))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(out / "model.safetensors"))
    return str(out)


def is_linear(name, tensor):
    """A matrix of the layers: what all of these rivals quantize. Tables and heads stay as they are."""
    return tensor.ndim == 2 and ".layers." in name and name.endswith("proj.weight")
