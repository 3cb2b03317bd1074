"""loader_source.py: what `thimble loader` writes for one artifact, before it is minified: a reader in as few bytes as
possible, for budgets that count code. scripts/make_loader minifies it into quantizer/checkpoints/loader_numpy.py.in and,
with TORCH true, loader_torch.py.in, which decodes on a GPU.

The same algorithm as read_thmb.py, whose words the names are, for artifacts of method slope in the weight coder alone.
Names in capitals are what the artifact fixes, which the program fills in. Nothing is checked: `thimble verify` does that.
Positions count bytes of the file, but where they are codes of `levels`: matrices follow each other there, each with a
row to spare, since the state of a column is left where the element below is going to find it.
"""

import json
import lzma
import math

if TORCH:
    import torch as np
else:
    import numpy as np

counts, values, reach, escapes = [], [], [], {}


def add_tables(shape, most, more):
    """Those of 37 classes of a density; with more = 1 for both sets of a trellis, else for one."""
    global counts, values, reach
    ratio, decay = SHAPES[shape]
    weight, sums = 1 << 30, [0]
    for i in range(256):
        sums += [sums[-1] + weight]
        weight, ratio = weight * ratio >> 30, ratio * decay >> 30
    total = sums[-1]
    sums += [total] * 999
    for i in range(37 << more):
        odd, side, q = i // 37, [], 0
        for n in range(128 - more):
            a = q
            p, t = divmod((2 * n + 1 + odd) * int(2 ** (23 - i % 37 / 4)), 65536)
            q = sums[p]
            q += (sums[p + 1] - q) * t >> 16
            q = (q, total)[n == most]
            side += [((q - a << 12) + total) // 2 // total or 1]
            if total - q << 12 < total:
                break
        side = side[1:]
        escape = [(((total - q << 13 - more) + total) // 2 // total or 1) * (n < most)] * (more + 1)
        left = 4096 - 2 * sum(side) - sum(escape)
        counts += side[::-1] + [left // 2] * odd + [left - left // 2 * odd] + side + escape
        values += [*range(-n - odd, n + 1), *range(-998, more - 997)]
        reach += [n + 1]


def decode(tables, blocks, more):
    """Levels of all blocks, which advance together: one row per block, one column per lane. `tables` of each code."""
    slots, value = np.array(counts), np.array(values)
    owner = np.repeat_interleave(slots) if TORCH else np.arange(len(counts)).repeat(slots)
    starts = slots.cumsum(0) - slots
    _, first, width, stride, count, lanes, at = np.array(blocks).T[:, :, None]
    lane = np.arange(32)
    count = count * (lane < lanes)
    x = long[at + 4 * lane]
    at = at + 4 * lanes - 2
    e = lane + 0 * at  # elements of the block, row-major
    levels = tables * 0
    states = tables * 0

    def step():
        busy = e < count
        # Idle lanes put what they make where nothing is read: at the end, which is to spare.
        p = (first + e // width * stride + e % width + 1) * busy - 1
        s = (e >= width) * states[p]
        odd = s & 1
        slot = tables[p] + odd * 37 << 12 | x % 4096
        t = owner[slot]
        q = value[t]
        levels[p] = q << more | odd
        states[p + stride * busy] = s >> 1 ^ odd * FEEDBACK ^ (q & more) * INPUT
        q = slots[t] * (x >> 12) + slot - starts[t]
        busy &= q < 65536
        p = at + 2 * busy.cumsum(1)
        x[:] = q << 16 * busy | words[p] * busy
        at[:] = p[:, -1:]
        e[:] += lanes

    if TORCH:
        graph = np.cuda.CUDAGraph()
        with np.cuda.graph(graph):
            step()
        step = graph.replay
    for _ in range(1 + (count // lanes).max()):
        step()
    for s, first, width, stride, count, *_ in blocks:
        e = np.arange(count)
        e = first + e // width * stride + e % width
        for p in e[levels[e] < -900].tolist():
            # Exp-Golomb
            q = int(levels[p])
            odd = q & more
            bits, order = escapes[s]
            n = (bits & -bits).bit_length()
            bits >>= n
            n += order - 1
            a = 1 << n
            m = bits >> n & 1
            d = reach[tables[p] + 37 * odd]
            d += (d ^ q >> 1 ^ odd & m) & more
            d += bits % a + a - (1 << order) << more
            levels[p] = (d ^ -m) + (m & ~odd) << more | odd
            escapes[s] = bits >> n + 1, order
    return levels


def load(path):
    """Float32 tensors by name, one matrix per layer."""
    with np.device("cuda"):
        global words, long
        file = open(path, "rb").read()
        words = np.frombuffer(file, np.uint8).astype("i8")
        words = words[:-1] + words[1:] * 256
        long = words[:-2] + (words[2:] << 16)
        unpack = lambda i, k: np.frombuffer(DECOMPRESS(file[i:k], ARGUMENTS), np.uint8)  # noqa: E731
        tensors = json.loads(bytes(unpack(HEADER, CODES)))["tensors"]
        sizes = (2 ** (unpack(SCALES, RAW).SCALE_PLANES.view(np.short).astype("f8") / 64)).astype("f4")
        raw = unpack(RAW, END).RAW_PLANES.view(np.RAW_TYPE).astype("f4")
        k = CODES
        blocks, axes, axis, base, j, result = [], [], [], 0, 60, {}
        add_tables(0, 127, 0)
        for name, n, of in tensors:
            if of > "T":
                rows, columns = n
                first, order, lanes, a, b, c, d = file[k:k + 7]
                s = len(reach)
                add_tables(first & 15, int(long[k + 7]), 1)
                stripes = -(-columns // 1024)
                width = columns // stripes
                n = -(-rows // 512) * stripes
                at = k + 15 + 4 * n
                axes += [(s, len(axis), rows, rows, rows + columns, 1, at)]
                axis += [(b, a)] * rows + [(d, (c ^ 128) - 128)] * columns
                at = at + 4 + 2 * long[k + 11]
                for i in range(n):
                    r = i // stripes * 512
                    blocks += [(s, base + r * columns + i % stripes * width, width, columns,
                                min(512, rows - r) * width, 1 << lanes, at)]
                    at = at + (4 << lanes) + 2 * long[k + 15 + 4 * i]
                base += (rows + 1) * columns
                k += long[j]
                j += 20
                escapes[s] = int.from_bytes(file[at:k], "little"), order
        tables, t = np.array(axis * 2).T
        t = decode(tables, axes, 0) + t
        tables = []
        for s, a, b, _, n, *_ in axes:
            tables += [(t[a:a + b + 1, None] + t[a + b:a + n]).clip(0, 36).ravel() + s]
        levels = decode(np.hstack(tables), blocks, 1).astype("f4")
        a = b = c = 0
        for name, shape, of in tensors:
            if of > "T":
                d, k = shape
                t = levels[a:(a := a + d * k)].reshape(shape) * sizes[b:(b := b + d), None] * sizes[b:(b := b + k)]
                a += k
            else:
                t = raw[c:(c := c + math.prod(shape))]
            result[name] = t.reshape(shape)
        return result
