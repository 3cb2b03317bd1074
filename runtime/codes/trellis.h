// trellis.h: the state machine of trellis-coded quantization (Marcellin and Fischer 1990, with the trellises of
// Ungerboeck 1982): which of two interleaved quantizers a code belongs to, from the codes above it in its column.
//   level = 2 * code + set, set = lowest bit of the state: the even or the odd multiples of a step.
// The parity of each code picks the next state. Without state bits the set is always 0: a uniform scalar quantizer of
// twice the step.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/tensor/host_device.h"

namespace thimble {

constexpr int kMaxTrellisBits = 8;
// Every column's trellis starts again from state 0 at rows 0, kTrellisRows, 2 * kTrellisRows, ...: parts of a matrix
// can be quantized and decoded on their own.
constexpr int64_t kTrellisRows = 512;

class Trellis {
 public:
  // `bits`: 0, or 2 to kMaxTrellisBits: 2^bits states.
  THIMBLE_HOST_DEVICE explicit constexpr Trellis(int bits) : bits_(bits) {
    // Parity-check polynomials h0 and h1 of Ungerboeck's table I for amplitude modulation, without their lowest bit.
    constexpr uint16_t kH0[] = {0, 0, 05, 013, 023, 045, 0103, 0235, 0515};
    constexpr uint16_t kH1[] = {0, 0, 02, 04, 04, 010, 024, 0126, 0362};
    feedback_ = static_cast<uint32_t>(kH0[bits] >> 1);
    input_ = static_cast<uint32_t>(kH1[bits] >> 1);
  }

  static constexpr bool has_bits(int bits) { return bits == 0 || (bits >= 2 && bits <= kMaxTrellisBits); }

  THIMBLE_HOST_DEVICE constexpr int bits() const { return bits_; }
  THIMBLE_HOST_DEVICE constexpr uint32_t states() const { return uint32_t{1} << bits_; }
  // 0: even levels, 1: odd ones.
  THIMBLE_HOST_DEVICE static constexpr int set(uint32_t state) { return static_cast<int>(state & 1); }
  THIMBLE_HOST_DEVICE static constexpr int64_t level(uint32_t state, int32_t code) {
    return 2 * int64_t{code} + set(state);
  }
  // `parity`: the lowest bit of the code.
  THIMBLE_HOST_DEVICE constexpr uint32_t next(uint32_t state, int32_t parity) const {
    // Masks of all ones or none: a branch that follows the codes' parity is missed every other time.
    const uint32_t odd_state = 0 - (state & 1), odd_code = 0 - (static_cast<uint32_t>(parity) & 1);
    return (state >> 1) ^ (odd_state & feedback_) ^ (odd_code & input_);
  }

 private:
  int bits_;
  uint32_t feedback_ = 0, input_ = 0;
};

// How reports name codes of 2^bits states: "trellis32", and "steps" without a trellis.
inline std::string trellis_name(int bits) { return bits == 0 ? "steps" : "trellis" + std::to_string(1 << bits); }

}  // namespace thimble
