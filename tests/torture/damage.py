"""damage.py: files of every kind with random damage. Whatever is wrong with a file, the program ends in time with a
documented exit code and a reason, and writes nothing.
"""

import ctypes
import ctypes.util
import json
import struct
from pathlib import Path

from harness import DOCUMENTED_ERRORS, Case, Fault, Row, Torture

SCORING = ["--context", "32", "--stride", "16", "--max-targets", "32", "--threads", "1"]
QUICK = ["--calibration-sequences", "1", "--calibration-length", "16", "--threads", "1"]
HEAD_BYTES = 2048  # where most of what a parser reads lies; a zip's directory is at the end

PREFIX_BYTES, ENTRY_BYTES, CHECKSUM_AT = 32, 20, 24  # of an artifact: docs/reference/format.md


def _xxh3():
    """XXH3-64 from the library that the program itself needs; None where it is not found."""
    name = ctypes.util.find_library("xxhash") or "libxxhash.so.0"
    try:
        function = ctypes.CDLL(name).XXH3_64bits
    except OSError:
        return None
    function.restype, function.argtypes = ctypes.c_uint64, (ctypes.c_char_p, ctypes.c_size_t)
    return lambda data: function(data, len(data))


XXH3 = _xxh3()


def reseal(data: bytes) -> bytes:
    """An artifact with its checksums and length made right again, so that the checks behind them are reached."""
    if XXH3 is None or len(data) < PREFIX_BYTES:
        return data
    out = bytearray(data)
    struct.pack_into("<Q", out, 16, len(out))
    sections, = struct.unpack_from("<I", out, 12)
    at = PREFIX_BYTES + sections * ENTRY_BYTES
    for entry in range(PREFIX_BYTES, min(at, len(out) - ENTRY_BYTES + 1), ENTRY_BYTES):
        stored, = struct.unpack_from("<I", out, entry + 8)
        if at + stored > len(out):
            break
        struct.pack_into("<Q", out, entry + 12, XXH3(bytes(out[at:at + stored])))
        at += stored
    struct.pack_into("<Q", out, CHECKSUM_AT, XXH3(bytes(out[:CHECKSUM_AT] + out[CHECKSUM_AT + 8:])))
    return bytes(out)


NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, 1 << 63,
           (1 << 64) - 1)
WORDS = (b"-1", b"0", b"1e309", b"99999999999999999999", b"null", b"[]", b"{}", b'""', b"nan", b"\\u0000", b"\xff",
         b"[" * 100, b"true", b",", b'"', b"\n", b"0.5", b"1,2,3")


