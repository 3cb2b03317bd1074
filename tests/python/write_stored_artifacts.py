"""write_stored_artifacts.py: makes the artifacts of tests/packer/artifacts, from small models that it draws.

    python3 tests/python/write_stored_artifacts.py PROGRAM [FOLDER]

Run it with the program of a release that writes a new kind of file, and keep what is new: a stored artifact is never
replaced, since it stands for the files that users of its release have. FOLDER is tests/packer/artifacts unless given;
its README.md says how the checksums beside the files are made.
"""

import json
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "packer" / "artifacts"
CODECS = ("none", "brotli", "zstd", "xz", "rans")
METHODS = {"slope": ["--log2-step", "-3"], "trace": ["--bits", "4,5", "--high", "0"], "nvfp4": []}
LAYERS, WIDTH, HEADS, VOCAB, PAIRS, SIDE = 2, 32, 2, 40, 16, 8  # of the golf-gpt
BYTES = {"F64": "d", "F32": "f", "F16": "e", "I64": "q", "I32": "i", "U8": "B", "BOOL": "B"}


def write_safetensors(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def count_of(shape):
    count = 1
    for dimension in shape:
        count *= dimension
    return count


def drawn(shapes, draws):
    """Tensors of {name: (shape, dtype)}: normal floats, small integers."""
    tensors = {}
    for name, (shape, dtype) in shapes.items():
        floats = dtype.startswith("F")
        largest = {"I32": 1000, "I64": 1000, "U8": 256, "BOOL": 2}.get(dtype)
        values = [draws.gauss(0, 0.5) if floats else draws.randrange(largest) for _ in range(count_of(shape))]
        tensors[name] = (dtype, shape, struct.pack(f"<{len(values)}{BYTES[dtype]}", *values))
    return tensors


def hessian_of(width):
    values = [2.0 if i == j else 1.0 / (1 + abs(i - j)) for i in range(width) for j in range(width)]
    return "F32", (width, width), struct.pack(f"<{len(values)}f", *values)


def plain_model():
    """The first matrix has a Hessian, the second none, the others are stored as they are."""
    shapes = {"solved": ((40, 24), "F32"), "rounded": ((17, 30), "F32"), "small": ((9,), "F32"),
              "counts": ((3,), "I32")}
    return drawn(shapes, random.Random(1)), {"architecture": "stored"}, {"solved": hessian_of(24)}


def shapes_model():
    """Two segments of a trellis, two stripes of columns, one row, one column, and every kind of raw tensor."""
    shapes = {"tall": ((530, 5), "F32"), "wide": ((3, 1100), "F32"), "row": ((1, 300), "F32"),
              "column": ((300, 1), "F32"), "cube": ((4, 6, 7), "F32"), "empty": ((0, 4), "F32"), "scalar": ((), "F32"),
              "f16": ((5,), "F16"), "f64": ((5,), "F64"), "i64": ((4,), "I64"), "u8": ((7,), "U8"),
              "bool": ((3,), "BOOL")}
    return drawn(shapes, random.Random(2)), {"architecture": "stored"}, {"tall": hessian_of(5)}


def columns_model():
    """Codes whose spread depends on the column: layouts by columns pay."""
    draws = random.Random(3)
    values = [draws.gauss(0, 1) * 4.0 ** -(k % 6) for _ in range(96) for k in range(48)]
    tensors = {"columns": ("F32", (96, 48), struct.pack(f"<{len(values)}f", *values))}
    return tensors, {"architecture": "stored"}, {"columns": hessian_of(48)}


def sections_model():
    """More than a section holds: codes of 2,200 x 2,000 and 5 MB as they are, all but constant."""
    draws = random.Random(4)
    row = [draws.choice((-1.0, 1.0)) for _ in range(2000)]
    tensors = {"codes": ("F32", (2200, 2000), struct.pack("<2000f", *row) * 2200),
               "bytes": ("U8", (5_000_000,), b"\7" * 5_000_000)}
    rows = (struct.pack("<2000f", *(2.0 if i == j else 0.0 for j in range(2000))) for i in range(2000))
    return tensors, {"architecture": "stored"}, {"codes": ("F32", (2000, 2000), b"".join(rows))}


def golf_model():
    """A golf-gpt with its matrices in banks."""
    half, hidden = WIDTH // HEADS, 2 * WIDTH
    shapes = {"bigram.embed.weight": (PAIRS, SIDE), "bigram.proj.weight": (WIDTH, SIDE), "bigram.scale": (),
              "kv_bank": (2 * LAYERS, half, WIDTH), "mlp_down_bank": (LAYERS, WIDTH, hidden),
              "mlp_up_bank": (LAYERS, hidden, WIDTH), "qo_bank": (2 * LAYERS, WIDTH, WIDTH),
              "skip_gates": (1, WIDTH), "skip_weights": (1, WIDTH), "smear.gate": (WIDTH,),
              "tok_emb.weight": (VOCAB, WIDTH), "ve_layer_scales.0": (1,), "ve_shared.embed.weight": (VOCAB, SIDE),
              "ve_shared.proj.weight": (half, SIDE), "ve_shared.scale": ()}
    for i in range(LAYERS):
        shapes |= {f"blocks.{i}.attn.q_gain": (HEADS,), f"blocks.{i}.attn_scale": (WIDTH,),
                   f"blocks.{i}.mlp_scale": (WIDTH,), f"blocks.{i}.resid_mix": (2, WIDTH)}
    config = {"architecture": "golf-gpt", "vocab_size": VOCAB, "num_layers": LAYERS, "model_dim": WIDTH,
              "num_heads": HEADS, "num_kv_heads": 1, "mlp_mult": 2, "tie_embeddings": True, "logit_softcap": 30.0,
              "rope_base": 10000.0, "rope_dims": 8, "rope_train_seq_len": 64, "ln_scale": True, "xsa_last_n": 1,
              "bigram_vocab_size": PAIRS, "bigram_dim": SIDE, "smear_gate": True, "skip_gates": True, "ve_layers": [1],
              "ve_dim": SIDE, "mlp_activation": "leaky_relu_0.5_squared"}
    tensors = drawn({name: (shape, "F32") for name, shape in shapes.items()}, random.Random(5))
    return tensors, config, {"blocks.0.mlp.fc.weight": hessian_of(WIDTH)}


def runs():
    """Of each model: name of the artifact, method, codec, options where they are not those of METHODS."""
    yield plain_model, [(f"{method}-{codec}", method, codec, []) for method in METHODS for codec in CODECS]
    yield plain_model, [(f"slope-rans-trellis{bits}", "slope", "rans", METHODS["slope"] + ["--trellis-bits", str(bits)])
                        for bits in (0, 2, 3, 4, 5, 6, 7)]
    yield shapes_model, [(f"{method}-{codec}-shapes", method, codec, [])
                         for method in METHODS for codec in ("auto", "rans")]
    yield columns_model, [(f"trace-{codec}-{bits}bits", "trace", codec, ["--bits", f"{bits},{bits + 1}", "--high", "0"])
                          for bits in (2, 3, 7) for codec in ("none", "zstd", "rans")]
    yield columns_model, [(f"nvfp4-{codec}-columns", "nvfp4", codec, []) for codec in ("brotli", "auto")]
    yield sections_model, [(f"{method}-brotli-sections", method, "brotli", []) for method in METHODS]
    yield golf_model, [(f"{method}-rans-golf", method, "rans", []) for method in METHODS]
    for model, end in ((plain_model, ""), (shapes_model, "-shapes"), (golf_model, "-golf")):
        yield model, [(f"{method}-portable{end}", method, "rans", METHODS[method] + ["--portable"])
                      for method in METHODS]


def main():
    program, folder = sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else FOLDER
    for model, artifacts in runs():
        with tempfile.TemporaryDirectory() as inputs:
            tensors, config, hessians = model()
            write_safetensors(Path(inputs) / "model.safetensors", tensors, {"config": json.dumps(config)})
            write_safetensors(Path(inputs) / "hessians.safetensors", hessians, {"tokens": "1"})
            for name, method, codec, options in artifacts:
                subprocess.run([program, "quantize", f"{inputs}/model.safetensors", "-o", str(folder / f"{name}.thmb"),
                                "--hessians", f"{inputs}/hessians.safetensors", "--method", method, "--codec", codec,
                                *(options or METHODS[method]), "--min-elements", "100", "--no-resume", "--quiet"],
                               check=True)


if __name__ == "__main__":
    main()
