// code_numbers.h: what codes of weights may be, and the sizes of steps. Both who writes and who reads them include
// this.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace thimble {

constexpr int32_t kMaxSteppedCode = (int32_t{1} << 23) - 1;  // its levels are exact in float32
constexpr int kStepsPerOctave = 64;
constexpr int kMaxStep = 40 * kStepsPerOctave;
constexpr bool is_step(int step) { return step >= -kMaxStep && step <= kMaxStep; }

// Row scales are fp16, finite and above 0.
constexpr bool is_row_scale(uint16_t bits) {
  constexpr uint16_t kInfinity = 0x7c00;  // above it NaN, then everything negative
  return bits != 0 && bits < kInfinity;
}

// 2^(step / kStepsPerOctave), the nearest float32.
inline float step_size(int step) {
  const int octave = step >> 6, part = step & (kStepsPerOctave - 1);
  static_assert(kStepsPerOctave == 64);
  // 2^(1/64), 2^(2/64), 2^(4/64) and so on. Without a library's exp2, whose last bit is its own; none of the 64
  // products is so near to a tie that its last bits could matter (a test looks).
  constexpr double kRoots[] = {0x1.02c9a3e778061p+0, 0x1.059b0d3158574p+0, 0x1.0b5586cf9890fp+0,
                               0x1.172b83c7d517bp+0, 0x1.306fe0a31b715p+0, 0x1.6a09e667f3bcdp+0};
  double power = 1;
  for (int bit = 0; bit < 6; ++bit)
    if ((part >> bit & 1) != 0) power *= kRoots[bit];
  return std::ldexp(static_cast<float>(power), octave);
}

// Number of bits that hold codes in [-max_code, max_code].
constexpr int code_bits(int max_code) { return std::bit_width(static_cast<unsigned>(max_code)) + 1; }

}  // namespace thimble
