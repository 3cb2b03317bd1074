"""read_thmb.py: reads artifacts (.thmb, docs/reference/format.md) with numpy and the standard library alone.

    tensors = read_thmb.load("model.thmb")        # name -> float32 array; banks are left in single matrices
    python3 read_thmb.py model.thmb               # what is in it

Meant to be shipped beside a model. Codes of --codec rans (docs/reference/weight_coder.md) are decoded in all their
lanes at once: one numpy step per code of a lane. Lengths and the coder's own end marks are checked, checksums are not
(`thimble verify` does that). Sections in Brotli need the package brotli.
"""

import json
import lzma
import math
import struct
import sys
from pathlib import Path

import numpy as np

# ---- The weight coder ------------------------------------------------------------------------------------------------

CLASSES = 37
SLOTS = 4096
MAX_REACH = (127, 126)  # of one set, of two
BLOCK_STEPS = 1 << 14
ESCAPE = -32768  # + 2 * set + parity: stands for a code that is still to be read
TRELLIS_ROWS = 512
STRIPE_COLUMNS = 1024
SHAPES = ((1072693760, 1072693760), (1056461846, 1073098699), (1040443749, 1073470979), (1027321989, 1073741824))
QUARTER_OCTAVES = (1073741824, 902905651, 759250125, 638450708)
# By state bits: what the lowest bit of a state, and that of a code, add to the next state.
FEEDBACK = (0, 0, 2, 5, 9, 18, 33, 78, 166)
INPUT = (0, 0, 1, 2, 2, 4, 10, 43, 121)


def density_sums(shape: int) -> list[int]:
    """Mass of the density left of each of its 256 cells."""
    weight, (ratio, decay) = 1 << 30, SHAPES[shape]
    sums = [0]
    for _ in range(256):
        sums.append(sums[-1] + weight)
        weight, ratio = weight * ratio >> 30, ratio * decay >> 30
    return sums


