// asked_model.cpp: see asked_model.h.
#include "python/asked_model.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <set>
#include <utility>

#include "gptq/slope/slope_solver.h"
#include "python/array_bridge.h"
#include "python/bindings.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/codes/trellis.h"

namespace thimble {
namespace {

namespace nb = nanobind;

using Floats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using SquareF64 = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

Array array_of(const Shape& shape, std::span<const float> values) {
  return array_of(Tensor{DType::kF32, shape, from_float32(DType::kF32, values)});
}

Array values_of(const QuantizedTensor& tensor) { return array_of(tensor.shape, dequantize(tensor)); }

bool has_floats(const QuantizedTensor& tensor) {
  const auto* raw = std::get_if<RawTensor>(&tensor.data);
  return !raw || is_floating(raw->dtype);
}

nb::dict values_of(const QuantizedModel& model) {
  nb::dict values;
  for (const QuantizedTensor& tensor : model.tensors)
    if (has_floats(tensor)) values[tensor.name.c_str()] = values_of(tensor);
  return values;
}

Shape in_two_dimensions(const SteppedCodes& codes) {
  return {static_cast<int64_t>(codes.row_steps.size()), static_cast<int64_t>(codes.column_steps.size())};
}

Array step_sizes(const std::vector<int16_t>& steps) {
  std::vector<float> sizes;
  for (int16_t step : steps) sizes.push_back(step_size(step));
  return array_of({std::ssize(sizes)}, sizes);
}

// The same codes with steps of one are levels.
std::vector<float> levels_of(SteppedCodes codes) {
  const Shape shape = in_two_dimensions(codes);
  std::ranges::fill(codes.row_steps, int16_t{0});
  std::ranges::fill(codes.column_steps, int16_t{0});
  return dequantize({"", shape, std::move(codes)});
}

std::span<const float> span_of(const Floats& floats) { return {floats.data(), floats.size()}; }

FloatTensors floats_of(const nb::object& arrays) {
  FloatTensors floats;
  for (const auto& [name, values] : nb::cast<std::map<std::string, Floats>>(arrays))
    floats[name].assign(values.data(), values.data() + values.size());
  return floats;
}

// What "learn" and "distill" are told of a model, and what else they are told; their answer.
template <typename... Told>
nb::object ask_about(const char* question, const QuantizedModel& model, const nb::callable& ask, Told... told) {
  nb::dict others, small, stepped;
  for (const QuantizedTensor& tensor : model.tensors) {
    const char* name = tensor.name.c_str();
    if (const auto* codes = std::get_if<SteppedCodes>(&tensor.data))
      stepped[name] =
          nb::make_tuple(array_of(in_two_dimensions(*codes), levels_of(*codes)), step_sizes(codes->row_steps),
                         step_sizes(codes->column_steps), codes->trellis_bits);
    else if (has_floats(tensor))
      (std::holds_alternative<RawTensor>(tensor.data) ? small : others)[name] = values_of(tensor);
  }
  return ask(question, others, small, stepped, told...);
}

// What another process answered is ours: it does not fit by our own mistake alone.
void require(bool holds, const std::string& what) {
  if (!holds) throw Error(ExitCode::kInternal, "an answer of another length than asked for: " + what);
}

void require_rows(const Gains& gains, const QuantizedModel& model) {
  for (const QuantizedTensor& tensor : model.tensors)
    if (const auto* codes = std::get_if<SteppedCodes>(&tensor.data); codes && gains.rows.contains(tensor.name))
      require(gains.rows.at(tensor.name).size() == codes->row_steps.size(), tensor.name);
}

// Levels of the trellis path that is nearest to latents (R, K), or by rate too, as CodeLearner finds it.
nb::object nearest_levels(const Floats& latents, int trellis_bits, double rate_weight) {
  if (latents.ndim() != 2) throw UsageError("latents of " + std::to_string(latents.ndim()) + " dimensions, not 2");
  if (!Trellis::has_bits(trellis_bits))
    throw UsageError("trellis_bits is " + std::to_string(trellis_bits) + ", allowed are 0 and 2 to 8");
  const auto rows = latents.shape(0), columns = latents.shape(1);
  std::vector<float> levels;
  {
    const nb::gil_scoped_release unlocked;
    const ConstMatrixView view(latents.data(), static_cast<int64_t>(rows), static_cast<int64_t>(columns));
    const SlopeGrid grid{trellis_bits, rate_weight, std::vector<int16_t>(rows), std::vector<int16_t>(columns)};
    levels = levels_of(solve_slope(view, nullptr, grid, {}, "latents").codes);
  }
  return nb::cast(array_of({static_cast<int64_t>(rows), static_cast<int64_t>(columns)}, levels));
}

// Of levels (R, K) as samples of Gaussians: deviations of rows (R) and of columns (K), their factors.
nb::object level_scales(const Floats& levels) {
  if (levels.ndim() != 2) throw UsageError("levels of " + std::to_string(levels.ndim()) + " dimensions, not 2");
  const ConstMatrixView view(levels.data(), static_cast<int64_t>(levels.shape(0)),
                             static_cast<int64_t>(levels.shape(1)));
  const LevelScales scales = fit_level_scales(view);
  return nb::make_tuple(array_of({view.rows}, scales.rows), array_of({view.cols}, scales.columns));
}

}  // namespace

AskedModel::AskedModel(nb::callable ask, std::vector<std::vector<std::string>> inputs, std::string key, bool learns,
                       bool learns_rows, bool distills)
    : ask_(std::move(ask)),
      inputs_(std::move(inputs)),
      key_(std::move(key)),
      learns_(learns),
      learns_rows_(learns_rows),
      distills_(distills) {}

uint64_t AskedModel::key() const {
  return Hasher().add(std::string_view("asked")).add(std::string_view(key_)).digest();
}

void AskedModel::begin(const KnownTensors& known) {
  const nb::gil_scoped_acquire locked;
  nb::dict tensors;
  for (const auto& [name, tensor] : known)
    if (has_floats(*tensor)) tensors[name.c_str()] = values_of(*tensor);
  ask_("begin", tensors);
}

StoredPair AskedModel::collect(size_t input) {
  const nb::gil_scoped_acquire locked;
  const nb::object answer = ask_("collect", input);
  const auto hessian = nb::cast<SquareF64>(answer[0]), drift = nb::cast<SquareF64>(answer[1]);
  const auto columns = static_cast<int64_t>(hessian.shape(0));
  require(hessian.shape(1) == hessian.shape(0) && drift.size() == hessian.size(), "the statistics of an input");
  InputPair pair{SymmetricMatrix(columns), MatrixF64({drift.data(), drift.size()}, columns, columns)};
  for (int64_t i = 0; i < columns; ++i) std::copy_n(hessian.data() + i * columns, i + 1, pair.hessian.lower_row(i));
  return store_in_memory(std::move(pair));
}

void AskedModel::replace(const QuantizedTensor& solved) {
  const nb::gil_scoped_acquire locked;
  ask_("replace", solved.name, values_of(solved));
}

void AskedModel::end() {
  const nb::gil_scoped_acquire locked;
  ask_("end");
}

LearnedCodes AskedModel::learn(const QuantizedModel& model, double divergence, size_t, Progress&) {
  const nb::gil_scoped_acquire locked;
  const nb::object answer = ask_about("learn", model, ask_, bit_price(model, divergence));
  const auto latents = nb::cast<std::map<std::string, Floats>>(answer[0]);
  std::set<std::string> names;
  for (const auto& [name, levels] : latents) names.insert(name);
  LearnedCodes learned;
  learned.learner = CodeLearner(model, names);
  for (auto& [name, found] : learned.learner.latents()) {
    const std::span<const float> levels = span_of(latents.at(name));
    require(levels.size() == found.levels.size(), name);
    found.levels.assign(levels.begin(), levels.end());
  }
  learned.gains.rows = floats_of(answer[1]);
  require_rows(learned.gains, model);
  learned.gains.small = floats_of(answer[2]);
  learned.steps = nb::cast<int64_t>(answer[3]);
  learned.sequences = nb::cast<int64_t>(answer[4]);
  learned.held_out = nb::cast<int64_t>(answer[5]);
  return learned;
}

Distilled AskedModel::distill(const QuantizedModel& model, const SmallExponents& small, Progress& progress) {
  Distilled distilled;
  Gains gains;
  distilled.report.divergence_before = divergence(model, progress);
  {
    const nb::gil_scoped_acquire locked;
    const nb::object answer = ask_about("distill", model, ask_);
    gains.rows = floats_of(answer[0]);
    gains.small = floats_of(answer[1]);
    distilled.report.steps = nb::cast<int64_t>(answer[2]);
    distilled.report.sequences = nb::cast<int64_t>(answer[3]);
    distilled.report.held_out = nb::cast<int64_t>(answer[4]);
  }
  require_rows(gains, model);
  distilled.model = with_rounded_small(with_gains(model, gains, ""), small);
  distilled.report.divergence_after = divergence(distilled.model, progress);
  distilled.report.is_kept = distilled.report.is_closer();
  return distilled;
}

TunedNames AskedModel::tuned(const QuantizedModel& model) const {
  TunedNames names;
  for (const std::vector<std::string>& input : inputs_) names.rows.insert(input.begin(), input.end());
  for (const QuantizedTensor& tensor : model.tensors)
    if (std::holds_alternative<RawTensor>(tensor.data) && has_floats(tensor)) names.small.insert(tensor.name);
  return names;
}

double AskedModel::divergence(const QuantizedModel& model, Progress&) {
  const nb::gil_scoped_acquire locked;
  return nb::cast<double>(ask_("divergence", values_of(model)));
}

void bind_trellis(nb::module_& module) {
  module.def("nearest_levels", &nearest_levels, nb::arg("latents"), nb::arg("trellis_bits"),
             nb::arg("rate_weight") = 0.0);
  module.def("level_scales", &level_scales, nb::arg("levels"));
}

}  // namespace thimble
