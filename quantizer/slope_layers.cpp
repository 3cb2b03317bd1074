// slope_layers.cpp: see slope_layers.h.
#include "quantizer/slope_layers.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "gptq/cuda_slope.h"
#include "gptq/quantize_tensor.h"
#include "gptq/rate_model.h"
#include "runtime/parallel.h"

namespace thimble {
namespace {

std::vector<double> difference(const std::vector<float>& a, const std::vector<double>& b) {
  std::vector<double> values;
  for (size_t i = 0; i < a.size(); ++i) values.push_back(static_cast<double>(a[i]) - b[i]);
  return values;
}

}  // namespace

Json to_json(const SlopeOptions& options) {
  return {{"column_order", column_order_name(options.column_order)},
          {"damping", options.damping},
          {"rate_weight", options.rate_weight},
          {"row_power", options.row_power},
          {"shrinkage", options.shrinkage},
          {"trellis_bits", options.trellis_bits}};
}

SlopeLayers::SlopeLayers(const TensorMap& tensors, std::map<std::string, MatrixLoss> losses,
                         const SlopeOptions& options, const Device& device, Progress& progress)
    : options_(options), device_(device) {
  for (auto& [name, loss] : losses) {
    Layer& layer = layers_.emplace_back();
    layer.name = name;
    layer.weights = finite_matrix(name, tensors.at(name));
    layer.row_mean_squares = row_mean_squares(layer.weights);
    layer.row_weights = loss.row_weights;
    layer.loss = std::move(loss);
    layer.loss.row_weights = level_row_weights(layer.row_weights, options.row_power);
  }
  look_at_sizes(progress);
}

// How much a column's neighbours tell about it, and with that the level of all steps, is known only once the Hessian is
// factored. Layers that share one share that too: no shrinkage tells their damping apart yet. A guess at it would take
// another artifact to get right, which is by far more work.
void SlopeLayers::look_at_sizes(Progress& progress) {
  std::vector<std::vector<const Layer*>> order;
  for (const Layer& layer : layers_) {
    auto shares = [&](const auto& group) { return group.front()->loss.hessian == layer.loss.hessian; };
    auto found = std::ranges::find_if(order, shares);
    if (found == order.end())
      order.push_back({&layer});
    else
      found->push_back(&layer);
  }
  std::vector<SizeModel> sizes(order.size());
  progress.begin("looking at layers", static_cast<int64_t>(layers_.size()), "layers");
  parallel_for(static_cast<int64_t>(order.size()), [&](int64_t i) {
    const std::vector<const Layer*>& layers = order[static_cast<size_t>(i)];
    std::vector<double> upper_diagonal;
    if (const auto& hessian = layers.front()->loss.hessian)
      upper_diagonal =
          factor_hessian(*hessian, options_.damping, layers.front()->name, options_.column_order).upper_diagonal();
    for (const Layer* layer : layers) {
      StepShape steps = step_shape(layer->loss, layer->loss.row_weights, upper_diagonal);
      WeightScales scales = fit_weight_scales(layer->weights);
      sizes[static_cast<size_t>(i)].add(difference(scales.rows, steps.rows), difference(scales.columns, steps.columns));
      progress.advance(1);
    }
  });
  progress.end();
  for (const SizeModel& size : sizes) size_model_.add(size);
}

SlopeLayers::Setting SlopeLayers::setting(const Layer& layer, double log2_c, double shrinkage) const {
  Shrinkage shrunk = shrink(layer.loss, layer.row_mean_squares, log2_c, shrinkage);
  return {options_.damping + shrunk.damping, std::move(shrunk.row_weights)};
}

SlopeGrid SlopeLayers::grid(const Layer& layer, const Setting& setting, double log2_c,
                            const std::vector<double>& upper_diagonal) const {
  Steps steps = round_steps(step_shape(layer.loss, setting.row_weights, upper_diagonal), log2_c);
  return {options_.trellis_bits, options_.rate_weight, std::move(steps.rows), std::move(steps.columns)};
}

SlopeResult SlopeLayers::solve_on_cpu(const Layer& layer, double log2_c, double shrinkage) const {
  const Setting chosen = setting(layer, log2_c, shrinkage);
  std::optional<HessianFactor> factor;
  if (layer.loss.hessian)
    factor = factor_hessian(*layer.loss.hessian, chosen.damping, layer.name, options_.column_order);
  const std::vector<double> upper_diagonal = factor ? factor->upper_diagonal() : std::vector<double>{};
  return solve_slope(layer.weights, factor ? &*factor : nullptr, grid(layer, chosen, log2_c, upper_diagonal),
                     layer.row_weights, layer.name);
}

void SlopeLayers::solve_on_cuda(std::span<const size_t> layers, int ordinal, double log2_c, double shrinkage,
                                std::vector<SlopeResult>& results, Progress& progress) const {
  std::vector<Setting> settings;
  std::vector<SlopeJob> jobs;
  for (size_t index : layers) {
    const Layer& layer = layers_[index];
    settings.push_back(setting(layer, log2_c, shrinkage));
    jobs.push_back({layer.name, layer.weights, layer.loss.hessian.get(), settings.back().damping, options_.column_order,
                    layer.row_weights});
  }
  auto choose_grid = [&](size_t job, const std::vector<double>& upper_diagonal) {
    return grid(layers_[layers[job]], settings[job], log2_c, upper_diagonal);
  };
  std::vector<SlopeResult> solved =
      solve_slope_cuda(jobs, choose_grid, {ordinal, device_.memory_limit_bytes}, [&](size_t) { progress.advance(1); });
  for (size_t i = 0; i < layers.size(); ++i) results[layers[i]] = std::move(solved[i]);
}

int64_t SlopeLayers::work(const Layer& layer) {
  return (layer.weights.rows() + layer.weights.cols()) * layer.weights.cols() *
         (layer.loss.hessian ? layer.weights.cols() : 1);
}

std::vector<SlopeMatrix> SlopeLayers::solve(double log2_c, double shrinkage, Progress& progress) const {
  std::vector<size_t> order(layers_.size());  // the longest first, so that none of them starts last
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater{}, [&](size_t i) { return work(layers_[i]); });
  // Dealt out in turn to the devices; the rest is the CPU's.
  std::vector<std::vector<size_t>> shares(device_.is_cuda ? device_.ordinals.size() : 0);
  std::vector<size_t> rest;
  size_t turn = 0;
  for (size_t i : order) {
    if (!shares.empty() && layers_[i].loss.hessian)
      shares[turn++ % shares.size()].push_back(i);
    else
      rest.push_back(i);
  }
  std::vector<SlopeResult> results(layers_.size());
  progress.begin("solving layers", static_cast<int64_t>(layers_.size()), "layers");
  parallel_for(static_cast<int64_t>(shares.size() + rest.size()), [&](int64_t task) {
    const auto i = static_cast<size_t>(task);
    if (i < shares.size()) {
      if (!shares[i].empty()) solve_on_cuda(shares[i], device_.ordinals[i], log2_c, shrinkage, results, progress);
      return;
    }
    const size_t index = rest[i - shares.size()];
    results[index] = solve_on_cpu(layers_[index], log2_c, shrinkage);
    progress.advance(1);
  });
  progress.end();
  std::vector<SlopeMatrix> solved;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    solved.push_back({{layer.name, {layer.weights.rows(), layer.weights.cols()}, std::move(results[i].codes)},
                      std::move(results[i].report)});
  }
  return solved;
}

int64_t SlopeLayers::weights() const {
  int64_t count = 0;
  for (const Layer& layer : layers_) count += layer.weights.rows() * layer.weights.cols();
  return count;
}

double SlopeLayers::mean_row_weight(const std::string& name) const {
  auto found = std::ranges::find(layers_, name, &Layer::name);
  return mean_of(found->row_weights);
}

}  // namespace thimble
