// size_model.h: about how many bits the codes of a matrix take at any c, before one of them is known: where a search
// for a byte budget starts. A weight of deviation s times its step takes about 1/2 log2(1 + 2 pi e s^2) bits: 1/2
// log2(2 pi e s^2), the entropy of a Gaussian in steps, when s is large, and none when it is small. In: deviations of
// weights at c = 1.  Out: bits.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace thimble {

class SizeModel {
 public:
  // Weights of deviation 2^(rows[r] + columns[k]) steps at c = 1, (R) and (K).
  void add(std::span<const double> rows, std::span<const double> columns);

  void add(const SizeModel& other);

  // Of all weights added. Falls with log2_c.
  double bits(double log2_c) const;
  // The log2_c with this many bits (found by bisection; the nearest that there is).
  double log2_c_for(double bits) const;

 private:
  static constexpr int kBinsPerOctave = 16;
  static constexpr int kOctaves = 512;  // deviations of 2^-256 to 2^256, and as many of c
  std::array<int64_t, static_cast<size_t>(kBinsPerOctave* kOctaves)> counts_{};
};

}  // namespace thimble
