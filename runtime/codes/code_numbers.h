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

// 2^(step / kStepsPerOctave), the nearest float32.
inline float step_size(int step) {
  const int octave = step >> 6, part = step & (kStepsPerOctave - 1);
  static_assert(kStepsPerOctave == 64);
  // None of the 64 is so near to a tie that the last bit of exp2 could matter (a test looks).
  return std::ldexp(static_cast<float>(std::exp2(part / double{kStepsPerOctave})), octave);
}

// Number of bits that hold codes in [-max_code, max_code].
constexpr int code_bits(int max_code) { return std::bit_width(static_cast<unsigned>(max_code)) + 1; }

}  // namespace thimble