def scale_table(sums: list[int], scale_class: int, max_magnitude: int, set_: int = 0, sets: int = 1):
    """Reach, and slots of the codes -reach - set..reach and then, where there are any, of the escapes."""
    total, half_code = sums[256], QUARTER_OCTAVES[scale_class % 4] >> (7 + scale_class // 4)

    def below(position: int) -> int:
        cell, fraction = position >> 16, position & 65535
        return total if cell >= 256 else sums[cell] + ((sums[cell + 1] - sums[cell]) * fraction >> 16)

    reach, limit = 0, min(max_magnitude, MAX_REACH[sets - 1])
    while reach < limit and (total - below((2 * reach + 1 + set_) * half_code)) * SLOTS >= total:
        reach += 1
    edges = [below((2 * q + 1 + set_) * half_code) for q in range(reach + 1)]
    escape = []
    if reach < max_magnitude:
        escape = [max(1, ((total - edges[reach]) * SLOTS + sets * total // 2) // (sets * total))] * sets
    else:
        edges[reach] = total
    half = [max(1, ((edges[q] - edges[q - 1]) * SLOTS + total) // (2 * total)) for q in range(1, reach + 1)]
    left = SLOTS - 2 * sum(half) - sum(escape)
    return reach, half[::-1] + ([left // 2, left - left // 2] if set_ else [left]) + half + escape


class Tables:
    """Tables by slot, for all combinations of shape, largest magnitude and sets that were asked for."""

    def __init__(self):
        self.first = {}
        self.reach, self.escapes, self.value, self.slots, self.offset = [], [], [], [], []

    def index(self, shape: int, max_magnitude: int, sets: int = 1) -> int:
        """Where the 37 classes of this combination begin, set after set."""
        key = (shape, max_magnitude, sets)
        if key not in self.first:
            self.first[key] = len(self.reach)
            sums = density_sums(shape)
            for set_ in range(sets):
                escapes = [ESCAPE + 2 * set_ + parity for parity in range(sets)]
                for scale_class in range(CLASSES):
                    reach, slots = scale_table(sums, scale_class, max_magnitude, set_, sets)
                    self._add(reach, slots, [*range(-reach - set_, reach + 1), *escapes], sets)
        return self.first[key]

    def _add(self, reach: int, slots: list[int], values: list[int], escapes: int):
        counts = np.array(slots)
        self.reach.append(reach)
        self.escapes.append(escapes)
        self.value.append(np.repeat(np.array(values[: len(slots)], np.int16), counts))
        self.slots.append(np.repeat(counts, counts).astype(np.uint32))
        self.offset.append((np.arange(SLOTS) - np.repeat(np.cumsum(counts) - counts, counts)).astype(np.uint32))

    def by_slot(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Value, slots and offset of each (table, slot); the last table is one that changes nothing."""
        self._add(0, [SLOTS], [0], 1)
        return np.concatenate(self.value), np.concatenate(self.slots), np.concatenate(self.offset)


class Block:
    """Codes of a block, row by row: `table` (rows, columns) is that of set 0. Coded in `lanes` lanes in `stored`."""

    def __init__(self, table: np.ndarray, lanes: int, stored: bytes, trellis_bits: int = 0):
        self.table, self.width = table.ravel(), table.shape[1] if trellis_bits else lanes
        self.lanes, self.trellis_bits = lanes, trellis_bits
        self.states = np.frombuffer(stored, "<u4", lanes)
        self.words = np.frombuffer(stored, "<u2", offset=4 * lanes)
        self.codes = None


def decode_blocks(blocks: list[Block], tables: Tables) -> None:
    """Fills in the codes of all blocks, which advance together: one row per block, one column per lane."""
    blocks = sorted(blocks, key=lambda block: -math.ceil(len(block.table) / block.lanes))
    value, slots, offset = tables.by_slot()
    table = np.concatenate([block.table for block in blocks] + [np.array([len(tables.reach) - 1])]).astype(np.int64)
    table *= SLOTS
    words = np.concatenate([block.words for block in blocks] + [np.zeros(33, np.uint16)]).astype(np.uint32)
    codes = np.zeros(len(table), np.int16)
    ends = np.cumsum([len(block.table) for block in blocks])
    starts = ends - [len(block.table) for block in blocks]
    position = np.cumsum([0] + [len(block.words) for block in blocks[:-1]])
    word_ends = position + [len(block.words) for block in blocks]
    lanes = np.array([block.lanes for block in blocks])
    width = int(lanes.max())
    state = np.full((len(blocks), width), 1 << 16, np.uint32)
    for row, block in zip(state, blocks):
        row[: block.lanes] = block.states
    lane = np.arange(width)
    element = np.where(lane < lanes[:, None], starts[:, None] + lane, len(table))
    # Trellis states of the blocks' columns, block after block, and one for idle lanes that never changes.
    widths = np.array([block.width for block in blocks])[:, None]
    column_ends = np.cumsum(widths)[:, None]
    column = column_ends - widths + lane
    trellis = np.zeros(int(column_ends[-1, 0]) + 1, np.int64)
    feedback, parity_in = (np.array([of[block.trellis_bits] for block in blocks])[:, None] for of in (FEEDBACK, INPUT))
    steps = -(-(ends - starts) // lanes)
    active = len(blocks)
    for step in range(int(steps[0])):
        while steps[active - 1] <= step:
            active -= 1
        now, x, above = element[:active], state[:active], column[:active]
        busy = now < ends[:active, None]
        place = np.where(busy, now, len(table) - 1)  # idle lanes: the table that changes nothing
        at = np.where(busy, above, len(trellis) - 1)
        before = trellis[at]
        odd = before & 1
        slot = table[place] + odd * (CLASSES * SLOTS) + (x & (SLOTS - 1))
        code = value[slot]
        codes[place] = code
        trellis[at] = before >> 1 ^ odd * feedback[:active] ^ (code & 1) * parity_in[:active]
        x = slots[slot] * (x >> 12) + offset[slot]
        short = x < 1 << 16
        rank = np.cumsum(short, axis=1)
        word = words[np.minimum(position[:active, None] + rank - 1, len(words) - 1)]
        state[:active] = np.where(short, x << 16 | word, x)
        position[:active] += rank[:, -1]
        now += lanes[:active, None]
        above += lanes[:active, None]
        above -= np.where(above >= column_ends[:active], widths[:active], 0)
    if (state != 1 << 16).any() or (position != word_ends).any():
        raise ValueError("a block of codes is damaged")
    for block, start, end in zip(blocks, starts, ends):
        block.codes = codes[start:end]


class EscapeBits:
    """Reads Exp-Golomb codes of one order with signs, lowest bits first."""

    def __init__(self, stored: bytes, order: int):
        self.bits = np.unpackbits(np.frombuffer(stored, np.uint8), bitorder="little").astype(bool)
        self.order, self.next = order, 0

    def read(self) -> tuple[int, bool]:
        one = self.next + int(np.argmax(self.bits[self.next :]))
        low = self.order + one - self.next
        bits = self.bits[one + 1 : one + low + 2].tolist()
        self.next = one + low + 2
        if low > 32 or len(bits) != low + 1:
            raise ValueError("the escapes are damaged")
        return sum(int(bit) << i for i, bit in enumerate(bits[:low])) + (1 << low) - (1 << self.order), bool(bits[low])

    def fill(self, block: Block, tables: Tables) -> np.ndarray:
        """The block's codes, in which escapes have been replaced."""
        codes = block.codes.astype(np.int32)
        for e in np.flatnonzero(block.codes < ESCAPE + 4):
            set_, parity = divmod(int(codes[e]) - ESCAPE, 2)
            table = block.table[e] + CLASSES * set_
            distance, negative = self.read()
            first = tables.reach[table] + 1
            if tables.escapes[table] == 2:
                first += (first ^ parity ^ (set_ & negative)) & 1
            magnitude = first + distance * tables.escapes[table]
            codes[e] = -magnitude - set_ if negative else magnitude
        return codes


class WeightStream:
    """One matrix of rows x columns codes. First the scales of rows and columns are decoded, then the codes."""

    def __init__(self, stored: bytes, rows: int, columns: int, trellis_bits: int, tables: Tables):
        self.rows, self.columns, self.trellis_bits = rows, columns, trellis_bits
        first, order, lanes_log2, *self.axes = struct.unpack_from("<BBBbBbB", stored)
        if first >> 4 != trellis_bits:
            raise ValueError(f"codes of a trellis of {first >> 4} bits, {trellis_bits} expected")
        (max_magnitude,) = struct.unpack_from("<I", stored, 7)
        self.first_table, lanes = tables.index(first & 15, max_magnitude, 2 if trellis_bits else 1), 1 << lanes_log2
        self.stripes = -(-columns // STRIPE_COLUMNS)
        if not trellis_bits:
            count = -(-rows * columns // (BLOCK_STEPS * lanes))
        elif lanes <= columns // self.stripes:
            count = -(-rows // TRELLIS_ROWS) * self.stripes
        else:
            raise ValueError(f"{lanes} lanes are more than a block has columns")
        words = struct.unpack_from(f"<{count + 1}I", stored, 11)
        self.parts, begin = [], 11 + 4 * (count + 1)
        for i, length in enumerate(words):
            end = begin + 4 * (1 if i == 0 else lanes) + 2 * length
            self.parts.append(stored[begin:end])
            begin = end
        self.lanes, self.escapes = lanes, EscapeBits(stored[begin:], order)
        spreads = np.repeat(np.array(self.axes[1::2]), (rows, columns))
        self.axis_block = Block(tables.index(0, MAX_REACH[0]) + spreads[:, None], 1, self.parts[0])

    def code_blocks(self, tables: Tables) -> list[Block]:
        scales = self.escapes.fill(self.axis_block, tables) + np.repeat(self.axes[0::2], (self.rows, self.columns))
        table = self.first_table + np.clip(scales[: self.rows, None] + scales[None, self.rows :], 0, CLASSES - 1)
        if self.trellis_bits:
            bands = np.split(table, range(TRELLIS_ROWS, self.rows, TRELLIS_ROWS))
            edges = [i * self.columns // self.stripes for i in range(1, self.stripes)]
            pieces = [stripe for band in bands for stripe in np.split(band, edges, axis=1)]
        else:
            block = BLOCK_STEPS * self.lanes
            pieces = np.split(table.reshape(1, -1), range(block, table.size, block), axis=1)
        self.blocks = [
            Block(piece, self.lanes, part, self.trellis_bits) for piece, part in zip(pieces, self.parts[1:])
        ]
        return self.blocks

    def codes(self, tables: Tables) -> np.ndarray:
        filled = [self.escapes.fill(block, tables) for block in self.blocks]
        if not self.trellis_bits:
            return np.concatenate(filled)
        stripes = [codes.reshape(-1, block.width) for codes, block in zip(filled, self.blocks)]
        bands = [np.hstack(stripes[i : i + self.stripes]) for i in range(0, len(stripes), self.stripes)]
        return np.vstack(bands).ravel()


def decode_weights(sections: list[tuple[bytes, int, int, int]]) -> list[np.ndarray]:
    """Codes (rows * columns,) of each (stored bytes, rows, columns, bits of the trellis down the columns)."""
    tables = Tables()
    streams = [WeightStream(*section, tables) for section in sections]
    if streams:
        decode_blocks([stream.axis_block for stream in streams], tables)
        decode_blocks([block for stream in streams for block in stream.code_blocks(tables)], tables)
    return [stream.codes(tables) for stream in streams]


# ---- The artifact ----------------------------------------------------------------------------------------------------

NONE, BROTLI, ZSTD, XZ, RANS = range(5)
PLAIN, COLUMNS, BITS, DIGITS, DIGIT_COLUMNS, PLANES = range(6)
SECTION_BYTES = 4 << 20
STEPS_PER_OCTAVE = 64
NVFP4_LEVELS = 7
DTYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I8": "i1", "U8": "u1", "I16": "<i2", "U16": "<u2", "I32": "<i4",
          "I64": "<i8", "BOOL": "u1", "BF16": "<u2"}  # fmt: skip


def elements_of(section: tuple, width: int = 1) -> bytes:
    """What a section holds, decompressed; of elements of `width` bytes in order, where their bytes lie in planes."""
    _, codec, layout, raw_bytes, stored = section
    if codec == BROTLI:
        import brotli  # a package of its own; --codec rans never needs it

        raw = brotli.decompress(stored)
    elif codec == XZ:
        dictionary = max(4096, 1 << max(0, raw_bytes - 1).bit_length())
        raw = lzma.decompress(stored, lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": dictionary}])
    elif codec == NONE:
        raw = stored
    else:
        raise ValueError(f"codec {codec} is not read here")
    if len(raw) != raw_bytes:
        raise ValueError(f"a section has {len(raw)} B, {raw_bytes} B declared")
    return np.frombuffer(raw, np.uint8).reshape(width, -1).T.tobytes() if layout == PLANES else raw


def unpack_codes(layout: int, raw: bytes, rows: int, columns: int, max_code: int) -> np.ndarray:
    """Codes (rows * columns,) of one section in a layout for general compressors."""
    count, data = rows * columns, np.frombuffer(raw, np.uint8)
    if layout in (PLAIN, COLUMNS):
        codes = data.view(np.int8).astype(np.int32)
    elif layout == BITS:
        width = max_code.bit_length() + 1
        bits = np.unpackbits(data, bitorder="little")[: count * width].reshape(count, width)
        codes = bits @ (1 << np.arange(width)) - max_code
    else:
        base = 2 * max_code + 1
        powers = base ** np.arange(next(n for n in range(9) if base ** (n + 1) > 256))
        codes = (data[:, None] // powers % base).ravel()[:count].astype(np.int32) - max_code
    return codes.reshape(columns, rows).T.ravel() if layout in (COLUMNS, DIGIT_COLUMNS) else codes


def read_sections(file: bytes) -> list[tuple[int, int, int, int, bytes]]:
    """(kind, codec, layout, raw bytes, stored bytes) of each section."""
    if file[:8] != b"\x89THMB\r\n\x1a" or struct.unpack_from("<I", file, 8) not in ((1,), (2,), (3,)):
        raise ValueError("not a thimble artifact of version 1, 2 or 3")
    count, length = struct.unpack_from("<IQ", file, 12)
    if length != len(file):
        raise ValueError(f"the file has {len(file)} B, {length} B declared")
    sections, begin = [], 32 + 20 * count
    for i in range(count):
        kind, codec, layout, _, raw_bytes, stored_bytes, _ = struct.unpack_from("<4BIIQ", file, 32 + 20 * i)
        sections.append((kind, codec, layout, raw_bytes, file[begin : begin + stored_bytes]))
        begin += stored_bytes
    return sections


def kind_of(encoding) -> str:
    """Of a tensor: "rows" (codes with row scales), "stepped", "nvfp4" or "raw"."""
    if not isinstance(encoding, str):
        return "rows"
    return "nvfp4" if encoding == "NVFP4" else "stepped" if encoding[0] == "T" else "raw"


def code_pieces(tensors: list) -> list[tuple[int, int, int]]:
    """(tensor, rows, columns) of each section of codes."""
    pieces = []
    for i, (_, shape, encoding) in enumerate(tensors):
        if kind_of(encoding) == "raw" or math.prod(shape) == 0:
            continue
        rows, columns = shape[0], math.prod(shape[1:])
        block, width = SECTION_BYTES // columns, columns
        if kind_of(encoding) == "stepped":
            block = TRELLIS_ROWS * max(1, block // TRELLIS_ROWS)
        elif block == 0:
            block, width = 1, SECTION_BYTES
        for r in range(0, rows, block):
            pieces += [(i, min(block, rows - r), min(width, columns - c)) for c in range(0, columns, width)]
    return pieces


def levels(codes: np.ndarray, bits: int) -> np.ndarray:
    """Of codes (rows, columns): 2 * code + set. All segments of the trellis are walked down together."""
    rows, columns = codes.shape
    segments = -(-rows // TRELLIS_ROWS)
    padded = np.zeros((segments * TRELLIS_ROWS, columns), np.int32)
    padded[:rows] = codes
    padded = padded.reshape(segments, TRELLIS_ROWS, columns)
    state = np.zeros((segments, columns), np.int32)
    for row in range(min(rows, TRELLIS_ROWS)):
        code, odd = padded[:, row], state & 1
        state = state >> 1 ^ odd * FEEDBACK[bits] ^ (code & 1) * INPUT[bits]
        padded[:, row] = 2 * code + odd
    return padded.reshape(-1, columns)[:rows]


def ue4m3(codes: np.ndarray) -> np.ndarray:
    exponent, mantissa = (codes >> 3).astype(np.int32), (codes & 7).astype(np.float32)
    return np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(8 + mantissa, exponent - 10)).astype(np.float32)


def nvfp4_weights(part: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Of levels (rows, columns) and the bytes of tensor scale and block scales."""
    rows, columns = part.shape
    elements = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)[np.abs(part)] * np.sign(part).astype(np.float32)
    blocks = np.repeat(ue4m3(scales[4:]).reshape(rows, -(-columns // 16)), 16, axis=1)[:, :columns]
    return elements * blocks * scales[:4].view("<f4")


class Stream:
    """Elements of `width` bytes that follow each other in `sections`, an iterator; the last of them ends a section."""

    def __init__(self, sections, width: int):
        self.sections, self.width, self.left = sections, width, b""

    def take(self, count: int, dtype: str) -> np.ndarray:
        parts, missing = [self.left], count * self.width - len(self.left)
        while missing > 0:
            parts.append(elements_of(next(self.sections), self.width))
            missing -= len(parts[-1])
        elements = b"".join(parts)
        self.left = memoryview(elements)[count * self.width :]
        return np.frombuffer(elements, dtype, count)


def read_codes(coded, tensors: list) -> dict[int, np.ndarray]:
    """Codes (rows, columns) of each coded tensor, from its sections."""
    pieces = code_pieces(tensors)
    bits = {i: int(of[1:]) for i, (_, _, of) in enumerate(tensors) if kind_of(of) == "stepped"}
    in_rans = [(section[4], rows, columns, bits.get(i, 0))
               for section, (i, rows, columns) in zip(coded, pieces) if section[1] == RANS]  # fmt: skip
    streams = iter(decode_weights(in_rans))
    codes = {i: [np.zeros(0, np.int32)] for i, (_, _, of) in enumerate(tensors) if kind_of(of) != "raw"}
    for section, (i, rows, columns) in zip(coded, pieces):
        if section[1] == RANS:
            part = next(streams)
        elif i in bits:
            part = np.frombuffer(elements_of(section, 4), "<i4")
        else:
            max_code = NVFP4_LEVELS if kind_of(tensors[i][2]) == "nvfp4" else tensors[i][2]
            part = unpack_codes(section[2], elements_of(section), rows, columns, max_code)
        codes[i].append(part)
    shapes = {i: (tensors[i][1][0], math.prod(tensors[i][1][1:])) for i in codes}
    return {i: np.concatenate(parts).reshape(shapes[i]) for i, parts in codes.items()}


def load(path) -> dict[str, np.ndarray]:
    """Float32 tensors by name, one matrix per layer."""
    sections = read_sections(Path(path).read_bytes())
    tensors = json.loads(elements_of(sections[0]))["tensors"]
    count = len(code_pieces(tensors))
    codes, rest = read_codes(sections[1 : 1 + count], tensors), iter(sections[1 + count :])
    result, scales, block_scales = {}, Stream(rest, 2), Stream(rest, 1)
    for i in sorted(codes, key=lambda i: kind_of(tensors[i][2]) == "nvfp4"):  # whose scales come after the others
        (name, shape, encoding), part = tensors[i], codes[i]
        rows, columns = part.shape
        if kind_of(encoding) == "stepped":
            sizes = np.exp2(scales.take(rows + columns, "<i2") / np.float64(STEPS_PER_OCTAVE)).astype(np.float32)
            weights = levels(part, int(encoding[1:])).astype(np.float32) * sizes[:rows, None] * sizes[rows:]
        elif kind_of(encoding) == "nvfp4":
            weights = nvfp4_weights(part, block_scales.take(4 + rows * -(-columns // 16), "u1"))
        else:
            weights = part.astype(np.float32) * scales.take(rows, "<f2").astype(np.float32)[:, None]
        result[name] = weights.reshape(shape)
    for width in (1, 2, 4, 8):
        stream = Stream(rest, width)
        for name, shape, dtype in tensors:
            if kind_of(dtype) != "raw" or np.dtype(DTYPES[dtype]).itemsize != width:
                continue
            values = stream.take(math.prod(shape), DTYPES[dtype])
            values = (values.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else values.astype(np.float32)
            result[name] = values.reshape(shape)
    return result


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    for name, tensor in sorted(load(sys.argv[1]).items()):
        print(f"{name:40} {list(tensor.shape)!s:16} {tensor.std():.6f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
