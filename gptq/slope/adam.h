// adam.h: Adam (Kingma and Ba, arXiv 1412.6980, algorithm 1) with bias correction, over one tensor at a time. Quiet
// elements, whose gradients are much smaller than their tensor's, hardly matter, and what they say is mostly noise:
// they move in proportion to their gradients, not at full speed. The tensor's root mean square takes the place of the
// paper's epsilon, so that steps do not depend on the gradients' scale.
//   value -= rate * m / (sqrt(v) + quiet_share * rms(v over the tensor)),  m, v = the moments after bias correction
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/parallel.h"

namespace thimble {

struct AdamStep {
  int64_t number = 1;      // from 1, of all steps of these moments
  double rate = 0;         // how far an element moves, at most about
  double quiet_share = 0;  // > 0
};

// Elements are summed in fixed chunks: the same bits for any thread count.
constexpr int64_t kAdamChunk = int64_t{1} << 16;

// gradient(i): of element i, from any thread. All spans are of one length, or `first` is empty: no momentum, m = g.
template <typename Real, typename Gradient>
void adam_step(const AdamStep& step, const Gradient& gradient, std::span<Real> values, std::span<Real> first,
               std::span<Real> second) {
  constexpr Real kFirstDecay = Real(0.9), kSecondDecay = Real(0.95);
  const auto number = static_cast<double>(step.number);
  const double first_bias = first.empty() ? 1 : 1 - std::pow(0.9, number), second_bias = 1 - std::pow(0.95, number);
  const auto count = static_cast<int64_t>(values.size());
  std::vector<double> sums(static_cast<size_t>(count / kAdamChunk + 1));
  parallel_chunks(count, kAdamChunk, [&](int64_t begin, int64_t end) {
    double sum = 0;
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const auto g = static_cast<Real>(gradient(i));
      if (!first.empty()) first[i] += (1 - kFirstDecay) * (g - first[i]);
      second[i] += (1 - kSecondDecay) * (g * g - second[i]);
      sum += static_cast<double>(second[i]) / static_cast<double>(count);
    }
    sums[static_cast<size_t>(begin / kAdamChunk)] = sum;
  });
  double mean_second = 0;
  for (double sum : sums) mean_second += sum;
  if (mean_second == 0) return;
  const auto quiet = static_cast<Real>(step.quiet_share * std::sqrt(mean_second / second_bias));
  const auto first_scale = static_cast<Real>(step.rate / first_bias), second_scale = static_cast<Real>(1 / second_bias);
  parallel_chunks(count, kAdamChunk, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const Real mean = first.empty() ? static_cast<Real>(gradient(i)) : first[i];
      values[i] -= first_scale * mean / (std::sqrt(second[i] * second_scale) + quiet);
    }
  });
}

}  // namespace thimble
