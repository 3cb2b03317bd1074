// fixed_point_model.h: Q1.15 and Q1.31 from their definition, in integers, on the bits of a float32.
#pragma once

#include <bit>
#include <cstdint>

namespace thimble {

// The code of the float with these bits, for codes of 2^-fraction_bits (at most 31).
inline int64_t fixed_point_code(uint32_t bits, int fraction_bits) {
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0;                 // NaN
  if (magnitude > 0x3f7fbe77u) magnitude = 0x3f7fbe77u;  // float32(0.999)
  uint32_t exponent = magnitude >> 23;
  uint64_t mantissa = magnitude & 0x7fffffu;
  if (exponent == 0)
    exponent = 1;
  else
    mantissa |= 0x800000u;
  // The value is mantissa * 2^(exponent - 150); the code counts 2^-fraction_bits.
  int shift = static_cast<int>(exponent) - 150 + fraction_bits;
  uint64_t code = 0;
  if (shift >= 0) {
    code = mantissa << shift;
  } else if (shift > -40) {
    uint64_t step = uint64_t{1} << -shift;
    uint64_t rest = mantissa % step;
    code = mantissa / step;
    if (2 * rest > step || (2 * rest == step && code % 2 == 1)) ++code;
  }  // else less than half a step
  auto value = static_cast<int64_t>(code);
  return bits >> 31 ? -value : value;
}

// The float32 nearest to code * 2^-fraction_bits, ties to even, as bits.
inline uint32_t fixed_point_value(int64_t code, int fraction_bits) {
  if (code == 0) return 0;
  uint32_t sign = code < 0 ? 0x80000000u : 0;
  auto magnitude = static_cast<uint64_t>(code < 0 ? -code : code);
  int width = 64 - std::countl_zero(magnitude);
  uint64_t mantissa = magnitude;
  if (width <= 24) {
    mantissa <<= 24 - width;
  } else {
    uint64_t step = uint64_t{1} << (width - 24), rest = magnitude % step;
    mantissa = magnitude / step;
    if (2 * rest > step || (2 * rest == step && mantissa % 2 == 1)) ++mantissa;
    if (mantissa == uint64_t{1} << 24) {
      mantissa >>= 1;
      ++width;
    }
  }
  auto exponent = static_cast<uint32_t>(width - 1 - fraction_bits + 127);
  return sign | (exponent << 23) | static_cast<uint32_t>(mantissa & 0x7fffffu);
}

}  // namespace thimble
