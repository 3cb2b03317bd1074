// layer_solver.cpp: groups layers by shared Hessian, factors each once, and keeps every solution.
#include "quantizer/methods/layer_solver.h"

#include <algorithm>

#include "runtime/base/hash.h"
#include "runtime/base/memory_plan.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

// Weights in float32 that wait for a device in host memory; those of more layers follow.
constexpr int64_t kMostWaitingWeights = int64_t{1} << 28;

// One solved tensor each.
std::string slot(const std::string& name, const Precision& precision) {
  return name + "\n" + precision_text(precision);
}

}  // namespace

LayerSolver::LayerSolver(const TensorMap& tensors, const StoredHessians& hessians, const Device& device,
                         const SharedWork& work, uint64_t key, Progress& progress)
    : tensors_(tensors), hessians_(hessians), device_(device), work_(work), key_(key), progress_(progress) {}

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
  std::vector<const Layer*> missing;
  for (const Layer& layer : plan)
    if (layer.second.needs_hessian() && !solved_.contains(slot(layer.first, layer.second))) missing.push_back(&layer);
  if (missing.empty()) return;
  std::vector<SharedWork::Piece> pieces;
  std::map<const StoredHessian*, size_t> unit_of;
  for (const Layer* layer : missing) {
    const auto& [name, precision] = *layer;
    const uint64_t key = Hasher().add(key_).add(name).add(precision_text(precision)).digest();
    pieces.push_back({key, unit_of.emplace(hessians_.at(name).get(), unit_of.size()).first->second});
  }
  auto solve = [&](std::span<const size_t> mine, const Keep& give) {
    std::vector<Group> groups;  // in the order of their first layers
    for (size_t piece : mine) {
      const StoredHessian* hessian = hessians_.at(missing[piece]->first).get();
      auto group = std::ranges::find(groups, hessian, &Group::hessian);
      if (group == groups.end()) group = groups.insert(group, {hessian, {}});
      group->layers.emplace_back(piece, missing[piece]);
    }
    solve_here(groups, [&](size_t piece, SolvedTensor solved) {
      give(piece, std::move(solved));
      progress_.advance(1);
    });
  };
  progress_.begin("solving layers", static_cast<int64_t>(missing.size()), "layers");
  for (SolvedTensor& solved : work_.results<SolvedTensor>(WorkKind::kSolution, pieces, solve)) {
    const std::string& name = solved.tensor.name;
    solved_[slot(name, plan.at(name))] = std::move(solved);
  }
  progress_.end();
}

void LayerSolver::solve_here(std::span<const Group> groups, const Keep& keep) const {
  if (device_.is_cuda) {
    run_in_threads(device_.ordinals.size(), [&](size_t i) {
      Share share = share_of(groups.size(), i, device_.ordinals.size());
      for (size_t done = share.begin; done < share.end;) {
        size_t count = 0;
        for (int64_t waiting = 0; done + count < share.end && waiting < kMostWaitingWeights; ++count)
          for (const auto& [piece, layer] : groups[done + count].layers)
            waiting += element_count(tensors_.at(layer->first).shape);
        solve_on_cuda(groups.subspan(done, count), {device_.ordinals[i], device_.memory_limit_bytes}, keep);
        done += count;
      }
    });
  } else {
    uint64_t model_bytes = 0;  // of codes
    for (const auto& [name, tensor] : tensors_) model_bytes += static_cast<uint64_t>(element_count(tensor.shape));
    std::vector<uint64_t> bytes;
    for (const Group& group : groups) bytes.push_back(factor_bytes(group.hessian->size()));
    parallel_within(bytes, working_memory(device_.host_memory_bytes, model_bytes),
                    [&](int64_t g) { solve_on_cpu(groups[static_cast<size_t>(g)], keep); });
  }
}

void LayerSolver::solve_on_cpu(const Group& group, const Keep& keep) const {
  HessianFactor factor = factor_hessian(*group.hessian->load(), kTraceDamping, group.layers[0].second->first);
  for (const auto& [piece, layer] : group.layers)
    keep(piece, quantize_tensor(layer->first, tensors_.at(layer->first), layer->second, &factor));
}

// All layers of a grid in one batch.
void LayerSolver::solve_on_cuda(std::span<const Group> groups, const CudaPlace& place, const Keep& keep) const {
  struct Batch {
    std::vector<GptqJob> jobs;
    std::vector<size_t> pieces;
  };
  std::vector<Matrix> weights;
  Batch row_scaled, nvfp4;
  for (const Group& group : groups)
    for (const auto& [piece, layer] : group.layers) {
      const auto& [name, precision] = *layer;
      weights.push_back(finite_matrix(name, tensors_.at(name)));
      Batch& batch = precision.grid == Precision::Grid::kNvfp4 ? nvfp4 : row_scaled;
      batch.jobs.push_back({name, weights.back(), precision.max_code, group.hessian});
      batch.pieces.push_back(piece);
    }
  auto keep_result_of = [&](const Batch& batch) {
    return [&](size_t job, auto result) {
      const std::string& name = batch.jobs[job].name;
      keep(batch.pieces[job], {{name, tensors_.at(name).shape, std::move(result.codes)}, std::move(result.report)});
    };
  };
  if (!row_scaled.jobs.empty()) solve_gptq_cuda(row_scaled.jobs, kTraceDamping, place, keep_result_of(row_scaled));
  if (!nvfp4.jobs.empty()) solve_gptq_nvfp4_cuda(nvfp4.jobs, kTraceDamping, place, keep_result_of(nvfp4));
}

}  // namespace thimble
