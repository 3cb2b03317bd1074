// layer_solver.cpp: groups layers by shared Hessian, factors each once, and keeps every solution.
#include "quantizer/layer_solver.h"

#include "runtime/hash.h"
#include "runtime/parallel.h"

namespace thimble {
namespace {

// The precision when it needs a Hessian, else null.
const RowScaledPrecision* as_gptq(const Precision& precision) {
  const auto* scaled = std::get_if<RowScaledPrecision>(&precision);
  return scaled && scaled->rounding == RowScaledPrecision::Rounding::kGptq ? scaled : nullptr;
}

}  // namespace

LayerSolver::LayerSolver(const TensorMap& tensors, const HessianSet& hessians, const WorkFolder& work, uint64_t key,
                         Progress& progress)
    : tensors_(tensors), hessians_(hessians), work_(work), key_(key), progress_(progress) {}

LayerSolver::Slot LayerSolver::slot(const std::string& name, const Precision& precision) {
  return name + "\n" + precision_text(precision);
}

const GptqReport* LayerSolver::report(const std::string& name, const Precision& precision) const {
  auto found = solved_.find(slot(name, precision));
  return found == solved_.end() || !found->second.report ? nullptr : &*found->second.report;
}

std::vector<QuantizedTensor> LayerSolver::solve_without_hessians(const Plan& plan) {
  std::vector<QuantizedTensor> tensors;
  for (const auto& [name, precision] : plan) {
    if (as_gptq(precision)) continue;
    auto [found, missing] = solved_.try_emplace(slot(name, precision));
    if (missing) found->second = quantize_tensor(name, tensors_.at(name), precision, nullptr);
    tensors.push_back(found->second.tensor);
  }
  return tensors;
}

std::vector<QuantizedTensor> LayerSolver::solve(const Plan& plan) {
  solve_without_hessians(plan);
  solve_missing(plan);
  std::vector<QuantizedTensor> tensors;
  for (const auto& [name, precision] : plan) tensors.push_back(solved_.at(slot(name, precision)).tensor);
  return tensors;
}

void LayerSolver::solve_missing(const Plan& plan) {
  using Layer = std::pair<std::string, RowScaledPrecision>;
  std::vector<std::pair<const Hessian*, std::vector<Layer>>> groups;
  std::map<const Hessian*, size_t> group_of;
  int64_t count = 0;
  for (const auto& [name, precision] : plan) {
    const RowScaledPrecision* gptq = as_gptq(precision);
    if (!gptq || solved_.contains(slot(name, precision))) continue;
    const Hessian* hessian = hessians_.at(name).get();
    auto [found, is_new] = group_of.emplace(hessian, groups.size());
    if (is_new) groups.emplace_back(hessian, std::vector<Layer>{});
    groups[found->second].second.emplace_back(name, *gptq);
    solved_[slot(name, precision)];  // the slots exist before threads fill them
    ++count;
  }
  if (count == 0) return;
  progress_.begin("solving layers", count, "layers");
  parallel_for(static_cast<int64_t>(groups.size()), [&](int64_t g) {
    const auto& [hessian, layers] = groups[static_cast<size_t>(g)];
    solve_group(*hessian, layers);
  });
  progress_.end();
}

void LayerSolver::solve_group(const Hessian& hessian,
                              const std::vector<std::pair<std::string, RowScaledPrecision>>& layers) {
  std::optional<HessianFactor> factor;  // made when the first layer of the group is not in the work folder
  for (const auto& [name, precision] : layers) {
    const TensorView& tensor = tensors_.at(name);
    uint64_t key = Hasher().add(key_).add(name).add(precision_text(precision)).digest();
    std::optional<SolvedTensor> solved = work_.load_solution(key, name, tensor.shape);
    if (!solved) {
      if (!factor) factor = factor_hessian(hessian.matrix, kTraceDamping, name);
      solved = quantize_tensor(name, tensor, precision, &*factor);
      work_.save_solution(key, *solved);
    }
    solved_.at(slot(name, precision)) = std::move(*solved);
    progress_.advance(1);
  }
}

}  // namespace thimble
