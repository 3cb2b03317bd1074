// gguf_blocks.cpp: see gguf_blocks.h. Layouts: ggml-common.h; formulas: dequantize_row_* of ggml-quants.c.
#include "quantizer/formats/gguf_blocks.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>

#include "runtime/base/byte_cursor.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

constexpr int kSmall = 32, kSuper = 256;  // elements of a block, and of one of the "K" types

int byte_at(const std::byte* at) { return std::to_integer<int>(*at); }
int signed_at(const std::byte* at) { return static_cast<int8_t>(byte_at(at)); }
float half_at(const std::byte* at) { return float_from_fp16(load_little_endian<uint16_t>(at)); }

// Code i of 32 in 4 bits: the low halves of 16 bytes, then the high ones.
int nibble(const std::byte* codes, int i) { return byte_at(codes + i % 16) >> (i / 16 * 4) & 15; }

void q4_0(const std::byte* block, float* values) {
  const float d = half_at(block);
  for (int i = 0; i < kSmall; ++i) values[i] = d * static_cast<float>(nibble(block + 2, i) - 8);
}

void q4_1(const std::byte* block, float* values) {
  const float d = half_at(block), m = half_at(block + 2);
  for (int i = 0; i < kSmall; ++i) values[i] = d * static_cast<float>(nibble(block + 4, i)) + m;
}

// Their fifth bits are those of a word.
void q5_0(const std::byte* block, float* values) {
  const float d = half_at(block);
  const auto high = load_little_endian<uint32_t>(block + 2);
  for (int i = 0; i < kSmall; ++i) {
    const int code = nibble(block + 6, i) | static_cast<int>(high >> i & 1) << 4;
    values[i] = d * static_cast<float>(code - 16);
  }
}

void q5_1(const std::byte* block, float* values) {
  const float d = half_at(block), m = half_at(block + 2);
  const auto high = load_little_endian<uint32_t>(block + 4);
  for (int i = 0; i < kSmall; ++i) {
    const int code = nibble(block + 8, i) | static_cast<int>(high >> i & 1) << 4;
    values[i] = d * static_cast<float>(code) + m;
  }
}

void q8_0(const std::byte* block, float* values) {
  const float d = half_at(block);
  for (int i = 0; i < kSmall; ++i) values[i] = static_cast<float>(signed_at(block + 2 + i)) * d;
}

