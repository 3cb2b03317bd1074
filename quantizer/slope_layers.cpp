// slope_layers.cpp: see slope_layers.h.
#include "quantizer/slope_layers.h"

#include <algorithm>
#include <cmath>
#include <numeric>

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
  return {{"damping", options.damping},
          {"rate_weight", options.rate_weight},
          {"row_power", options.row_power},
          {"shrinkage", options.shrinkage},
          {"trellis_bits", options.trellis_bits}};
}

SlopeLayers::SlopeLayers(const TensorMap& tensors, std::map<std::string, MatrixLoss> losses,
                         const SlopeOptions& options, Progress& progress)
    : options_(options) {
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
  std::map<const SymmetricMatrix*, std::vector<Layer*>> groups;
  for (Layer& layer : layers_) groups[layer.loss.hessian.get()].push_back(&layer);
  std::vector<std::vector<Layer*>> order;
  for (auto& [hessian, layers] : groups) order.push_back(std::move(layers));
  std::vector<SizeModel> sizes(order.size());
  progress.begin("looking at layers", static_cast<int64_t>(layers_.size()), "layers");
  parallel_for(static_cast<int64_t>(order.size()), [&](int64_t i) {
    const std::vector<Layer*>& layers = order[static_cast<size_t>(i)];
    std::optional<HessianFactor> factor;
    if (const auto& hessian = layers.front()->loss.hessian)
      factor = factor_hessian(*hessian, options_.damping, layers.front()->name);
    for (Layer* layer : layers) {
      const StepShape& steps = layer->steps =
          step_shape(layer->loss, layer->loss.row_weights, factor ? &*factor : nullptr);
      WeightScales scales = fit_weight_scales(layer->weights);
      sizes[static_cast<size_t>(i)].add(difference(scales.rows, steps.rows), difference(scales.columns, steps.columns));
      progress.advance(1);
    }
  });
  progress.end();
  for (const SizeModel& size : sizes) size_model_.add(size);
}

SlopeMatrix SlopeLayers::solve(const Layer& layer, double log2_c, double shrinkage) const {
  Shrinkage shrunk = shrink(layer.loss, layer.row_mean_squares, log2_c, shrinkage);
  std::optional<HessianFactor> factor;
  if (layer.loss.hessian) {
    factor = factor_hessian(*layer.loss.hessian, options_.damping + shrunk.damping, layer.name);
  }
  const HessianFactor* factor_or_null = factor ? &*factor : nullptr;
  Steps steps = round_steps(step_shape(layer.loss, shrunk.row_weights, factor_or_null), log2_c);
  SlopeGrid grid{options_.trellis_bits, options_.rate_weight, std::move(steps.rows), std::move(steps.columns)};
  SlopeResult result = solve_slope(layer.weights, factor_or_null, grid, layer.row_weights, layer.name);
  Shape shape = {layer.weights.rows(), layer.weights.cols()};
  return {{layer.name, shape, std::move(result.codes)}, std::move(result.report)};
}

std::vector<SlopeMatrix> SlopeLayers::solve(double log2_c, double shrinkage, Progress& progress) const {
  std::vector<SlopeMatrix> solved(layers_.size());
  std::vector<size_t> order(layers_.size());  // the longest first, so that none of them starts last
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater{}, [&](size_t i) {
    const Layer& layer = layers_[i];
    return (layer.weights.rows() + layer.weights.cols()) * layer.weights.cols() *
           (layer.loss.hessian ? layer.weights.cols() : 1);
  });
  progress.begin("solving layers", static_cast<int64_t>(layers_.size()), "layers");
  parallel_for(static_cast<int64_t>(order.size()), [&](int64_t i) {
    size_t index = order[static_cast<size_t>(i)];
    solved[index] = solve(layers_[index], log2_c, shrinkage);
    progress.advance(1);
  });
  progress.end();
  return solved;
}

SlopeMatrix SlopeLayers::solve(const std::string& name, double log2_c, double shrinkage) const {
  return solve(layer(name), log2_c, shrinkage);
}

std::vector<QuantizedTensor> SlopeLayers::zeros(double log2_c) const {
  std::vector<QuantizedTensor> tensors;
  for (const Layer& layer : layers_) {
    Steps steps = round_steps(layer.steps, log2_c);
    std::vector<int32_t> codes(steps.rows.size() * steps.columns.size());
    tensors.push_back(
        {layer.name,
         {layer.weights.rows(), layer.weights.cols()},
         SteppedCodes{options_.trellis_bits, std::move(codes), std::move(steps.rows), std::move(steps.columns)}});
  }
  return tensors;
}

std::vector<std::pair<std::string, int64_t>> SlopeLayers::sizes() const {
  std::vector<std::pair<std::string, int64_t>> sizes;
  for (const Layer& layer : layers_) sizes.emplace_back(layer.name, layer.weights.rows() * layer.weights.cols());
  return sizes;
}

int64_t SlopeLayers::weights() const {
  int64_t count = 0;
  for (const auto& [name, weights] : sizes()) count += weights;
  return count;
}

const SlopeLayers::Layer& SlopeLayers::layer(const std::string& name) const {
  return *std::ranges::find(layers_, name, &Layer::name);
}

double SlopeLayers::mean_row_weight(const std::string& name) const { return mean_of(layer(name).row_weights); }

}  // namespace thimble