def damaged(data: bytes, random) -> bytes:
    """One to three changes: bits, bytes, numbers, words, and what copying and cutting files does."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 3))):
        length = len(out)
        region = random.choice(((0, length), (0, HEAD_BYTES), (0, 64), (length - HEAD_BYTES, length)))
        begin = random.randrange(max(0, region[0]), max(1, min(length, region[1])) + 1)
        end = min(length, begin + random.choice((1, 2, 8, 64, 512)))
        kind = random.randrange(10)
        if kind == 0:
            del out[begin:]
        elif kind == 1:
            out += random.randbytes(random.choice((1, 7, 4096)))
        elif kind == 2:
            out[begin:end] = bytes(end - begin)
        elif kind == 3:
            out[begin:end] = b"\xff" * (end - begin)
        elif kind == 4:
            del out[begin:end]
        elif kind == 5:
            out[begin:begin] = out[begin:end]
        elif kind == 6:
            number = struct.pack("<Q", random.choice(NUMBERS))[:random.choice((1, 2, 4, 8))]
            at = begin & ~3
            out[at:at + len(number)] = number
        elif kind == 7:
            out[begin:begin + random.choice((0, 1, 4))] = random.choice(WORDS)
        else:
            for _ in range(random.choice((1, 3, 16))):
                if out:
                    at = min(begin + random.randrange(64), len(out) - 1)
                    out[at] ^= 1 << random.randrange(8)
    return bytes(out)


class Damage:
    """`files`: the folder of samples.write_folder(), to which this adds an artifact and Hessians."""

    def __init__(self, torture: Torture, files: Path, make):
        self.files = files
        if XXH3 is None:
            torture.notes.append("no xxhash library here: damaged artifacts keep the checksums of whole ones")
        quantize = ["quantize", "model.safetensors", "--min-elements", "100", *QUICK]
        make([*quantize, "-o", "slope.thmb", "--save-hessians", "hessians.safetensors", "--distill-steps", "1"])
        for method in ("trace", "nvfp4"):
            make([*quantize, "-o", f"{method}.thmb", "--method", method])
        (files / "reference.csv").write_text("label,bytes,bpb\nanother,15000,9.5\n\"a, b\",20000,8.25\n")

    def rows(self, count: int) -> list[Row]:
        tokens = ["--tokens", "val.bin", "--tokenizer", "sp.model", *SCORING]
        checkpoint = [["eval", "BAD", *tokens], ["quantize", "BAD", "-o", "out.thmb", "--method", "trace", *QUICK],
                      ["quantize", "BAD", "-o", "out.thmb", "--distill-steps", "0", *QUICK]]
        artifact = [["verify", "BAD"], ["inspect", "BAD"], ["export", "BAD", "-o", "out.safetensors"],
                    ["eval", "BAD", *tokens]]
        sweep = ["sweep", "model.safetensors", "-o", "curve", "--methods", "trace", "--budgets", "1000000", *QUICK]
        kinds = {
            "safetensors": (["model.safetensors", "gpt2.safetensors"], checkpoint),
            "torch": (["model.pt"], checkpoint),
            "llm.c": (["gpt2.bin"], checkpoint),
            "artifact": (["slope.thmb", "trace.thmb", "nvfp4.thmb"], artifact),
            "shard": (["val.bin"], [["eval", "model.safetensors", "--tokens", "BAD", *tokens[2:]],
                                    ["quantize", "model.safetensors", "-o", "out.thmb", "--calibration-tokens", "BAD",
                                     "--calibration-length", "16", "--method", "trace", "--threads", "1"]]),
            "tokenizer": (["sp.model"], [["eval", "model.safetensors", "--tokens", "val.bin", "--tokenizer", "BAD",
                                          *SCORING],
                                         ["generate", "model.safetensors", "--tokenizer", "BAD", "--length", "4"]]),
            "Hessians": (["hessians.safetensors"],
                         [["quantize", "model.safetensors", "-o", "out.thmb", "--hessians", "BAD", "--min-elements",
                           "100", "--threads", "1", *method] for method in ([], ["--method", "trace"])]),
            "config": (["config.json"], [["eval", "model.safetensors", "--config", "BAD", *tokens]]),
            "reference CSV": (["reference.csv"], [[*sweep, *tokens, "--reference", "BAD"]]),
        }
        return [Row(f"damaged {kind}", count, self._attempt(sources, commands), 60)
                for kind, (sources, commands) in kinds.items()]

    def _attempt(self, sources: list[str], commands: list[list[str]]):
        whole = {name: (self.files / name).read_bytes() for name in sources}

        def attempt(case: Case, index: int) -> None:
            name = case.random.choice(sources)
            data = damaged(whole[name], case.random)
            if name.endswith(".thmb") and case.random.random() < 0.7:
                data = reseal(data)
            bad = "bad" + Path(name).suffix
            case.path(bad).write_bytes(data)
            inputs = ["model.safetensors", "val.bin", "sp.model"]
            if not name.startswith("gpt2"):
                inputs.append("config.json")  # beside the checkpoint
            for linked in inputs:
                case.path(linked).symlink_to(self.files / linked)
            before = {path.name for path in case.folder.iterdir()}
            command = commands[index % len(commands)]
            run = case.expect([bad if word == "BAD" else word for word in command], (0, *DOCUMENTED_ERRORS))
            left = {path.name for path in case.folder.iterdir()} - before
            if run.code != 0 and (left := {name for name in left if not name.endswith(".work")}):
                raise Fault(f"{run.outcome()}, but wrote {', '.join(sorted(left))}")
            if "--json" in command:
                json.loads(run.out)

        return attempt
