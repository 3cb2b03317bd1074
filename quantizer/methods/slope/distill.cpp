// distill.cpp: see distill.h.
#include "quantizer/methods/slope/distill.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "runtime/base/hash.h"
#include "runtime/base/random.h"

namespace thimble {
namespace {

// Row steps that change by -1, 0 or 1 take about as many bytes as tuned ones do.
constexpr double kUsualChange = 1.5;

SteppedCodes* stepped_codes(QuantizedTensor& tensor) { return std::get_if<SteppedCodes>(&tensor.data); }

// Is what a linear layer gives scaled by a vector of its own, with nothing between?
bool has_scaled_rows(const Network& network, ValueId output) {
  return std::ranges::any_of(network.nodes, [&](const Node& node) {
    const auto* add = std::get_if<op::Add>(&node.operation);
    return add && add->scale != kAbsent && network.vector(add->scale).count > 1 && node.inputs[1] == output;
  });
}

// The matrices whose rows get gains: not those whose rows small tensors scale anyhow.
std::set<std::string> row_layer_names(const Network& network) {
  std::set<std::string> names;
  for (const Node& node : network.nodes)
    if (const auto* linear = std::get_if<op::Linear>(&node.operation); linear && !has_scaled_rows(network, node.output))
      names.insert(network.matrix(linear->weight).name);
  return names;
}

const std::string& head_name(const Network& network) { return network.matrix(network.head.weight).name; }

// In steps, not rounded.
double step_change(float gain) { return kStepsPerOctave * std::log2(static_cast<double>(gain)); }

void add_to_step(double change, int16_t& step) {
  const auto rounded = static_cast<int>(std::lround(change));
  step = static_cast<int16_t>(std::clamp(step + rounded, -kMaxStep, kMaxStep));
}

// The gains that a model as stored stands for, relative to another with the same codes.
Gains stored_gains(const QuantizedModel& tuned, const QuantizedModel& first, const Network& network) {
  const std::string& head = head_name(network);
  Gains gains;
  for (size_t i = 0; i < tuned.tensors.size(); ++i) {
    const QuantizedTensor& tensor = tuned.tensors[i];
    const auto *codes = std::get_if<SteppedCodes>(&tensor.data),
               *before = std::get_if<SteppedCodes>(&first.tensors[i].data);
    for (size_t r = 0; codes && r < codes->row_steps.size(); ++r)
      gains.rows[tensor.name].push_back(step_size(codes->row_steps[r] - before->row_steps[r]));
    if (codes && tensor.name == head) gains.head = gains.rows.at(head).at(0);
  }
  gains.small = small_tensors(tuned, network);
  return gains;
}

// Of what distilling the model, or one made of another by `from`, depends on.
uint64_t distillation_key(const DistillInput& input, const QuantizedModel& model, uint64_t from = 0) {
  const GainTunerOptions& options = input.options;
  Hasher hasher;
  hasher.add(std::string_view("distilling")).add(input.key).add(hash_of(model)).add(from);
  for (double value : {options.row_rate, options.small_rate, input.data_share, input.temperature})
    hasher.add(std::bit_cast<uint64_t>(value));
  for (int64_t count : {options.steps, options.batch, input.tokens.count, input.tokens.length})
    hasher.add(static_cast<uint64_t>(count));
  return hasher.digest();
}

}  // namespace

GainTunerInput tuner_input(const QuantizedModel& model, const Network& network) {
  GainTunerInput input;
  const std::set<std::string> names = row_layer_names(network);
  for (const QuantizedTensor& tensor : model.tensors) {
    const auto* codes = std::get_if<SteppedCodes>(&tensor.data);
    if (codes && names.contains(tensor.name))
      input.row_layers.emplace_back(tensor.name, static_cast<int64_t>(codes->row_steps.size()));
    if (codes && tensor.name == head_name(network)) input.tune_head = true;
  }
  input.small = small_tensors(model, network);
  return input;
}

FloatTensors small_tensors(const QuantizedModel& model, const Network& network) {
  FloatTensors small;
  for (const QuantizedTensor& tensor : model.tensors)
    if (network.is_small(tensor.name)) small[tensor.name] = dequantize(tensor);
  return small;
}

QuantizedModel with_gains(QuantizedModel model, const Gains& gains, const std::string& head) {
  for (QuantizedTensor& tensor : model.tensors) {
    if (SteppedCodes* codes = stepped_codes(tensor)) {
      if (tensor.name == head)
        for (int16_t& step : codes->row_steps) add_to_step(step_change(gains.head), step);
      if (auto found = gains.rows.find(tensor.name); found != gains.rows.end())
        for (size_t r = 0; r < codes->row_steps.size(); ++r)
          add_to_step(step_change(found->second[r]), codes->row_steps[r]);
    } else if (auto* raw = std::get_if<RawTensor>(&tensor.data)) {
      if (auto found = gains.small.find(tensor.name); found != gains.small.end())
        raw->bytes = from_float32(raw->dtype, found->second);
    }
  }
  return model;
}

Distilled distill(const DistillInput& input, const QuantizedModel& model, const SmallExponents& small,
                  Progress& progress) {
  const Network& network = *input.original->network;
  const DistillSplit split = split_sequences(input, input.options.steps, input.options.batch);
  const TokenSequences tokens = chosen_sequences(input.tokens, split);
  GainTunerInput gains = tuner_input(model, network);
  gains.sequences = split.learned;
  gains.positions = tokens.length - 1;
  std::unique_ptr<DivergencePass> made;  // once something is not kept
  auto pass = [&]() -> DivergencePass& {
    if (!made) made = make_student_pass(input, model, tokens, progress);
    return *made;
  };
  const uint64_t key = distillation_key(input, model);
  auto divergence = [&](const QuantizedModel& stored) {
    return input.work.result<double>({WorkKind::kScore, distillation_key(input, stored, key)}, [&] {
      pass().set(stored_gains(stored, model, network));
      return held_out_divergence(pass(), split, tokens.length, progress);
    });
  };
  Distilled result;
  result.report = {input.options.steps, split.learned, split.held_out};
  result.report.data_share = input.data_share;
  result.report.temperature = input.temperature;
  result.report.divergence_before = divergence(model);
  const PieceName name = {WorkKind::kLearning, key};
  GainTuner tuner = input.work.find<GainTuner>(name).value_or(GainTuner(gains, input.options));
  progress.begin("distilling", input.options.steps, "steps");
  progress.advance(tuner.steps_done());
  while (tuner.steps_done() < input.options.steps) {
    tuner.step(pass(), gains, input.options);
    input.work.keep(name, tuner);
    progress.advance(1);
  }
  progress.end();
  result.model = with_rounded_small(with_gains(model, tuner.gains(), head_name(network)), small);
  result.report.divergence_after = divergence(result.model);
  result.report.is_kept = result.report.is_closer();
  return result;
}

TunedNames tuned_names(const Network& network) {
  TunedNames names{row_layer_names(network), {}};
  for (const Parameter& parameter : network.parameters)
    if (network.is_small(parameter.name)) names.small.insert(parameter.name);
  return names;
}

int64_t distill_reserve_bytes(const QuantizedModel& model, const TunedNames& names, uint64_t artifact_bytes,
                              const SmallExponents& small, const EncodeOptions& encode, Encoder& encoder,
                              Progress& progress) {
  QuantizedModel jittered = model;
  uint64_t stream = 0;
  for (QuantizedTensor& tensor : jittered.tensors) {
    ++stream;
    SteppedCodes* codes = stepped_codes(tensor);
    if (codes && names.rows.contains(tensor.name))
      for (size_t r = 0; r < codes->row_steps.size(); ++r)
        add_to_step(kUsualChange * (2 * uniform_at(0, stream, r) - 1), codes->row_steps[r]);
    if (auto* raw = std::get_if<RawTensor>(&tensor.data); raw && names.small.contains(tensor.name)) {
      std::vector<float> values = to_float32(raw->dtype, raw->bytes);
      for (size_t i = 0; i < values.size(); ++i)
        values[i] *= static_cast<float>(0.96 + 0.08 * uniform_at(1, stream, i));
      raw->bytes = from_float32(raw->dtype, values);
    }
  }
  return static_cast<int64_t>(encoder.bytes(with_rounded_small(std::move(jittered), small), encode, progress)) -
         static_cast<int64_t>(artifact_bytes);
}

}  // namespace thimble
