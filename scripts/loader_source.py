"""loader_source.py: what `thimble loader` writes for one artifact, before it is minified: a reader in as few bytes as
possible, for budgets that count code. scripts/make_loader minifies it into quantizer/checkpoints/loader_script.py.in.

The same algorithm as read_thmb.py, whose words the names are, for artifacts of method slope in the weight coder alone.
Names in capitals are what the artifact fixes, which the program fills in. Nothing is checked: `thimble verify` does that.
Positions count bytes of the file, but where they are codes of `levels`: matrices follow each other there, each with a
row to spare, since the state of a column is left where the element below is going to find it.
"""

import json
import lzma
import math

import numpy as np

reach, counts, values, escapes = [], [], [], []


def add_tables(shape, most, more):
    """Those of 37 classes of a density; with more = 1 for both sets of a trellis, else for one."""
    global reach, counts, values
    ratio, decay = SHAPES[shape]
    weight, sums = 1 << 30, [0]
    for i in range(256):
        sums += [sums[-1] + weight]
        weight, ratio = weight * ratio >> 30, ratio * decay >> 30
    total = sums[-1]
    sums += [total] * 999
    for i in range(37 << more):
        odd, edges = i // 37, []
        for n in range(min(most + 1, 128 - more)):
            p = (2 * n + 1 + odd) * int(2 ** (23 - i % 37 / 4))
            q = sums[p >> 16]
            q += (sums[(p >> 16) + 1] - q) * (p % 65536) >> 16
            edges += [q]
            if total - q << 12 < total:
                break
        if n == most:
            edges[n] = total
        p = total << more
        escape = [((total - q << 12) + p // 2) // p or 1] * ((n < most) << more)
        side = [((b - a << 12) + total) // 2 // total or 1 for a, b in zip(edges, edges[1:])]
        left = 4096 - 2 * sum(side) - sum(escape)
        counts += side[::-1] + [left // 2] * odd + [left - left // 2 * odd] + side + escape
        values += [*range(-n - odd, n + 1)] + [-998, -997][:len(escape)]
        reach += [n + 1]


def decode(tables, blocks, more):
    """Levels of all blocks, which advance together: one row per block, one column per lane. `tables` of each code."""
    starts, slots, value = np.cumsum([0] + counts), np.array(counts), np.array(values)
    owner = np.repeat(range(len(counts)), counts)
    _, first, width, stride, count, lanes, at = np.array(blocks).T[:, :, None]
    lane = np.arange(32)
    x = long[at + 4 * lane]
    at = at + 4 * lanes - 2
    e = lane + 0 * at  # elements of the block, row-major
    count = count * (lane < lanes)
    levels = tables * 0
    states = tables * 0
    while (busy := e < count).any():
        # Where idle lanes put what they make, nothing is read.
        p = np.where(busy, first + e // width * stride + e % width, -1 - stride)
        s = (e >= width) * 1 * states[p]
        odd = s & 1
        slot = (tables[p] + odd * 37 << 12) + x % 4096
        t = owner[slot]
        q = value[t]
        levels[p] = (q << more) + odd
        states[p + stride] = s >> 1 ^ odd * FEEDBACK ^ (q & more) * INPUT
        x = slots[t] * (x >> 12) + slot - starts[t]
        short = busy & (x < 1 << 16)
        p = at + 2 * short.cumsum(1)
        x = np.where(short, x << 16 | words[p], x)
        at = p[:, -1:]
        e += lanes
    for s, first, width, stride, count, *_ in blocks:
        e = np.arange(count)
        e = first + e // width * stride + e % width
        for i in e[levels[e] < -900]:
            # Exp-Golomb
            odd = levels[i] & more
            bits, order = escapes[s]
            n = (bits & -bits).bit_length()
            bits >>= n
            n += order - 1
            m = bits >> n & 1
            d = reach[tables[i] + 37 * odd]
            d += (d ^ levels[i] >> more ^ odd & m) & more
            d += bits % (1 << n) + (1 << n) - (1 << order) << more
            levels[i] = ((d ^ -m) + (m & ~odd) << more) + odd
            escapes[s][0] = bits >> n + 1
    return levels


def load(path):
    """Float32 tensors by name, one matrix per layer."""
    global words, long
    file = open(path, "rb").read()
    words = np.array([*file])
    words = words[:-1] + words[1:] * 256
    long = words[:-2] + (words[2:] << 16)
    unpack = lambda i, k: DECOMPRESS(file[i:k], ARGUMENTS)  # noqa: E731
    sizes = np.exp2(np.frombuffer(unpack(SCALES, RAW), SCALE_TYPE) / 64).astype("f4")
    raw = np.frombuffer(unpack(RAW, END), RAW_TYPE).astype("f4")
    tensors = json.loads(unpack(HEADER, CODES))["tensors"]
    k = CODES
    keys, blocks, base, j, result = [], [], 0, 60, {}
    tables = np.zeros(TOTAL, LEVEL_TYPE)
    add_tables(0, 127, 0)
    for name, n, of in tensors:
        if of > "T":
            rows, *n = n
            columns = math.prod(n)
            first, order, lanes, a, b, c, d = file[k:k + 7]
            stripes = -(-columns // 1024)
            n = -(-rows // 512) * stripes
            at = k + 19 + 4 * n + 2 * long[k + 11]
            axis = [(len(keys), 0, 1, 1, rows + columns, 1, k + 15 + 4 * n)]
            width = columns // stripes
            for i in range(n):
                r = i // stripes * 512
                corner = base + r * columns + i % stripes * width
                blocks += [(len(keys), corner, width, columns, min(512, rows - r) * width, 1 << lanes, at)]
                at += (4 << lanes) + 2 * long[k + 15 + 4 * i]
            i = k
            k += long[j]
            j += 20
            escapes.append([int.from_bytes(file[at:k], "little"), order])
            n = rows, columns, 99
            t = decode(np.repeat([b, d, 0], n), axis, 0) + np.repeat([a, (c ^ 128) - 128, 0], n)
            n = base + rows * columns
            tables[base:n] = np.clip(t[:rows, None] + t[rows:-99], 0, 36).ravel() + 37 + 74 * len(keys)
            base = n + columns
            keys += [(first & 15, long[i + 7], 1)]
    for i in keys:
        add_tables(*i)
    levels = decode(tables, blocks, 1).astype("f4")
    a = b = c = 0
    for name, shape, of in tensors:
        n = math.prod(shape)
        if of > "T":
            d = shape[0]
            k = n // d
            t = levels[a:a + n].reshape(d, k) * sizes[b:(b := b + d), None] * sizes[b:(b := b + k)]
            a += n + k
        else:
            t = raw[c:(c := c + n)]
        result[name] = t.reshape(shape)
    return result

