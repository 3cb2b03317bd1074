// dtype.h: element types of stored tensors and the exact conversions between them and float32.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/byte_cursor.h"

namespace thimble {

enum class DType : uint8_t { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU16, kU8, kBool };

size_t dtype_bytes(DType dtype);
// The safetensors spelling: "F32", "BF16", ...
std::string_view dtype_name(DType dtype);
// Throws FormatError(where, ...) when `name` is none of ours.
DType dtype_from_name(std::string_view name, const std::string& where);
bool is_floating(DType dtype);

// IEEE binary16 and bfloat16, round to nearest even; subnormals, infinities and NaN keep their kind.
uint16_t fp16_from_float(float value);
float float_from_fp16(uint16_t bits);
inline uint16_t bf16_from_float(float value) {  // without a branch: compilers make vectors of it
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u), quiet = bits | 0x400000u;
  return static_cast<uint16_t>(((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded) >> 16);
}
inline float float_from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// Little-endian stored elements to float32 (integers convert to the nearest float). bytes.size() = n * dtype_bytes.
std::vector<float> to_float32(DType dtype, Bytes bytes);
// float32 to the little-endian storage of F32, F16, BF16 or F64 (round to nearest even).
ByteVector from_float32(DType dtype, std::span<const float> values);

}  // namespace thimble
