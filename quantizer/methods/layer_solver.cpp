// layer_solver.cpp: groups layers by shared Hessian, factors each once, and keeps every solution.
#include "quantizer/methods/layer_solver.h"

#include "gptq/trace/cuda_gptq.h"
#include "quantizer/methods/packed_results.h"
#include "runtime/base/hash.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

// As a number for the other ranks: the largest code, 0 for NVFP4.
constexpr int kNvfp4Number = 0;
int number_of(const Precision& precision) {
  const auto* scaled = std::get_if<RowScaledPrecision>(&precision);
  return scaled ? scaled->max_code : kNvfp4Number;
}
Precision precision_from(int number) {
  if (number == kNvfp4Number) return Nvfp4Precision{Nvfp4Precision::Rounding::kGptq};
  return RowScaledPrecision{number, RowScaledPrecision::Rounding::kGptq};
}

}  // namespace

LayerSolver::LayerSolver(const TensorMap& tensors, const HessianSet& hessians, const Device& device,
                         const WorkFolder& work, uint64_t key, Ranks& ranks, Progress& progress)
    : tensors_(tensors),
      hessians_(hessians),
      device_(device),
      work_(work),
      key_(key),
      ranks_(ranks),
      progress_(progress) {}

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
    if (needs_hessian(precision)) continue;
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
  for (const auto& [name, precision] : plan) {
    if (!needs_hessian(precision) || solved_.contains(slot(name, precision)) || load({name, precision})) continue;
    missing.push_back({name, precision});
  }
  if (missing.empty()) return;
  progress_.begin("solving layers", static_cast<int64_t>(missing.size()), "layers");
  tell(missing);
  solve_share(missing);
  progress_.end();
}

void LayerSolver::serve() {
  for (std::vector<Layer> layers = told(); !layers.empty(); layers = told()) solve_share(layers);
}

void LayerSolver::dismiss() { tell({}); }

void LayerSolver::tell(const std::vector<Layer>& layers) {
  Json json = Json::array();
  for (const Layer& layer : layers) json.push_back({layer.name, number_of(layer.precision)});
  std::string text = json.dump();
  ByteVector bytes(as_bytes_of(text).begin(), as_bytes_of(text).end());
  ranks_.broadcast(bytes);
}

std::vector<LayerSolver::Layer> LayerSolver::told() {
  ByteVector bytes;
  ranks_.broadcast(bytes);
  std::vector<Layer> layers;
  for (const Json& layer : parse_json(Bytes(bytes), "layers to solve"))
    layers.push_back({layer.at(0), precision_from(layer.at(1))});
  return layers;
}

void LayerSolver::solve_share(const std::vector<Layer>& layers) {
  for (const Layer& layer : layers) solved_[slot(layer.name, layer.precision)];  // slots exist before threads fill them
  std::vector<Group> groups = groups_of(layers);
  Share share = share_of(groups.size(), static_cast<size_t>(ranks_.rank()), static_cast<size_t>(ranks_.size()));
  std::span<const Group> mine = std::span(groups).subspan(share.begin, share.size());
  solve_here(mine);
  if (ranks_.size() == 1) return;
  std::vector<SolvedTensor> solutions;
  for (const Group& group : mine)
    for (const Layer& layer : group.layers) solutions.push_back(solved_.at(slot(layer.name, layer.precision)));
  std::vector<ByteVector> all = ranks_.all_gather(pack_solutions(solutions));
  if (!ranks_.is_root()) return;
  for (size_t rank = 1; rank < all.size(); ++rank)
    for (SolvedTensor& solved : unpack_solutions(all[rank])) keep(std::move(solved));
}

std::vector<LayerSolver::Group> LayerSolver::groups_of(const std::vector<Layer>& layers) const {
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

void LayerSolver::solve_here(std::span<const Group> groups) {
  if (device_.is_cuda) {
    run_in_threads(device_.ordinals.size(), [&](size_t i) {
      Share share = share_of(groups.size(), i, device_.ordinals.size());
      solve_on_cuda(groups.subspan(share.begin, share.size()), {device_.ordinals[i], device_.memory_limit_bytes});
    });
  } else {
    parallel_for(static_cast<int64_t>(groups.size()), [&](int64_t g) { solve_on_cpu(groups[static_cast<size_t>(g)]); });
  }
}

uint64_t LayerSolver::file_key(const Layer& layer) const {
  return Hasher().add(key_).add(layer.name).add(precision_text(layer.precision)).digest();
}

bool LayerSolver::load(const Layer& layer) {
  std::optional<SolvedTensor> solved = work_.load_solution(file_key(layer), layer.name, tensors_.at(layer.name).shape);
  if (solved) solved_[slot(layer.name, layer.precision)] = std::move(*solved);
  return solved.has_value();
}

void LayerSolver::keep(SolvedTensor solved) {
  const auto* scaled = std::get_if<RowScaledCodes>(&solved.tensor.data);
  Layer layer{solved.tensor.name, precision_from(scaled ? scaled->max_code : kNvfp4Number)};
  work_.save_solution(file_key(layer), solved);
  solved_.at(slot(layer.name, layer.precision)) = std::move(solved);
  progress_.advance(1);
}

void LayerSolver::solve_on_cpu(const Group& group) {
  HessianFactor factor = factor_hessian(group.hessian->matrix, kTraceDamping, group.layers[0].name);
  for (const Layer& layer : group.layers)
    keep(quantize_tensor(layer.name, tensors_.at(layer.name), layer.precision, &factor));
}

// All layers of a grid in one batch.
void LayerSolver::solve_on_cuda(std::span<const Group> groups, const CudaPlace& place) {
  std::vector<const SymmetricMatrix*> hessians;
  std::vector<Matrix> weights;
  std::vector<GptqJob> row_scaled, nvfp4;
  for (const Group& group : groups) {
    hessians.push_back(&group.hessian->matrix);
    for (const Layer& layer : group.layers) {
      weights.push_back(finite_matrix(layer.name, tensors_.at(layer.name)));
      auto& jobs = std::holds_alternative<Nvfp4Precision>(layer.precision) ? nvfp4 : row_scaled;
      jobs.push_back({layer.name, weights.back(), number_of(layer.precision), hessians.size() - 1});
    }
  }
  auto keep_result_of = [&](const std::vector<GptqJob>& jobs) {
    return [&](size_t job, const auto& result) {
      const std::string& name = jobs[job].name;
      keep({{name, tensors_.at(name).shape, result.codes}, result.report});
    };
  };
  if (!row_scaled.empty()) solve_gptq_cuda(hessians, row_scaled, kTraceDamping, place, keep_result_of(row_scaled));
  if (!nvfp4.empty()) solve_gptq_nvfp4_cuda(hessians, nvfp4, kTraceDamping, place, keep_result_of(nvfp4));
}

}  // namespace thimble