// Code i of 256 in 2 bits: of each 32 bytes, bits 0 and 1 are 32 codes, then bits 2 and 3, ...
int pair_of_bits(const std::byte* codes, int i) {
  return byte_at(codes + i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
}

// 16 B of scales and minima in 4 bits for every 16 elements, 64 B of codes, d, dmin.
void q2_k(const std::byte* block, float* values) {
  const float d = half_at(block + 80), dmin = half_at(block + 82);
  for (int i = 0; i < kSuper; ++i) {
    const int scale = byte_at(block + i / 16);
    const float dl = d * static_cast<float>(scale & 15), ml = dmin * static_cast<float>(scale >> 4);
    values[i] = dl * static_cast<float>(pair_of_bits(block + 16, i)) - ml;
  }
}

// Scale of 16 elements in 6 bits: the low 4 of 16 scales in 8 bytes, their high 2 in the next 4.
int q3_scale(const std::byte* scales, int i) {
  const int low = byte_at(scales + i % 8) >> (i / 8 * 4) & 15, high = byte_at(scales + 8 + i % 4) >> (i / 4 * 2) & 3;
  return (low | high << 4) - 32;
}

// 32 B of third bits (unset: 4 less), 64 B of codes, 12 B of scales, d.
void q3_k(const std::byte* block, float* values) {
  const float d = half_at(block + 108);
  for (int i = 0; i < kSuper; ++i) {
    const float dl = d * static_cast<float>(q3_scale(block + 96, i / 16));
    const bool is_high = (byte_at(block + i % 32) >> (i / 32) & 1) != 0;
    values[i] = dl * static_cast<float>(pair_of_bits(block + 32, i) - (is_high ? 0 : 4));
  }
}

// Scale and minimum of 32 elements, 6 bits each: of the first four in 8 bytes, whose upper bits and the last 4 bytes
// are those of the others.
struct ScaleAndMinimum {
  int scale, minimum;
};
ScaleAndMinimum q4_scale(const std::byte* scales, int i) {
  if (i < 4) return {byte_at(scales + i) & 63, byte_at(scales + 4 + i) & 63};
  const int low = byte_at(scales + 4 + i);
  return {(low & 15) | (byte_at(scales + i - 4) >> 6) << 4, low >> 4 | (byte_at(scales + i) >> 6) << 4};
}

// d, dmin, 12 B of scales; for 5 bits 32 B of fifth bits; 128 B of codes: of each 32 bytes the low halves are 32 codes,
// then the high ones.
template <int kBits>
void q4_or_q5_k(const std::byte* block, float* values) {
  const float d = half_at(block), dmin = half_at(block + 2);
  const std::byte *fifth_bits = block + 16, *codes = fifth_bits + (kBits == 5 ? 32 : 0);
  for (int i = 0; i < kSuper; ++i) {
    const auto [scale, minimum] = q4_scale(block + 4, i / 32);
    const float dl = d * static_cast<float>(scale), ml = dmin * static_cast<float>(minimum);
    int code = byte_at(codes + i / 64 * 32 + i % 32) >> (i % 64 / 32 * 4) & 15;
    if (kBits == 5) code |= (byte_at(fifth_bits + i % 32) >> (i / 32) & 1) << 4;
    values[i] = dl * static_cast<float>(code) - ml;
  }
}

// 128 B of low halves, 64 B of high pairs of bits, 16 signed scales, d.
void q6_k(const std::byte* block, float* values) {
  const float d = half_at(block + 208);
  for (int i = 0; i < kSuper; ++i) {
    const float dl = d * static_cast<float>(signed_at(block + 192 + i / 16));
    const int low = byte_at(block + i / 128 * 64 + i % 64) >> (i % 128 / 64 * 4) & 15;
    values[i] = dl * static_cast<float>((low | pair_of_bits(block + 128, i) << 4) - 32);
  }
}

constexpr std::nullopt_t kNone = std::nullopt;

constexpr GgufBlocks kTypes[] = {
    {0, "F32", 1, 4, DType::kF32},
    {1, "F16", 1, 2, DType::kF16},
    {30, "BF16", 1, 2, DType::kBF16},
    {8, "Q8_0", 32, 34, kNone, q8_0},
    {2, "Q4_0", 32, 18, kNone, q4_0},
    {3, "Q4_1", 32, 20, kNone, q4_1},
    {6, "Q5_0", 32, 22, kNone, q5_0},
    {7, "Q5_1", 32, 24, kNone, q5_1},
    {10, "Q2_K", 256, 84, kNone, q2_k},
    {11, "Q3_K", 256, 110, kNone, q3_k},
    {12, "Q4_K", 256, 144, kNone, q4_or_q5_k<4>},
    {13, "Q5_K", 256, 176, kNone, q4_or_q5_k<5>},
    {14, "Q6_K", 256, 210, kNone, q6_k},
    // Known by name alone.
    {9, "Q8_1"},
    {15, "Q8_K"},
    {16, "IQ2_XXS"},
    {17, "IQ2_XS"},
    {18, "IQ3_XXS"},
    {19, "IQ1_S"},
    {20, "IQ4_NL"},
    {21, "IQ3_S"},
    {22, "IQ2_S"},
    {23, "IQ4_XS"},
    {24, "I8"},
    {25, "I16"},
    {26, "I32"},
    {27, "I64"},
    {28, "F64"},
    {29, "IQ1_M"},
    {34, "TQ1_0"},
    {35, "TQ2_0"},
    {39, "MXFP4"},
    {40, "NVFP4"},
    {41, "Q1_0"},
};

}  // namespace

const GgufBlocks* gguf_blocks(uint32_t id) {
  const auto* found = std::ranges::find(kTypes, id, &GgufBlocks::id);
  return found == std::end(kTypes) ? nullptr : found;
}

const GgufBlocks* gguf_blocks(std::string_view name) {
  const auto* found = std::ranges::find(kTypes, name, &GgufBlocks::name);
  return found == std::end(kTypes) ? nullptr : found;
}

std::string gguf_types_read() {
  std::string names;
  for (const GgufBlocks& type : kTypes)
    if (type.is_read()) names += (names.empty() ? "" : ", ") + std::string(type.name);
  return names;
}

void dequantize_gguf(const GgufBlocks& type, Bytes bytes, std::span<float> values) {
  if (type.dtype) {
    std::ranges::copy(to_float32(*type.dtype, bytes), values.begin());
    return;
  }
  assert(type.dequantize);
  const auto blocks = static_cast<int64_t>(bytes.size() / type.bytes);
  assert(values.size() == static_cast<size_t>(blocks * type.elements));
  constexpr int64_t kChunk = 4096;
  parallel_chunks(blocks, kChunk, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      type.dequantize(bytes.data() + static_cast<uint64_t>(i) * type.bytes, values.data() + i * type.elements);
  });
}

ByteVector quantize_gguf_q8_0(std::span<const float> values) {
  assert(values.size() % kSmall == 0);
  ByteVector bytes;
  bytes.reserve(values.size() / kSmall * 34);
  for (; !values.empty(); values = values.subspan(kSmall)) {
    float largest = 0;
    for (const float value : values.first(kSmall)) largest = std::max(largest, std::abs(value));
    const float d = largest / 127, inverse = d > 0 ? 1 / d : 0;
    append_little_endian(bytes, fp16_from_float(d));
    for (const float value : values.first(kSmall))
      bytes.push_back(static_cast<std::byte>(static_cast<int8_t>(std::round(value * inverse))));
  }
  return bytes;
}

}  // namespace thimble
