// trellis_branches.cpp: the scale of costs.
#include "gptq/slope/trellis_branches.h"

namespace thimble {

float path_cost_scale(float rate_weight) {
  constexpr int kRows = static_cast<int>(kTrellisRows) + path_rows(kMaxTrellisBits);  // with those that fill a group
  constexpr auto kMost = static_cast<float>(kUnreachable >> kPathStateBits) / kRows - 1;
  int exponent = 0;  // the nearest level of each residue is within 2
  std::frexp(kMost / (4 + rate_weight * rate_table().most_bits()), &exponent);
  return std::ldexp(1.0F, exponent - 1);
}

}  // namespace thimble
