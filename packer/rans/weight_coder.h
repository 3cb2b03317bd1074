// weight_coder.h: entropy coding of integer codes of weight matrices: static rANS over interleaved lanes, with
// probabilities from a scale per row and per column. docs/reference/weight_coder.md describes the stream and its
// choices.
// Integers alone: equal codes give equal bytes, and equal bytes equal codes, on every machine and any number of
// threads. A stream has no checksum of its own; the container has. R = rows, K = columns, both at least 1.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>

#include "packer/rans/weight_blocks.h"
#include "runtime/base/byte_cursor.h"

namespace thimble {

// Of a code; with a trellis one less, so that code -magnitude - 1 is not the lowest integer.
constexpr uint32_t kMaxCodeMagnitude = std::numeric_limits<int32_t>::max();

// One matrix. codes: (R, K) row-major, magnitudes up to kMaxCodeMagnitude.
// trellis_bits: of the trellis down the columns (runtime/codes/trellis.h), which starts in the first row: the coder
// makes use of the set of each code. 0: none.
ByteVector encode_weights(std::span<const int32_t> codes, uint64_t rows, uint64_t columns, int trellis_bits);

// The inverse, block by block in their order: take(block, codes) is given those of a block, run after run.
// Anything but a stream of exactly R x K codes of such a trellis, and a largest magnitude of at most `most_magnitude`,
// is a FormatError(where, ...).
// Memory: decoder_memory(). None of it before the stream's lengths add up.
using TakeBlock = std::function<void(const WeightBlock& block, std::span<const int32_t> codes)>;
void decode_weights(const TakeBlock& take, Bytes stored, uint64_t rows, uint64_t columns, const std::string& where,
                    int trellis_bits, uint32_t most_magnitude = kMaxCodeMagnitude);

// What a stream says of its largest code: of magnitude kMaxCodeMagnitude at most, with a trellis one less. Decoding
// finds none that is larger. Reads nothing but its head: kStreamHeadBytes.
constexpr size_t kStreamHeadBytes = 3 + 2 * 2 + sizeof(uint32_t);
uint32_t largest_magnitude(Bytes stored, const std::string& where, int trellis_bits);

// Most bytes that decode_weights() takes at a time for a matrix of this shape.
uint64_t decoder_memory(uint64_t rows, uint64_t columns, int trellis_bits);

}  // namespace thimble
