"""llama_cpp.py: the types of llama.cpp with an importance matrix of the calibration tokens.

Needs its headers (llama.h, ggml.h) and libraries (libllama, libggml, libggml-base) for llama_cpp.cpp beside this file,
or that program compiled (--llama-program), and the Python package gguf.
"""

import ctypes
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

from candidate import Candidate
from gguf_folder import write_folder_of, write_gguf

# llama_ftype of llama.h.
FILE_TYPES = {"IQ2_XXS": 19, "IQ2_XS": 20, "IQ2_S": 28, "IQ2_M": 29, "IQ3_XXS": 23, "IQ3_XS": 22, "IQ3_S": 26,
              "IQ3_M": 27, "IQ4_XS": 30, "IQ4_NL": 25, "Q2_K": 10, "Q2_K_S": 21, "Q3_K_S": 11, "Q3_K_M": 12,
              "Q3_K_L": 13, "Q4_0": 2, "Q4_1": 3, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_0": 8, "Q5_1": 9, "Q5_K_S": 16,
              "Q5_K_M": 17, "Q6_K": 18, "Q8_0": 7}
DEFAULT_TYPES = ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "Q2_K", "IQ3_XXS", "IQ3_S", "Q3_K_S", "Q3_K_M", "IQ4_XS",
                 "Q4_0", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "Q8_0"]
THREADS = 4  # of one type: matrices of small models keep no more busy


def library_of(options):
    return Path(options.llama_library).resolve()


def versions(options):
    library = ctypes.CDLL(str(library_of(options) / "libllama.so"), mode=ctypes.RTLD_GLOBAL)
    library.llama_version.restype = ctypes.c_char_p
    return f"llama.cpp {library.llama_version().decode()}, gguf {version('gguf')}"


def settings(options):
    return options.types or DEFAULT_TYPES


def workers(options):
    return max(1, options.threads // THREADS)


def run(options, *arguments):
    done = subprocess.run([options.llama_program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or f"exit {done.returncode}").splitlines()[-1])
    return done.stdout


def prepare(options, folder):
    if not options.llama_program:
        options.llama_program = str(folder / "llama_cpp")
        source = Path(__file__).with_name("llama_cpp.cpp")
        includes = [f"-I{path}" for path in options.llama_include]
        library = library_of(options)
        subprocess.run(["c++", "-std=c++20", "-O2", *includes, str(source), "-o", options.llama_program, f"-L{library}",
                        "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{library}"], check=True)
    original, importance = folder / "original.gguf", folder / "importance.txt"
    write_gguf(options.model, str(original))
    if not importance.exists():
        run(options, "importance", original, options.calibration_int32, options.calibration_length, options.threads,
            importance)


def make(options, setting, folder):
    packed, plain = folder / f"{setting}.gguf", folder / "float32.gguf"
    said = run(options, "quantize", folder.parent / "original.gguf", folder.parent / "importance.txt",
               FILE_TYPES[setting], THREADS, packed)
    elements = {}
    for line in run(options, "float32", packed, plain).splitlines():
        kind, count = line.split()
        elements[kind] = elements.get(kind, 0) + int(count)
    shares = sorted(elements.items(), key=lambda item: -item[1])
    notes = ", ".join(f"{100 * count / sum(elements.values()):.0f} % {kind}" for kind, count in shares)
    fallbacks = len(re.findall("fallback", said))
    weights = write_folder_of(str(plain), options.model, folder / "weights")
    plain.unlink()
    return Candidate([str(packed)], weights, notes + (f", {fallbacks} fallbacks" if fallbacks else ""))
