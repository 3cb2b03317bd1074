// layer_solver.cpp: groups layers by shared Hessian, factors each once, and keeps every solution.
#include "quantizer/layer_solver.h"

#include "gptq/cuda_gptq.h"
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

LayerSolver::LayerSolver(const TensorMap& tensors, const HessianSet& hessians, const Device& device,
                         const WorkFolder& work, uint64_t key, Progress& progress)
    : tensors_(tensors), hessians_(hessians), device_(device), work_(work), key_(key), progress_(progress) {}

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
  std::vector<Group> groups;
  std::map<const Hessian*, size_t> group_of;
  int64_t count = 0;
  for (const auto& [name, precision] : plan) {
    const RowScaledPrecision* gptq = as_gptq(precision);
    if (!gptq || solved_.contains(slot(name, precision))) continue;
    const Hessian* hessian = hessians_.at(name).get();
    auto [found, is_new] = group_of.emplace(hessian, groups.size());
    if (is_new) groups.push_back({hessian, {}});
    groups[found->second].layers.push_back({name, *gptq});
    solved_[slot(name, precision)];  // the slots exist before threads fill them
    ++count;
  }
  if (count == 0) return;
  progress_.begin("solving layers", count, "layers");
  if (device_.is_cuda) {
    run_in_threads(device_.ordinals.size(), [&](size_t i) {
      size_t begin = groups.size() * i / device_.ordinals.size();
      size_t end = groups.size() * (i + 1) / device_.ordinals.size();
      solve_on_cuda(std::span(groups).subspan(begin, end - begin), device_.ordinals[i]);
    });
  } else {
    parallel_for(static_cast<int64_t>(groups.size()), [&](int64_t g) { solve_on_cpu(groups[static_cast<size_t>(g)]); });
  }
  progress_.end();
}

uint64_t LayerSolver::file_key(const Layer& layer) const {
  return Hasher().add(key_).add(layer.name).add(precision_text(layer.precision)).digest();
}

bool LayerSolver::load(const Layer& layer) {
  std::optional<SolvedTensor> solved = work_.load_solution(file_key(layer), layer.name, tensors_.at(layer.name).shape);
  if (!solved) return false;
  solved_.at(slot(layer.name, layer.precision)) = std::move(*solved);
  progress_.advance(1);
  return true;
}

void LayerSolver::keep(const Layer& layer, SolvedTensor solved) {
  work_.save_solution(file_key(layer), solved);
  solved_.at(slot(layer.name, layer.precision)) = std::move(solved);
}

void LayerSolver::solve_on_cpu(const Group& group) {
  std::optional<HessianFactor> factor;  // made when the first layer of the group is not in the work folder
  for (const Layer& layer : group.layers) {
    if (load(layer)) continue;
    if (!factor) factor = factor_hessian(group.hessian->matrix, kTraceDamping, layer.name);
    keep(layer, quantize_tensor(layer.name, tensors_.at(layer.name), layer.precision, &*factor));
    progress_.advance(1);
  }
}

// All layers that the work folder does not have, in one batch.
void LayerSolver::solve_on_cuda(std::span<const Group> groups, int ordinal) {
  std::vector<const SymmetricMatrix*> hessians;
  std::vector<const Layer*> layers;
  std::vector<Matrix> weights;
  std::vector<GptqJob> jobs;
  for (const Group& group : groups) {
    hessians.push_back(&group.hessian->matrix);
    for (const Layer& layer : group.layers) {
      if (load(layer)) continue;
      layers.push_back(&layer);
      weights.push_back(finite_matrix(layer.name, tensors_.at(layer.name)));
      jobs.push_back({layer.name, weights.back(), layer.precision.max_code, hessians.size() - 1});
    }
  }
  if (jobs.empty()) return;
  solve_gptq_cuda(hessians, jobs, kTraceDamping, ordinal, [&](size_t job, const GptqResult& result) {
    const Layer& layer = *layers[job];
    keep(layer, {{layer.name, tensors_.at(layer.name).shape, result.codes}, result.report});
    progress_.advance(1);
  });
}

}  // namespace thimble
