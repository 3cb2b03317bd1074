"""samples.py: small files of every kind that the program reads, written with the standard library alone: checkpoints of
both families as safetensors, torch.save and llm.c write them, a tokenizer, token shards.
"""

import io
import json
import pickle
import random
import struct
import sys
import types
import zipfile
from array import array
from collections import OrderedDict
from dataclasses import dataclass
from math import prod
from pathlib import Path

WORDS = ("\u2581", "\u2581the", "\u2581sea", "e", "n")
FIRST_BYTE_TOKEN = 3
VOCABULARY = FIRST_BYTE_TOKEN + 256 + len(WORDS)

Tensors = dict[str, tuple[tuple[int, ...], array]]  # name -> shape, float32 values


def golf_config(layers: int = 2, width: int = 32) -> dict:
    return {"architecture": "golf-gpt", "vocab_size": VOCABULARY, "num_layers": layers, "model_dim": width,
            "num_heads": 2, "num_kv_heads": 1, "mlp_mult": 2, "tie_embeddings": True, "logit_softcap": 30.0,
            "rope_base": 10000.0, "rope_dims": 8, "rope_train_seq_len": 64, "ln_scale": True, "xsa_last_n": 1,
            "bigram_vocab_size": 32, "bigram_dim": 8, "smear_gate": True, "skip_gates": True, "ve_layers": [1],
            "ve_dim": 8, "mlp_activation": "leaky_relu_0.5_squared"}


def golf_shapes(config: dict) -> dict[str, tuple[int, ...]]:
    width, vocabulary = config["model_dim"], config["vocab_size"]
    key = width // config["num_heads"] * config["num_kv_heads"]
    hidden = int(width * config["mlp_mult"])
    encoder = config["num_layers"] // 2
    shapes: dict[str, tuple[int, ...]] = {"tok_emb.weight": (vocabulary, width)}
    for layer in range(config["num_layers"]):
        shapes |= {f"blocks.{layer}.{name}": shape for name, shape in {
            "attn.c_q.weight": (width, width), "attn.proj.weight": (width, width), "attn.c_k.weight": (key, width),
            "attn.c_v.weight": (key, width), "mlp.fc.weight": (hidden, width), "mlp.proj.weight": (width, hidden),
            "attn.q_gain": (config["num_heads"],), "attn_scale": (width,), "mlp_scale": (width,),
            "resid_mix": (2, width)}.items()}
    return shapes | {"skip_weights": (encoder, width), "skip_gates": (encoder, width), "smear.gate": (width,),
                     "bigram.embed.weight": (config["bigram_vocab_size"], config["bigram_dim"]),
                     "bigram.proj.weight": (width, config["bigram_dim"]), "bigram.scale": (),
                     "ve_shared.embed.weight": (vocabulary, config["ve_dim"]),
                     "ve_shared.proj.weight": (key, config["ve_dim"]), "ve_shared.scale": (),
                     "ve_layer_scales.0": (1,)}


def gpt2_config(layers: int = 2, width: int = 32, positions: int = 64) -> dict:
    return {"model_type": "gpt2", "vocab_size": VOCABULARY, "n_positions": positions, "n_embd": width,
            "n_layer": layers, "n_head": 2, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}


GPT2_LAYER = ("ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
              "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight",
              "mlp.c_proj.bias")  # in llm.c's order


def gpt2_shapes(config: dict) -> dict[str, tuple[int, ...]]:
    """As Hugging Face stores them: projections as (in, out)."""
    width = config["n_embd"]
    sizes = {"attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width), "mlp.c_fc": (width, 4 * width),
             "mlp.c_proj": (4 * width, width)}
    shapes: dict[str, tuple[int, ...]] = {"transformer.wte.weight": (config["vocab_size"], width),
                                          "transformer.wpe.weight": (config["n_positions"], width)}
    for layer in range(config["n_layer"]):
        for name in GPT2_LAYER:
            stem, kind = name.rsplit(".", 1)
            shape = sizes.get(stem, (width, width))
            shapes[f"transformer.h.{layer}.{name}"] = shape if stem in sizes and kind == "weight" else (shape[1],)
    return shapes | {"transformer.ln_f.weight": (width,), "transformer.ln_f.bias": (width,)}


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int, scale: float = 1.0) -> Tensors:
    numbers = random.Random(seed)
    tensors = {}
    for name, shape in shapes.items():
        deviation = scale * (0.5 if len(shape) == 2 else 0.8)
        tensors[name] = (shape, array("f", (numbers.gauss(0, deviation) for _ in range(prod(shape)))))
    return tensors


def bfloat16(values: array) -> bytes:
    halves = array("H")
    halves.frombytes(values.tobytes())
    return halves[1::2].tobytes()  # little-endian: the upper halves


