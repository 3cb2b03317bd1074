#!/usr/bin/env python3
"""Text that tokenizers find hard, made from a seed: ten scripts, code, emoji, digits, white space, combining marks,
random code points.

  mixed_text.py OUTPUT [--bytes 2000000] [--seed 1]
"""
import argparse
import random
import sys

SCRIPTS = {  # ranges of letters, marks and punctuation that belong together
    "latin": [(0x41, 0x5A), (0x61, 0x7A), (0x61, 0x7A), (0xC0, 0x24F), (0x1E00, 0x1EFF)],
    "greek": [(0x391, 0x3A1), (0x3A3, 0x3C9), (0x1F00, 0x1F15), (0x300, 0x304)],
    "cyrillic": [(0x410, 0x44F), (0x430, 0x44F), (0x483, 0x487), (0x48A, 0x4FF)],
    "hebrew": [(0x5D0, 0x5EA), (0x5D0, 0x5EA), (0x5B0, 0x5C7), (0xFB1D, 0xFB36)],
    "arabic": [(0x620, 0x64A), (0x64B, 0x65F), (0x660, 0x66D), (0x671, 0x6D3), (0xFB50, 0xFBB1)],
    "devanagari": [(0x904, 0x939), (0x93A, 0x94F), (0x958, 0x961), (0x964, 0x96F)],
    "thai": [(0xE01, 0xE3A), (0xE40, 0xE4E), (0xE50, 0xE59)],
    "han": [(0x4E00, 0x9FFF), (0x4E00, 0x4FFF), (0x3001, 0x3011), (0xF900, 0xFA2D)],
    "kana": [(0x3041, 0x3096), (0x3099, 0x309C), (0x30A1, 0x30FF), (0xFF61, 0xFF9F)],
    "hangul": [(0xAC00, 0xD7A3), (0xAC00, 0xD7A3), (0x1100, 0x1112), (0x1161, 0x1175), (0x11A8, 0x11C2)],
}
CODE = """def f(x, *, y=0x1F):
    \"\"\"Doc's string.\"\"\"
\treturn [i ** 2 for i in range(12345) if i != y]  # we're here
for (int32_t i = 0; i < n; ++i) { a[i] += b[i] * 3.14159e-10f; }\r
SELECT * FROM "t" WHERE id >= 1000000 AND name LIKE 'O''Brien%';
<div class="x">&nbsp;</div>\t\t\t\\n\\\\server\\path C:\\temp $HOME/.bashrc | grep -v '^#' && echo "it's done!!"
""".splitlines(keepends=True)
SPACES = [" "] * 12 + ["  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028", "\u0085", "    "]
APOSTROPHES = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "\u2019s", "'\u017f", "'"]
PUNCTUATION = list(".,;:!?()[]{}<>/\\|@#$%^&*-_=+~`\"") + ["...", "\u2026", "\u2014", "\u00ab", "\u3002", "\u2581", "<|x|>"]
EMOJI = [(0x1F300, 0x1F64F), (0x1F680, 0x1F6FF), (0x1F900, 0x1F9FF), (0x2600, 0x27BF)]
DIGITS = [0x30, 0x30, 0x30, 0x660, 0x966, 0xE50, 0xFF10, 0x1D7CE]


def character(source, ranges):
    return chr(source.randint(*source.choice(ranges)))


def word(source):
    ranges = SCRIPTS[source.choice(list(SCRIPTS))]
    text = "".join(character(source, ranges) for _ in range(source.randint(1, 9)))
    return text + (source.choice(APOSTROPHES) if source.random() < 0.1 else "")


def emoji(source):
    parts = [character(source, EMOJI) + source.choice(["", "", "\ufe0f", chr(source.randint(0x1F3FB, 0x1F3FF))])
             for _ in range(source.randint(1, 4))]
    return source.choice(["", "\u200d"]).join(parts)


def anything(source):
    """Code points of all planes, assigned or not, but surrogates."""
    points = []
    for _ in range(source.randint(1, 12)):
        point = source.randrange(*source.choice([(0, 0x3000), (0, 0xD800), (0xE000, 0x20000), (0xE000, 0x110000)]))
        points.append(chr(point))
    return "".join(points)


def stretch(source):
    kind = source.random()
    if kind < 0.55:
        return word(source)
    if kind < 0.65:
        return source.choice(CODE)
    if kind < 0.75:
        zero = source.choice(DIGITS)
        return "".join(chr(zero + source.randrange(10)) for _ in range(source.randint(1, 12)))
    if kind < 0.82:
        return emoji(source)
    if kind < 0.9:
        return "".join(source.choice(PUNCTUATION) for _ in range(source.randint(1, 4)))
    if kind < 0.93:
        return source.choice([" ", "\n", "\t", "=", "a", "\u0301", "1"]) * source.randint(2, 70)
    return anything(source)


def mixed_text(least_bytes, seed):
    source = random.Random(seed)
    parts, size = [], 0
    while size < least_bytes:
        parts.append(stretch(source) + source.choice(SPACES + [""] * 6))
        size += len(parts[-1].encode())
    return "".join(parts)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("output")
    options.add_argument("--bytes", type=int, default=2_000_000)
    options.add_argument("--seed", type=int, default=1)
    arguments = options.parse_args()
    with open(arguments.output, "wb") as file:
        file.write(mixed_text(arguments.bytes, arguments.seed).encode())


if __name__ == "__main__":
    sys.exit(main())
