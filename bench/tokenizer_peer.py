#!/usr/bin/env python3
"""Compares `thimble tokenize` with the `tokenizers` library: the ids, which must be equal, and the CPU time.

  bench/tokenizer_peer.py TOKENIZER.json [TEXT...] [--mixed BYTES] [--program build/release/quantizer/thimble]

--mixed adds a text of that many bytes in ten scripts, with code, emoji and random code points, made from --seed. Exit
code 1 when a token differs.
"""
import argparse
import array
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "eval" / "tokenizers"))
from mixed_text import mixed_text  # noqa: E402

SEPARATOR = "<|doc|>"
HEADER_BYTES = 1024
WIDE_MAGIC = 20240801


def documents(text):
    parts, lines = [], []
    for line in text.split("\n") + [SEPARATOR]:
        if line != SEPARATOR:
            lines.append(line)
            continue
        parts.append("\n".join(lines).strip("\n"))
        lines = []
    return [part for part in parts if part]


def read_shard(path):
    raw = Path(path).read_bytes()
    tokens = array.array("I" if int.from_bytes(raw[:4], "little") == WIDE_MAGIC else "H")
    tokens.frombytes(raw[HEADER_BYTES:])
    return tokens.tolist()


def child_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def compare(name, text_path, tokenizer_path, reference, program):
    """Is every token of every document the library's?"""
    text = Path(text_path).read_bytes().decode()
    with tempfile.TemporaryDirectory() as folder:
        shard = Path(folder) / "text.bin"
        before = child_seconds()
        subprocess.run([program, "tokenize", text_path, "-o", shard, "--tokenizer", tokenizer_path, "--quiet"], check=True)
        ours_seconds = child_seconds() - before
        ours = read_shard(shard)
    before = time.process_time()
    theirs = [reference.encode(part, add_special_tokens=False).ids for part in documents(text)]
    theirs_seconds = time.process_time() - before
    at = 0
    for number, ids in enumerate(theirs):
        found = ours[at + 1:at + 1 + len(ids)]  # behind the token in front of the document
        if found != ids:
            first = next((i for i, pair in enumerate(zip(found, ids)) if pair[0] != pair[1]), min(len(found), len(ids)))
            print(f"{name}: document {number}, token {first}: {found[first:first + 4]}, not {ids[first:first + 4]}")
            return False
        at += 1 + len(ids)
    size = len(text.encode())
    print(f"{name}: {at:,} tokens in {len(theirs):,} documents equal; thimble {size / ours_seconds / 1e6:.1f} MB/s with "
          f"starting and reading the tokenizer, the library {size / theirs_seconds / 1e6:.1f} MB/s")
    return at == len(ours)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("tokenizer")
    options.add_argument("texts", nargs="*")
    options.add_argument("--mixed", type=int, default=0)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--program", default=str(ROOT / "build" / "release" / "quantizer" / "thimble"))
    arguments = options.parse_args()
    reference = Tokenizer.from_file(arguments.tokenizer)
    equal = [compare(text, text, arguments.tokenizer, reference, arguments.program) for text in arguments.texts]
    if arguments.mixed:
        with tempfile.NamedTemporaryFile(suffix=".txt") as file:
            file.write(mixed_text(arguments.mixed, arguments.seed).encode())
            file.flush()
            equal.append(compare(f"mixed text, seed {arguments.seed}", file.name, arguments.tokenizer, reference,
                                 arguments.program))
    return 0 if all(equal) else 1


if __name__ == "__main__":
    sys.exit(main())
