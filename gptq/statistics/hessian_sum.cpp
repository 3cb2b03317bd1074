// hessian_sum.cpp: sums over the parts of a calibration set.
#include "gptq/statistics/hessian_sum.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"

namespace thimble {
namespace {

constexpr int64_t kRowsPerTask = 64;

// sum += tokens * mean, over the tokens that `mean` stands for.
void add_tokens(Hessian& sum, const Hessian& mean) {
  auto tokens = static_cast<double>(mean.token_count);
  parallel_chunks(sum.matrix.size(), kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      double* row = sum.matrix.lower_row(i);
      const double* added = mean.matrix.lower_row(i);
      for (int64_t j = 0; j <= i; ++j) row[j] += tokens * added[j];
    }
  });
  sum.token_count += mean.token_count;
  sum.sequence_count += mean.sequence_count;
}

}  // namespace

size_t hessian_part_count(int64_t sequences) { return static_cast<size_t>(std::min(sequences, kMaxHessianParts)); }

Share hessian_part(int64_t sequences, size_t part) {
  return share_of(static_cast<size_t>(sequences), part, hessian_part_count(sequences));
}

void HessianSum::add(const HessianSet& part) {
  std::map<const Hessian*, std::vector<std::string>> inputs;
  for (const auto& [layer, hessian] : part) inputs[hessian.get()].push_back(layer);
  bool is_first = inputs_.empty();
  for (const auto& [hessian, layers] : inputs) {
    Input& input = inputs_[layers[0]];
    if (is_first) input = {layers, {SymmetricMatrix(hessian->matrix.size()), 0, 0}};
    if (input.layers != layers || input.sum.matrix.size() != hessian->matrix.size())
      throw Error(ExitCode::kInternal, "layer '" + layers[0] + "': the parts of a Hessian have different inputs");
    add_tokens(input.sum, *hessian);
  }
  if (inputs.size() != inputs_.size()) throw Error(ExitCode::kInternal, "a part of the Hessians lacks layers");
}

HessianSet HessianSum::finish() && {
  HessianSet whole;
  for (auto& [first_layer, input] : inputs_) {
    auto tokens = static_cast<double>(input.sum.token_count);
    for (double& value : input.sum.matrix.values()) value /= tokens;
    auto mean = std::make_shared<const Hessian>(std::move(input.sum));
    for (const std::string& layer : input.layers) whole[layer] = mean;
  }
  inputs_.clear();
  return whole;
}

}  // namespace thimble
