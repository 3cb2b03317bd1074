"""llama_cpp.py: the types of llama.cpp with an importance matrix of the calibration tokens.

Needs its headers (llama.h, ggml.h) and libraries (libllama, libggml, libggml-base), for llama_cpp.cpp beside this
file, and the Python package gguf, which turns what it wrote into float32.
"""

import subprocess
from importlib.metadata import version
from pathlib import Path

from candidate import Candidate, bytes_of, xz_bytes

# llama_ftype of llama.h.
FILE_TYPES = {"IQ2_XXS": 19, "IQ2_XS": 20, "IQ2_S": 28, "IQ2_M": 29, "IQ3_XXS": 23, "IQ3_XS": 22, "IQ3_S": 26,
              "IQ3_M": 27, "IQ4_XS": 30, "IQ4_NL": 25, "Q2_K": 10, "Q2_K_S": 21, "Q3_K_S": 11, "Q3_K_M": 12,
              "Q3_K_L": 13, "Q4_0": 2, "Q4_1": 3, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_0": 8, "Q5_1": 9, "Q5_K_S": 16,
              "Q5_K_M": 17, "Q6_K": 18, "Q8_0": 7}
DEFAULT_TYPES = ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "Q2_K", "IQ3_XXS", "IQ3_S", "Q3_K_S", "Q3_K_M", "IQ4_XS",
                 "Q4_0", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "Q8_0"]


def build(options, folder):
    source = Path(__file__).with_name("llama_cpp.cpp")
    program = Path(folder) / "llama_cpp"
    includes = [f"-I{path}" for path in options.llama_include]
    library = Path(options.llama_library).resolve()
    subprocess.run(["c++", "-std=c++20", "-O2", *includes, str(source), "-o", str(program), f"-L{library}", "-lllama",
                    "-lggml", "-lggml-base", f"-Wl,-rpath,{library}"], check=True)
    return program


def to_float32(path, out):
    """A GGUF file with the same keys and tensors, all in float32. Returns the types that were in it."""
    import gguf
    import numpy as np

    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, reader.get_field("general.architecture").contents())
    skipped = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version", "quantize.")
    for name, field in reader.fields.items():
        if name.startswith(skipped):
            continue
        kind = field.types[0]
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_array(name, field.contents())
        else:
            writer.add_key_value(name, field.contents(), kind)
    types = {}
    for tensor in reader.tensors:
        kind = tensor.tensor_type.name
        if len(tensor.shape) > 1:
            types[kind] = types.get(kind, 0) + int(tensor.n_elements)
        shape = [int(n) for n in reversed(tensor.shape)]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)
        writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return types


def versions(options):
    return f"llama.cpp of {Path(options.llama_library).name}, gguf {version('gguf')}"


def candidates(options, folder):
    program = build(options, folder)
    original = Path(folder) / "original.gguf"
    if not original.exists():
        tokenizer = ["--tokenizer", options.tokenizer] if options.tokenizer else []
        subprocess.run([options.program, "export", options.model, "--to", "gguf", "--dtype", "BF16", "-o", str(original),
                        *tokenizer, "--quiet"], check=True)
    raw = Path(folder) / "calibration.int32"
    raw.write_bytes(options.calibration_ids.astype("<i4").tobytes())
    wanted = [name for name in options.types or DEFAULT_TYPES if options.is_wanted("llama.cpp", name)]
    files = {name: Path(folder) / f"{name}.gguf" for name in wanted}
    missing = [name for name in wanted if not files[name].exists()]
    if missing:
        pairs = [word for name in missing for word in (str(FILE_TYPES[name]), str(files[name]))]
        subprocess.run([str(program), str(original), str(raw), str(options.calibration_length), *pairs], check=True)
    for name in wanted:
        weights = Path(folder) / f"{name}.float32.gguf"
        types = to_float32(str(files[name]), str(weights))
        notes = ", ".join(f"{100 * count / sum(types.values()):.0f} % {kind}" for kind, count in types.items())
        yield Candidate("llama.cpp", name, bytes_of([files[name]]), xz_bytes([files[name]]), str(weights), notes)
        weights.unlink()
