// slope_layers.cpp: see slope_layers.h.
#include "quantizer/methods/slope/slope_layers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>

#include "gptq/slope/rate_model.h"
#include "gptq/trace/plan.h"
#include "runtime/base/hash.h"
#include "runtime/base/memory_plan.h"
#include "runtime/base/parallel.h"
#include "runtime/codes/trellis.h"
#include "runtime/tensor/host_device.h"
#include "runtime/tensor/stored_matrix.h"

namespace thimble {
namespace {

std::vector<double> difference(const std::vector<float>& a, const std::vector<double>& b) {
  std::vector<double> values;
  for (size_t i = 0; i < a.size(); ++i) values.push_back(static_cast<double>(a[i]) - b[i]);
  return values;
}

void drop_steps_of_zeros(SteppedCodes& matrix) {
  if (!matrix.codes.is_zero()) return;
  std::ranges::fill(matrix.row_steps, int16_t{0});
  std::ranges::fill(matrix.column_steps, int16_t{0});
}

SlopeMatrix matrix_of(const std::string& name, const Shape& shape, SlopeResult result) {
  drop_steps_of_zeros(result.codes);
  return {{name, shape, std::move(result.codes)}, std::move(result.report)};
}

// Of weights that wait for a device in types that it does not read, converted; those of more layers follow.
constexpr uint64_t kMostWaitingBytes = uint64_t{1} << 30;

}  // namespace

QuantizedTensor zero_matrix(const std::string& name, const Shape& shape, int trellis_bits) {
  SteppedCodes zeros{trellis_bits, {}, {}, {}};
  zeros.codes.resize(static_cast<size_t>(element_count(shape)));
  zeros.row_steps.resize(static_cast<size_t>(shape[0]));
  zeros.column_steps.resize(static_cast<size_t>(shape[1]));
  return {name, shape, std::move(zeros)};
}

Json to_json(const SlopeOptions& options) {
  return {{"column_order", column_order_name(options.column_order)},
          {"cross_damping", options.cross_damping},
          {"cross_term", options.cross_term},
          {"damping", options.damping},
          {"rate_weight", options.rate_weight},
          {"row_power", options.row_power},
          {"shrinkage", options.shrinkage},
          {"trellis_bits", options.trellis_bits}};
}

SlopeLayers::SlopeLayers(const TensorMap& tensors, std::map<std::string, MatrixLoss> losses,
                         const SlopeOptions& options, const Device& device, const SharedWork& work, uint64_t key,
                         Progress& progress)
    : options_(options), device_(device), work_(work) {
  const std::string settings = canonical_json(to_json(options));
  for (auto& [name, loss] : losses) {
    Layer& layer = layers_.emplace_back();
    layer.name = name;
    layer.key = Hasher()
                    .add(key)
                    .add(settings)
                    .add(name)
                    .add(std::as_bytes(std::span(loss.row_weights)))
                    .add(std::as_bytes(std::span(loss.diagonal)))
                    .digest();
    layer.tensor = tensors.at(name);
    layer.row_weights = loss.row_weights;
    layer.loss = std::move(loss);
    layer.loss.row_weights = level_row_weights(layer.row_weights, options.row_power);
  }
  look_at_sizes(progress);
}

SlopeLayers::LayerWeights SlopeLayers::Layer::weights() const {
  StoredMatrix matrix = stored();
  return {matrix.view().is_float32() ? std::move(matrix) : StoredMatrix(matrix.widened())};
}

// How much a column's neighbours tell about it, and with that the level of all steps, is known only once the Hessian is
// factored. Layers that share one share that too: no shrinkage tells their damping apart yet. A guess at it would take
// another artifact to get right, which is by far more work.
void SlopeLayers::look_at_sizes(Progress& progress) {
  std::vector<std::vector<Layer*>> order;
  for (Layer& layer : layers_) {
    auto shares = [&](const auto& group) { return group.front()->loss.hessian == layer.loss.hessian; };
    auto found = std::ranges::find_if(order, shares);
    if (found == order.end())
      order.push_back({&layer});
    else
      found->push_back(&layer);
  }
  progress.begin("looking at layers", static_cast<int64_t>(layers_.size()), "layers");
  std::vector<const Layer*> first;
  for (const auto& layers : order) first.push_back(layers.front());
  const std::vector<std::vector<double>> upper_diagonals = factor_diagonals(first);
  std::vector<SizeModel> sizes(order.size());
  std::vector<uint64_t> bytes;
  for (const auto& layers : order)
    bytes.push_back(static_cast<uint64_t>(layers.front()->rows() * layers.front()->cols()) * sizeof(float));
  parallel_within(bytes, working_memory_bytes(), [&](int64_t i) {
    for (Layer* layer : order[static_cast<size_t>(i)]) {
      const StepShape& steps = layer->steps =
          step_shape(layer->loss, layer->loss.row_weights, upper_diagonals[static_cast<size_t>(i)]);
      const LayerWeights weights = layer->weights();
      require_finite(layer->name, weights.view());
      layer->row_mean_squares = row_mean_squares(weights.view());
      layer->scales = fit_weight_scales(weights.view());
      SizeModel size;
      size.add(difference(layer->scales.rows, steps.rows), difference(layer->scales.columns, steps.columns));
      layer->finest_log2_c = size.log2_c_for(kMostBits * static_cast<double>(layer->rows() * layer->cols()));
      sizes[static_cast<size_t>(i)].add(size);
      progress.advance(1);
    }
  });
  progress.end();
  for (const SizeModel& size : sizes) size_model_.add(size);
}

std::vector<std::vector<double>> SlopeLayers::factor_diagonals(std::span<const Layer* const> layers) const {
  std::vector<std::vector<double>> diagonals(layers.size());
  std::vector<size_t> known;  // layers with Hessians
  for (size_t i = 0; i < layers.size(); ++i)
    if (layers[i]->loss.hessian) known.push_back(i);
  if (!device_.is_cuda) {
    std::vector<uint64_t> bytes;
    for (size_t i : known) bytes.push_back(factor_bytes(layers[i]->cols()));
    parallel_within(bytes, working_memory_bytes(), [&](int64_t k) {
      const size_t i = known[static_cast<size_t>(k)];
      const Layer& layer = *layers[i];
      diagonals[i] = factor_diagonal(*layer.loss.hessian->load(), options_.damping, layer.name, options_.column_order);
    });
    return diagonals;
  }
  run_in_threads(device_.ordinals.size(), [&](size_t device) {
    std::vector<FactorJob> jobs;
    for (size_t k = device; k < known.size(); k += device_.ordinals.size()) {
      const Layer& layer = *layers[known[k]];
      jobs.push_back({layer.name, layer.loss.hessian.get(), options_.damping, options_.column_order});
    }
    auto found = factor_diagonals_cuda(jobs, {device_.ordinals[device], device_.memory_limit_bytes});
    for (size_t j = 0; j < jobs.size(); ++j)
      diagonals[known[device + j * device_.ordinals.size()]] = std::move(found[j]);
  });
  return diagonals;
}

SlopeLayers::Task SlopeLayers::task(const Layer& layer, SlopeSetting setting) const {
  setting.log2_c = std::max(setting.log2_c, layer.finest_log2_c);
  Shrinkage shrunk = shrink(layer.loss, layer.row_mean_squares, setting.log2_c, setting.shrinkage);
  return {&layer, setting, options_.damping + shrunk.damping, std::move(shrunk.row_weights)};
}

SlopeGrid SlopeLayers::grid(const Task& task, const std::vector<double>& upper_diagonal) const {
  StepShape shape = step_shape(task.layer->loss, task.row_weights, upper_diagonal);
  if (task.setting.is_flat) {
    std::ranges::fill(shape.rows, mean_of(shape.rows));
    std::ranges::fill(shape.columns, 0);
  }
  Steps steps = round_steps(shape, task.setting.log2_c);
  const double rate_weight = std::min(options_.rate_weight + task.setting.rate_weight, kMaxRateWeight);
  return {options_.trellis_bits, rate_weight, std::move(steps.rows), std::move(steps.columns)};
}

SlopeResult SlopeLayers::solve_on_cpu(const Task& task) const {
  const Layer& layer = *task.layer;
  std::optional<HessianFactor> factor;
  if (layer.loss.hessian)
    factor = factor_hessian(*layer.loss.hessian->load(), task.damping, layer.name, options_.column_order);
  const std::vector<double> upper_diagonal = factor ? factor->upper_diagonal() : std::vector<double>{};
  return solve_slope(layer.weights().view(), factor ? &*factor : nullptr, grid(task, upper_diagonal), layer.row_weights,
                     layer.name, &layer.scales);
}

void SlopeLayers::solve_on_cuda(std::span<const Task> tasks, std::span<const size_t> chosen, int ordinal,
                                const Take& take) const {
  for (size_t done = 0; done < chosen.size();) {
    std::vector<SlopeJob> jobs;
    std::vector<StoredMatrix> weights;
    for (uint64_t waiting = 0; done + jobs.size() < chosen.size() && waiting < kMostWaitingBytes;) {
      const Task& task = tasks[chosen[done + jobs.size()]];
      const Layer& layer = *task.layer;
      weights.push_back(layer.stored());
      waiting += layer.shifted ? 0 : weights.back().owned_bytes();
      jobs.push_back({{layer.name, layer.loss.hessian.get(), task.damping, options_.column_order},
                      weights.back(),
                      layer.row_weights,
                      &layer.scales});
    }
    auto choose_grid = [&](size_t job, const std::vector<double>& upper_diagonal) {
      return grid(tasks[chosen[done + job]], upper_diagonal);
    };
    solve_slope_cuda(jobs, choose_grid, {ordinal, device_.memory_limit_bytes},
                     [&](size_t job, SlopeResult result) { take(chosen[done + job], std::move(result)); });
    done += jobs.size();
  }
}

uint64_t solving_bytes(int64_t rows, int64_t columns, bool has_hessian) {
  const auto weights = static_cast<uint64_t>(rows * columns);
  const int64_t segment = std::min(rows, kTrellisRows);  // which a thread solves
  const auto threads = static_cast<uint64_t>(thread_count());
  if (!has_hessian)
    return weights * sizeof(float) + threads * static_cast<uint64_t>(segment) * kFreeColumns * sizeof(int32_t);
  const uint64_t segments = std::min(threads, static_cast<uint64_t>(divide_up(rows, kTrellisRows)));
  const uint64_t in_segments = segments * static_cast<uint64_t>(segment * columns) * (sizeof(double) + sizeof(int32_t));
  const auto square = static_cast<uint64_t>(columns * columns) * sizeof(double);
  return std::max(factor_bytes(columns), square + weights * sizeof(float) + in_segments);
}

uint64_t SlopeLayers::work_bytes(const Layer& layer) {
  return solving_bytes(layer.rows(), layer.cols(), layer.loss.hessian != nullptr);
}

uint64_t SlopeLayers::working_memory_bytes() const {
  return working_memory(device_.host_memory_bytes, static_cast<uint64_t>(weights()) * kSolvedWeightBytes);
}

int64_t SlopeLayers::cost(const Layer& layer) {
  return (layer.rows() + layer.cols()) * layer.cols() * (layer.loss.hessian ? layer.cols() : 1);
}

void SlopeLayers::give(const Task& task, SlopeResult result, size_t piece, const SharedWork::Give<SlopeMatrix>& take,
                       const OnSolved& on_solved) const {
  SlopeMatrix solved = matrix_of(task.layer->name, task.layer->tensor.shape, std::move(result));
  if (on_solved && device_.is_cuda) on_solved(solved);
  take(piece, std::move(solved));
}

std::vector<SlopeMatrix> SlopeLayers::solve(const SlopeSettings& settings, Progress& progress,
                                            const OnSolved& on_solved) const {
  std::vector<Wanted> wanted;
  for (const auto& [name, setting] : settings) wanted.push_back({&layer(name), setting});
  auto compute = [&](std::span<const size_t> mine, const SharedWork::Give<SlopeMatrix>& take) {
    std::vector<Task> tasks;
    for (size_t i : mine) tasks.push_back(task(*wanted[i].layer, wanted[i].setting));
    solve_here(tasks, [&](size_t i, SlopeResult result) {
      give(tasks[i], std::move(result), mine[i], take, on_solved);
      progress.advance(1);
    });
  };
  return share(wanted, 0, compute, progress);
}

std::vector<Matrix> SlopeLayers::shifted_weights(std::span<const std::string> names, const StoredPair& pair) const {
  std::vector<StoredMatrix> weights;
  for (const std::string& name : names) weights.push_back(layer(name).stored());
  const std::vector<StoredMatrixView> views(weights.begin(), weights.end());
  return shift_weights(views, pair, options_.cross_damping, options_.cross_term, names[0], device_);
}

std::vector<SlopeMatrix> SlopeLayers::solve_shifted(std::span<const std::string> names, const SlopeSetting& setting,
                                                    uint64_t key, const std::function<StoredPair()>& collect,
                                                    StageTimes& times, Progress& progress,
                                                    const OnSolved& on_solved) const {
  std::vector<Wanted> wanted;
  for (const std::string& name : names) wanted.push_back({&layer(name), setting});
  auto compute = [&](std::span<const size_t> mine, const SharedWork::Give<SlopeMatrix>& take) {
    StoredPair pair = collect();
    if (mine.empty()) return;
    std::vector<std::string> own;
    for (size_t i : mine) own.push_back(names[i]);
    std::vector<Matrix> weights = times.time("cross terms: shift", [&] { return shifted_weights(own, pair); });
    pair.drift = {};
    std::vector<Layer> shifted;
    for (size_t i = 0; i < mine.size(); ++i) {
      const Layer& from = *wanted[mine[i]].layer;
      shifted.push_back({from.name,
                         from.key,
                         from.tensor,
                         StoredMatrix(std::move(weights[i])),
                         {pair.hessian, pair.hessian->diagonal(), from.loss.row_weights},
                         from.row_weights,
                         from.row_mean_squares,
                         {},
                         from.steps,
                         from.finest_log2_c});
    }
    parallel_for(std::ssize(shifted), [&](int64_t i) {
      Layer& layer = shifted[static_cast<size_t>(i)];
      layer.scales = fit_weight_scales(layer.shifted->view().float32());
    });
    std::vector<Task> tasks;
    for (const Layer& layer : shifted) tasks.push_back(task(layer, setting));
    times.time("cross terms: solve", [&] {
      solve_here(tasks, [&](size_t i, SlopeResult result) {
        give(tasks[i], std::move(result), mine[i], take, on_solved);
        progress.advance(1);
      });
    });
  };
  return share(wanted, key, compute, progress);
}

// The most work first, so that none of it starts last.
std::vector<SlopeMatrix> SlopeLayers::share(std::span<const Wanted> wanted, uint64_t key, const Compute& compute,
                                            Progress& progress) const {
  std::vector<size_t> order(wanted.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater{}, [&](size_t i) { return cost(*wanted[i].layer); });
  std::vector<SharedWork::Piece> pieces(wanted.size());
  for (size_t turn = 0; turn < order.size(); ++turn) {
    const auto& [layer, setting] = wanted[order[turn]];
    Hasher hasher;
    hasher.add(layer->key).add(key);
    for (double value : {setting.log2_c, setting.shrinkage, setting.rate_weight, setting.is_flat ? 1.0 : 0.0})
      hasher.add(std::bit_cast<uint64_t>(value));
    pieces[order[turn]] = {hasher.digest(), turn};
  }
  progress.begin("solving layers", static_cast<int64_t>(wanted.size()), "layers");
  std::vector<SlopeMatrix> solved = work_.results<SlopeMatrix>(WorkKind::kSolution, pieces, compute);
  progress.end();
  return solved;
}

void SlopeLayers::solve_here(std::span<const Task> tasks, const Take& take) const {
  // Dealt out in turn to the devices; the rest is the CPU's.
  std::vector<std::vector<size_t>> shares(device_.is_cuda ? device_.ordinals.size() : 0);
  std::vector<size_t> rest;
  size_t turn = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (!shares.empty() && tasks[i].layer->loss.hessian)
      shares[turn++ % shares.size()].push_back(i);
    else
      rest.push_back(i);
  }
  std::vector<uint64_t> bytes(shares.size());  // of the host's memory
  for (size_t i : rest) bytes.push_back(work_bytes(*tasks[i].layer));
  parallel_within(bytes, working_memory_bytes(), [&](int64_t share) {
    const auto i = static_cast<size_t>(share);
    if (i < shares.size()) {
      if (!shares[i].empty()) solve_on_cuda(tasks, shares[i], device_.ordinals[i], take);
      return;
    }
    const size_t index = rest[i - shares.size()];
    take(index, solve_on_cpu(tasks[index]));
  });
}

