#!/usr/bin/env python3
"""Writes eval/tokenizers/unicode_tables.h: where characters are not what PCRE2 and utf8proc say, since the `tokenizers`
library knows other versions of Unicode. Needs Python 3.11 (Unicode 14), unicodedata2 16.0 (Unicode 16), perl.

  make_unicode_tables.py > eval/tokenizers/unicode_tables.h
"""
import subprocess
import unicodedata

import unicodedata2

NEWEST = "16.0.0"
HEAD = """// unicode_tables.h: made by tests/eval/tokenizers/make_unicode_tables.py; what for: unicode_versions.h.
#pragma once

#include <utf8proc.h>

#include <cstdint>

namespace thimble {

struct CodePointRange {
  uint32_t first = 0, last = 0;
};
struct CategoryRange {
  uint32_t first = 0, last = 0;
  utf8proc_category_t category = UTF8PROC_CATEGORY_CN;
};
"""


def ranges(values):
    """[(first, last, value)] of neighbours with equal values."""
    found = []
    for point, value in values:
        if found and found[-1][1] == point - 1 and found[-1][2] == value:
            found[-1][1] = point
        else:
            found.append([point, point, value])
    return found


def points_newer_than(version):
    program = 'for (0..0x10ffff) { print "$_\\n" if chr($_) !~ /\\p{Present_In: %s}/ }' % version
    return {int(line) for line in subprocess.run(["perl", "-e", program], check=True, capture_output=True, text=True)
            .stdout.split()}


def in_compositions():
    points = set()
    for point in range(0x110000):
        parts = unicodedata2.decomposition(chr(point)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            points.update(int(part, 16) for part in parts)
    return points


def print_table(kind, name, entries):
    print(f"constexpr {kind} {name}[] = {{")
    line = "   "
    for entry in entries:
        if len(line) + len(entry) + 2 > 120:
            print(line)
            line = "   "
        line += f" {entry},"
    print(line + "\n};")


def main():
    assert unicodedata.unidata_version == "14.0.0" and unicodedata2.unidata_version == NEWEST
    print(HEAD)
    print("// General categories of what Unicode 15 and 16 added.")
    added = [(point, unicodedata2.category(chr(point))) for point in range(0x110000)
             if unicodedata.category(chr(point)) == "Cn" and unicodedata2.category(chr(point)) != "Cn"]
    print_table("CategoryRange", "kNewCategories",
                [f"{{0x{first:x}, 0x{last:x}, UTF8PROC_CATEGORY_{category.upper()}}}"
                 for first, last, category in ranges(added)])
    print("\n// What Unicode added after version 9 and normal forms change, reorder or compose.")
    newer, composing = points_newer_than("9.0"), in_compositions()
    changed = [(point, True) for point in sorted(newer)
               if unicodedata2.combining(chr(point)) or unicodedata2.decomposition(chr(point)) or point in composing]
    print_table("CodePointRange", "kNewInNormalForms",
                [f"{{0x{first:x}, 0x{last:x}}}" for first, last, _ in ranges(changed)])
    print("\n}  // namespace thimble")


main()
