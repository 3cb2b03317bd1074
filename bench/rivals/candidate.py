"""candidate.py: what every rival hands over, and the folders of weights that go in and out."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Candidate:
    files: list    # all that must be shipped, but for the tokenizer
    weights: str   # folder of what the files stand for, in float32, as `thimble eval` reads it
    notes: str = ""  # what was stored otherwise than the setting says
    is_compressible: bool = True  # False: all of it comes from an entropy coder


def config_of(folder):
    return json.loads((Path(folder) / "config.json").read_text())


def weight_files(folder):
    return sorted(str(path) for path in Path(folder).glob("*.safetensors"))


def model_files(folder):
    index = Path(folder) / "model.safetensors.index.json"
    if not index.exists():
        return [str(Path(folder) / "model.safetensors")]
    return sorted({str(Path(folder) / name) for name in json.loads(index.read_text())["weight_map"].values()})


def read_folder(folder):
    """Tensors of a model of Hugging Face, float32, by name."""
    import torch
    from safetensors.torch import load_file

    tensors = {}
    for path in model_files(folder):
        tensors.update(load_file(path))
    return {name: tensor.to(torch.float32) for name, tensor in tensors.items()}


def write_folder(original, tensors, out):
    """A folder with these float32 tensors, and the config and the tokenizer of the original."""
    from safetensors.torch import save_file

    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    for path in Path(original).iterdir():
        if path.suffix in (".json", ".model", ".jinja", ".txt") and not path.name.endswith(".index.json"):
            shutil.copyfile(path, out / path.name)
    config = config_of(out)
    config["dtype"] = config["torch_dtype"] = "float32"
    (out / "config.json").write_text(json.dumps(config, indent=2))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(out / "model.safetensors"))
    return str(out)


LAYER_MATRICES = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight", "gate_proj.weight",
                  "up_proj.weight", "down_proj.weight", "c_attn.weight", "c_proj.weight", "c_fc.weight")


def is_layer_matrix(name, tensor):
    """What rivals of the layers quantize. Tables and heads stay as they are."""
    return tensor.ndim == 2 and name.endswith(LAYER_MATRICES)


def is_transposed(name):
    """GPT-2's files have (columns, rows)."""
    return ".c_" in name
