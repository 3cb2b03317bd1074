// weight_coder.h: entropy coding of integer codes of weight matrices: static rANS over interleaved lanes, with
// probabilities from a scale per row and per column. docs/reference/weight_coder.md describes the stream and its
// choices.
// Integers alone: equal codes give equal bytes, and equal bytes equal codes, on every machine and any number of
// threads. A stream has no checksum of its own; the container has. R = rows, K = columns.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/byte_cursor.h"

namespace thimble {

// Magnitudes up to 2^31 - 1, with a trellis 2^31 - 2; rows and columns at least 1.
struct CodeMatrix {
  uint64_t rows = 0;
  uint64_t columns = 0;
  std::span<const int32_t> codes;  // (R, K) row-major
  int trellis_bits = 0;            // as below
};

// One matrix. Code is int8_t or int32_t; codes: (R, K) row-major, never the lowest value of their type.
// trellis_bits: of the trellis down the columns (runtime/codes/trellis.h), which starts in the first row: the coder
// makes use of the set of each code. 0: none. With one, magnitudes are less than the highest value of the type.
template <typename Code>
ByteVector encode_weights(std::span<const Code> codes, uint64_t rows, uint64_t columns, int trellis_bits = 0);

// The inverse. Anything but a stream of exactly rows x columns codes of such a trellis is a FormatError(where, ...).
template <typename Code>
std::vector<Code> decode_weights(Bytes stored, uint64_t rows, uint64_t columns, const std::string& where,
                                 int trellis_bits = 0);

// The same, part by part: room(n) gives the place of the next n codes: at most 2^19, with a trellis kTrellisRows rows.
// Memory of its own: four bytes per row and column; per code of a block, of which there are at most 2^19, one byte,
// with a trellis sizeof(Code) more, and 16 for each that is an escape. None of it before the stream's lengths add up.
template <typename Code>
using CodeRoom = std::function<std::span<Code>(uint64_t count)>;
template <typename Code>
void decode_weights_into(const CodeRoom<Code>& room, Bytes stored, uint64_t rows, uint64_t columns,
                         const std::string& where, int trellis_bits = 0);

// Length of encode_weights()'s result, within 0.5% or 64 B, without the coding itself: for searches.
template <typename Code>
uint64_t estimate_weight_bytes(std::span<const Code> codes, uint64_t rows, uint64_t columns, int trellis_bits = 0);

// Many matrices in parallel, each a stream of its own.
std::vector<ByteVector> encode_weights(std::span<const CodeMatrix> matrices);
std::vector<uint64_t> estimate_weight_bytes(std::span<const CodeMatrix> matrices);

}  // namespace thimble