std::vector<QuantizedTensor> SlopeLayers::zeros() const {
  std::vector<QuantizedTensor> tensors;
  std::map<Shape, SteppedCodes> of_shape;  // which share their codes
  for (const Layer& layer : layers_) {
    const Shape& shape = layer.tensor.shape;
    auto [zeros, is_new] = of_shape.try_emplace(shape);
    if (is_new) zeros->second = std::get<SteppedCodes>(zero_matrix(layer.name, shape, options_.trellis_bits).data);
    tensors.push_back({layer.name, shape, zeros->second});
  }
  return tensors;
}

std::vector<QuantizedTensor> SlopeLayers::zeros_with_columns() const {
  std::vector<QuantizedTensor> tensors = zeros();
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto& codes = std::get<SteppedCodes>(tensors[i].data);
    std::ranges::fill(codes.row_steps, int16_t{kMaxStep});
    codes.column_steps = round_steps(layers_[i].steps, 0).columns;
  }
  return tensors;
}

std::vector<std::pair<std::string, int64_t>> SlopeLayers::sizes() const {
  std::vector<std::pair<std::string, int64_t>> sizes;
  for (const Layer& layer : layers_) sizes.emplace_back(layer.name, layer.rows() * layer.cols());
  return sizes;
}

std::vector<std::string> SlopeLayers::names() const {
  std::vector<std::string> names;
  for (const Layer& layer : layers_) names.push_back(layer.name);
  return names;
}

int64_t SlopeLayers::weights() const {
  int64_t count = 0;
  for (const auto& [name, weights] : sizes()) count += weights;
  return count;
}

uint64_t SlopeLayers::key() const {
  Hasher hasher;
  for (const Layer& layer : layers_) hasher.add(layer.key);
  return hasher.digest();
}

const SlopeLayers::Layer& SlopeLayers::layer(const std::string& name) const {
  return *std::ranges::find(layers_, name, &Layer::name);
}

SlopeSetting SlopeLayers::setting_at(double log2_c) const {
  const double bits = size_model_.bits(log2_c) / static_cast<double>(std::max<int64_t>(1, weights()));
  return {log2_c, std::min(options_.shrinkage, shrinkage_for(kShrunkShare * bits))};
}

double SlopeLayers::finest_log2_c() const {
  double finest = kHighestLog2C;
  for (const Layer& layer : layers_) finest = std::min(finest, layer.finest_log2_c);
  return finest;
}

double SlopeLayers::mean_row_weight(const std::string& name) const { return mean_of(layer(name).row_weights); }

}  // namespace thimble