def write_safetensors(path: Path, tensors: Tensors, config: dict | None = None, dtype: str = "F32") -> None:
    header: dict = {"__metadata__": {"config": json.dumps(config)}} if config else {}
    parts, offset = [], 0
    for name, (shape, values) in tensors.items():
        parts.append(values.tobytes() if dtype == "F32" else bfloat16(values))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(parts[-1])]}
        offset += len(parts[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


@dataclass
class _Storage:
    key: str
    count: int


class _Tensor:
    def __init__(self, storage: _Storage, shape: tuple[int, ...]):
        self.storage, self.shape = storage, shape

    def __reduce__(self):
        strides = tuple(prod(self.shape[axis + 1:]) for axis in range(len(self.shape)))
        torch = sys.modules["torch._utils"]
        return torch._rebuild_tensor_v2, (self.storage, 0, self.shape, strides, False, OrderedDict())


def _stand_ins() -> dict[str, types.ModuleType]:
    """Modules that lend the pickle the names of torch's own."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    torch.FloatStorage = type("FloatStorage", (), {"__module__": "torch"})

    def _rebuild_tensor_v2(*_):
        raise NotImplementedError

    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    torch._utils = utils
    return {"torch": torch, "torch._utils": utils}


def write_torch(path: Path, tensors: Tensors) -> None:
    """A file of torch.save, of a state dict of float32 tensors."""
    modules = _stand_ins()

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            if isinstance(value, _Storage):
                return ("storage", modules["torch"].FloatStorage, value.key, "cpu", value.count)
            return None

    state = {name: _Tensor(_Storage(str(i), len(values)), shape)
             for i, (name, (shape, values)) in enumerate(tensors.items())}
    stream, before = io.BytesIO(), {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        Pickler(stream, 2).dump(state)
    finally:
        for name, module in before.items():
            sys.modules.pop(name) if module is None else sys.modules.__setitem__(name, module)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        def add(name: str, data: bytes) -> None:
            archive.writestr(zipfile.ZipInfo(f"archive/{name}"), data)  # without the time: equal seeds, equal files
        add("data.pkl", stream.getvalue())
        add("byteorder", b"little")
        for i, (_, values) in enumerate(tensors.values()):
            add(f"data/{i}", values.tobytes())
        add("version", b"3\n")


def write_llmc(path: Path, config: dict, tensors: Tensors) -> None:
    """A .bin of llm.c, version 3 (float32). Random values do for its (out, in) matrices as they are."""
    sizes = [config[key] for key in ("n_positions", "vocab_size", "n_layer", "n_head", "n_embd")]
    header = array("i", [20240326, 3, *sizes, config["vocab_size"]] + [0] * 248)
    names = ["transformer.wte.weight", "transformer.wpe.weight"]
    names += [f"transformer.h.{layer}.{name}" for name in GPT2_LAYER for layer in range(config["n_layer"])]
    names += ["transformer.ln_f.weight", "transformer.ln_f.bias"]
    path.write_bytes(header.tobytes() + b"".join(tensors[name][1].tobytes() for name in names))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _message(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def tokenizer_bytes() -> bytes:
    """A SentencePiece model of the 256 bytes and a few words."""
    unknown, control, byte, normal = 2, 3, 6, 1
    pieces = [("<unk>", 0.0, unknown), ("<s>", 0.0, control), ("</s>", 0.0, control)]
    pieces += [(f"<0x{value:02X}>", 0.0, byte) for value in range(256)]
    pieces += [(word, -1.0 - i, normal) for i, word in enumerate(WORDS)]
    out = b""
    for text, score, kind in pieces:
        out += _message(1, _message(1, text.encode()) + _varint(2 << 3 | 5) + struct.pack("<f", score) +
                        _varint(3 << 3) + _varint(kind))
    flag = lambda number, value: _varint(number << 3) + _varint(value)  # noqa: E731
    return out + _message(2, flag(24, 0) + flag(35, 1)) + _message(3, flag(3, 1) + flag(4, 1) + flag(5, 1))


def write_shard(path: Path, tokens: list[int]) -> None:
    header = array("i", [20240520, 1, len(tokens)] + [0] * 253)
    path.write_bytes(header.tobytes() + array("H", tokens).tobytes())


def write_folder(folder: Path, seed: int = 1) -> None:
    """The files that most attempts start from: model.safetensors with config.json, the same as model.pt; a GPT-2 as
    gpt2.safetensors and gpt2.bin; sp.model, val.bin and text.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    golf = random_tensors(golf_shapes(golf_config()), seed)
    write_safetensors(folder / "model.safetensors", golf)
    (folder / "config.json").write_text(json.dumps(golf_config()))
    write_torch(folder / "model.pt", golf)
    config = gpt2_config()
    gpt2 = random_tensors(gpt2_shapes(config), seed + 1, 0.3)
    write_safetensors(folder / "gpt2.safetensors", gpt2, config)
    write_llmc(folder / "gpt2.bin", config, gpt2)
    (folder / "sp.model").write_bytes(tokenizer_bytes())
    text = "".join(f"the sea and the wind, {i * 37} waves\nbetween the stones\n" for i in range(12))
    (folder / "text.txt").write_text(text)
    write_shard(folder / "val.bin", [FIRST_BYTE_TOKEN + byte for byte in text.encode()])
