// weight_coder.h: entropy coding of integer codes of weight matrices: static rANS over interleaved lanes, with
// probabilities from a scale per row and per column. docs/weight_coder.md describes the stream and its choices.
// Integers alone: equal codes give equal bytes, and equal bytes equal codes, on every machine and any number of
// threads. A stream has no checksum of its own; the container has. R = rows, K = columns.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/byte_cursor.h"

namespace thimble {

// Magnitudes up to 2^31 - 1; rows and columns at least 1.
struct CodeMatrix {
  uint64_t rows = 0;
  uint64_t columns = 0;
  std::span<const int32_t> codes;  // (R, K) row-major
};

// One matrix. Code is int8_t or int32_t; codes: (R, K) row-major, never the lowest value of their type.
template <typename Code>
ByteVector encode_weights(std::span<const Code> codes, uint64_t rows, uint64_t columns);

// The inverse. Anything but a stream of exactly rows x columns codes is a FormatError(where, ...).
template <typename Code>
std::vector<Code> decode_weights(Bytes stored, uint64_t rows, uint64_t columns, const std::string& where);

// The same, block by block: room(n) gives the place of the next n codes, at most 2^19 at a time. Memory of its own:
// four bytes per row and column and one per code of a block, none of it before the stream's lengths add up.
template <typename Code>
using CodeRoom = std::function<std::span<Code>(uint64_t count)>;
template <typename Code>
void decode_weights_into(const CodeRoom<Code>& room, Bytes stored, uint64_t rows, uint64_t columns,
                         const std::string& where);

// Length of encode_weights()'s result, within 0.5% or 64 B, without the coding itself: for searches.
template <typename Code>
uint64_t estimate_weight_bytes(std::span<const Code> codes, uint64_t rows, uint64_t columns);

// Many matrices in parallel, each a stream of its own.
std::vector<ByteVector> encode_weights(std::span<const CodeMatrix> matrices);
std::vector<uint64_t> estimate_weight_bytes(std::span<const CodeMatrix> matrices);

}  // namespace thimble
