// code_learner.cpp: see code_learner.h.
#include "gptq/slope/code_learner.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <span>
#include <utility>

#include "gptq/slope/adam.h"
#include "gptq/slope/rate_model.h"
#include "gptq/slope/slope_solver.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

constexpr double kQuietCodes = 0.03;  // of AdamStep
constexpr double kWarmUp = 0.1;       // share of the steps

// The same codes with steps of one: its weights are levels.
QuantizedTensor with_unit_steps(QuantizedTensor tensor) {
  auto& codes = std::get<SteppedCodes>(tensor.data);
  std::ranges::fill(codes.row_steps, int16_t{0});
  std::ranges::fill(codes.column_steps, int16_t{0});
  return tensor;
}

// What is by weights becomes by levels: weight = level * row step * column step.
void scale_by_steps(const SteppedCodes& codes, MatrixView gradient) {
  std::vector<float> columns;
  for (int16_t step : codes.column_steps) columns.push_back(step_size(step));
  for_each_row(gradient.rows, gradient.cols, [&](int64_t r) {
    const float row = step_size(codes.row_steps[static_cast<size_t>(r)]);
    float* values = gradient.row(r);
    for (int64_t k = 0; k < gradient.cols; ++k) values[k] *= row * columns[static_cast<size_t>(k)];
  });
}

// Adds the price of bits to gradients by levels.
void add_bits(float price, const CodeLearner::Latents& latents, MatrixView gradient) {
  for_each_row(gradient.rows, gradient.cols, [&](int64_t r) {
    const float* levels = latents.levels.data() + r * gradient.cols;
    const float row = latents.scales.rows[static_cast<size_t>(r)];
    float* values = gradient.row(r);
    for (int64_t k = 0; k < gradient.cols; ++k)
      values[k] += price * bits_by_level(levels[k], row * latents.scales.columns[static_cast<size_t>(k)]);
  });
}

double share_of_rate(int64_t step, int64_t steps) {
  const double at = static_cast<double>(step) / static_cast<double>(steps);
  const double warm_up = std::min(1.0, static_cast<double>(step + 1) / (kWarmUp * static_cast<double>(steps)));
  return warm_up * (1 + std::cos(std::numbers::pi * at)) / 2;
}

class HostLatentMover final : public LatentMover {
 public:
  HostLatentMover(CodeLearner& learner, QuantizedModel student, DivergencePass& pass)
      : learner_(learner), student_(std::move(student)), pass_(pass) {}

  void find_paths() override {
    for (const QuantizedTensor* tensor : learner_.find_paths(0, student_))
      pass_.set_matrix(tensor->name, stored_matrix(*tensor));
  }
  void step(const CodeLearnerOptions& options, const std::function<void()>& meanwhile) override {
    meanwhile();
    learner_.step(pass_.matrix_gradients(), student_, options);
  }
  void store() override {}
  void keep() override { kept_ = learner_.at_rest(); }
  void store_kept(CodeLearner& to) override {
    if (kept_) to = std::move(*kept_);
    kept_.reset();
  }

 private:
  CodeLearner& learner_;
  QuantizedModel student_;
  DivergencePass& pass_;
  std::optional<CodeLearner> kept_;
};

}  // namespace

LevelScales fit_level_scales(ConstMatrixView levels) {
  const WeightScales fitted = fit_weight_scales(levels);
  auto factors = [](const std::vector<float>& log2_scales) {
    std::vector<float> scales;
    for (float scale : log2_scales) scales.push_back(std::exp2(scale));
    return scales;
  };
  return {factors(fitted.rows), factors(fitted.columns)};
}

CodeLearner::CodeLearner(const QuantizedModel& model, const std::set<std::string>& matrices) {
  std::vector<std::pair<const QuantizedTensor*, Latents*>> wanted;
  for (const QuantizedTensor& tensor : model.tensors)
    if (const auto* codes = std::get_if<SteppedCodes>(&tensor.data);
        codes && !codes->codes.is_zero() && matrices.contains(tensor.name))
      wanted.emplace_back(&tensor, &latents_[tensor.name]);
  parallel_for(std::ssize(wanted), [&](int64_t i) {
    const auto& [tensor, latents] = wanted[static_cast<size_t>(i)];
    const auto& codes = std::get<SteppedCodes>(tensor->data);
    latents->levels = dequantize(with_unit_steps(*tensor));
    latents->second.resize(latents->levels.size());
    latents->scales =
        fit_level_scales({latents->levels.data(), std::ssize(codes.row_steps), std::ssize(codes.column_steps)});
  });
}

std::vector<std::string> CodeLearner::matrices() const {
  std::vector<std::string> names;
  for (const auto& [name, latents] : latents_) names.push_back(name);
  return names;
}

void CodeLearner::find_path(double rate_weight, QuantizedTensor& tensor) const {
  const Latents& latents = latents_.at(tensor.name);
  auto& codes = std::get<SteppedCodes>(tensor.data);
  const size_t rows = codes.row_steps.size(), columns = codes.column_steps.size();
  const ConstMatrixView levels(latents.levels.data(), static_cast<int64_t>(rows), static_cast<int64_t>(columns));
  const SlopeGrid grid{codes.trellis_bits, rate_weight, std::vector<int16_t>(rows), std::vector<int16_t>(columns)};
  codes.codes = std::move(solve_slope(levels, nullptr, grid, {}, tensor.name).codes.codes);
}

std::vector<const QuantizedTensor*> CodeLearner::find_paths(double rate_weight, QuantizedModel& model) const {
  std::vector<QuantizedTensor*> tensors;
  for (QuantizedTensor& tensor : model.tensors)
    if (latents_.contains(tensor.name)) tensors.push_back(&tensor);
  parallel_for(std::ssize(tensors), [&](int64_t i) { find_path(rate_weight, *tensors[static_cast<size_t>(i)]); });
  return {tensors.begin(), tensors.end()};
}

CodeLearner CodeLearner::at_rest() const {
  CodeLearner copy;
  std::vector<std::pair<const Latents*, Latents*>> pairs;
  for (const auto& [name, latents] : latents_) pairs.emplace_back(&latents, &copy.latents_[name]);
  parallel_for(std::ssize(pairs), [&](int64_t i) {
    const auto& [from, to] = pairs[static_cast<size_t>(i)];
    to->levels = from->levels;
  });
  return copy;
}

AdamStep CodeLearner::begin_step(const CodeLearnerOptions& options) {
  const double rate = options.rate * share_of_rate(steps_done_, options.steps);
  return {++steps_done_, rate, kQuietCodes};
}

void CodeLearner::step(MatrixGradients& gradients, const QuantizedModel& student, const CodeLearnerOptions& options) {
  const AdamStep step = begin_step(options);
  for (const QuantizedTensor& tensor : student.tensors) {
    const auto found = latents_.find(tensor.name);
    if (found == latents_.end()) continue;
    Latents& latents = found->second;
    Matrix& gradient = gradients.at(tensor.name);
    scale_by_steps(std::get<SteppedCodes>(tensor.data), gradient);
    add_bits(static_cast<float>(options.bit_price), latents, gradient);
    adam_step(
        step, [by_level = gradient.data()](size_t i) { return by_level[i]; }, std::span(latents.levels),
        std::span<float>(), std::span(latents.second));
  }
}

std::unique_ptr<LatentMover> make_latent_mover(CodeLearner& learner, const QuantizedModel& student,
                                               DivergencePass& pass) {
  if (CudaStudent* on_device = pass.on_device()) return make_cuda_latent_mover(learner, student, *on_device);
  return std::make_unique<HostLatentMover>(learner, student, pass);
}

}  // namespace thimble
