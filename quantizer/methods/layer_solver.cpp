// layer_solver.cpp: groups layers by shared Hessian, factors each once, and keeps every solution.
#include "quantizer/methods/layer_solver.h"

#include "runtime/base/hash.h"
#include "runtime/base/parallel.h"

namespace thimble {
LayerSolver::LayerSolver(const TensorMap& tensors, const HessianSet& hessians, const Device& device,
                         const SharedWork& work, uint64_t key, Progress& progress)
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
    if (precision.needs_hessian()) continue;
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
  std::vector<Layer> missing;
  for (const auto& [name, precision] : plan)
    if (precision.needs_hessian() && !solved_.contains(slot(name, precision))) missing.push_back({name, precision});
  if (missing.empty()) return;
  std::vector<SharedWork::Piece> pieces;
  std::map<std::string, size_t> piece_of;
  std::map<const Hessian*, size_t> unit_of;
  for (const Layer& layer : missing) {
    piece_of[layer.name] = pieces.size();
    pieces.push_back({key_of(layer), unit_of.emplace(hessians_.at(layer.name).get(), unit_of.size()).first->second});
  }
  progress_.begin("solving layers", static_cast<int64_t>(missing.size()), "layers");
  auto solve = [&](std::span<const size_t> mine, const SharedWork::Give<SolvedTensor>& give) {
    std::vector<Layer> layers;
    for (size_t piece : mine) layers.push_back(missing[piece]);
    solve_here(groups_of(layers), [&](SolvedTensor solved) {
      const size_t piece = piece_of.at(solved.tensor.name);
      give(piece, std::move(solved));
      progress_.advance(1);
    });
  };
  for (SolvedTensor& solved : work_.results<SolvedTensor>(WorkKind::kSolution, pieces, solve)) {
    const Layer& layer = missing[piece_of.at(solved.tensor.name)];
    solved_[slot(layer.name, layer.precision)] = std::move(solved);
  }
  progress_.end();
}

std::vector<LayerSolver::Group> LayerSolver::groups_of(std::span<const Layer> layers) const {
  std::vector<Group> groups;
  std::map<const Hessian*, size_t> group_of;
  for (const Layer& layer : layers) {
    const Hessian* hessian = hessians_.at(layer.name).get();
    auto [found, is_new] = group_of.emplace(hessian, groups.size());
    if (is_new) groups.push_back({hessian, {}});
    groups[found->second].layers.push_back(layer);
  }
  return groups;
}

void LayerSolver::solve_here(std::span<const Group> groups, const Keep& keep) const {
  if (device_.is_cuda) {
    run_in_threads(device_.ordinals.size(), [&](size_t i) {
      Share share = share_of(groups.size(), i, device_.ordinals.size());
      solve_on_cuda(groups.subspan(share.begin, share.size()), {device_.ordinals[i], device_.memory_limit_bytes}, keep);
    });
  } else {
    parallel_for(static_cast<int64_t>(groups.size()),
                 [&](int64_t g) { solve_on_cpu(groups[static_cast<size_t>(g)], keep); });
  }
}

uint64_t LayerSolver::key_of(const Layer& layer) const {
  return Hasher().add(key_).add(layer.name).add(precision_text(layer.precision)).digest();
}

void LayerSolver::solve_on_cpu(const Group& group, const Keep& keep) const {
  HessianFactor factor = factor_hessian(group.hessian->matrix, kTraceDamping, group.layers[0].name);
  for (const Layer& layer : group.layers)
    keep(quantize_tensor(layer.name, tensors_.at(layer.name), layer.precision, &factor));
}

// All layers of a grid in one batch.
void LayerSolver::solve_on_cuda(std::span<const Group> groups, const CudaPlace& place, const Keep& keep) const {
  std::vector<Matrix> weights;
  std::vector<GptqJob> row_scaled, nvfp4;
  for (const Group& group : groups) {
    for (const Layer& layer : group.layers) {
      weights.push_back(finite_matrix(layer.name, tensors_.at(layer.name)));
      auto& jobs = layer.precision.grid == Precision::Grid::kNvfp4 ? nvfp4 : row_scaled;
      jobs.push_back({layer.name, weights.back(), layer.precision.max_code, &group.hessian->matrix});
    }
  }
  auto keep_result_of = [&](const std::vector<GptqJob>& jobs) {
    return [&](size_t job, auto result) {
      const std::string& name = jobs[job].name;
      keep({{name, tensors_.at(name).shape, std::move(result.codes)}, std::move(result.report)});
    };
  };
  if (!row_scaled.empty()) solve_gptq_cuda(row_scaled, kTraceDamping, place, keep_result_of(row_scaled));
  if (!nvfp4.empty()) solve_gptq_nvfp4_cuda(nvfp4, kTraceDamping, place, keep_result_of(nvfp4));
}

}  // namespace thimble
