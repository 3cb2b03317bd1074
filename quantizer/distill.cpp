// distill.cpp: see distill.h.
#include "quantizer/distill.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "runtime/golf_layout.h"
#include "runtime/linear_layers.h"
#include "runtime/random.h"

namespace thimble {
namespace {

// Sequences held out: every eighth, but no more than tell two models apart.
constexpr int64_t kHeldOutShare = 8, kMostHeldOut = 4;

// Changes of row steps that are dropped one after another until an artifact fits: first the smallest that are not
// rounded to 0 anyhow.
constexpr double kFirstThreshold = 0.6, kLastThreshold = 8, kThresholdStep = 0.1;
// Row steps that change by -1, 0 or 1 take about as many bytes as tuned ones do.
constexpr double kUsualChange = 1.5;

SteppedCodes* stepped_codes(QuantizedTensor& tensor) { return std::get_if<SteppedCodes>(&tensor.data); }

// The matrices whose rows get gains. The outputs of attention and MLP do not: their rows are scaled by attn_scale and
// mlp_scale anyhow.
std::set<std::string> row_layer_names(const ModelConfig& config) {
  std::set<std::string> names;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const LayerNames layer(i);
    names.insert({layer.query, layer.key, layer.value, layer.up});
  }
  if (config.bigram_vocab_size > 0) names.insert(kBigramProjection);
  if (!config.ve_layers.empty()) names.insert(kValueProjection);
  return names;
}

GainTunerInput tuner_input(QuantizedModel& model, const ModelConfig& config) {
  GainTunerInput input;
  const std::set<std::string> names = row_layer_names(config);
  for (QuantizedTensor& tensor : model.tensors) {
    const SteppedCodes* codes = stepped_codes(tensor);
    if (codes && names.contains(tensor.name))
      input.row_layers.emplace_back(tensor.name, static_cast<int64_t>(codes->row_steps.size()));
    if (codes && tensor.name == head_name(config)) input.tune_head = true;
    if (!is_golf_matrix(tensor.name)) input.small[tensor.name] = dequantize(tensor);
  }
  return input;
}

// In steps, not rounded.
double step_change(float gain) { return kStepsPerOctave * std::log2(static_cast<double>(gain)); }

void add_to_step(double change, int16_t& step) {
  const auto rounded = static_cast<int>(std::lround(change));
  step = static_cast<int16_t>(std::clamp(step + rounded, -kMaxStep, kMaxStep));
}

// Gains of rows change steps by at least `least`, or not at all. Counts those that were dropped.
int64_t apply(const Gains& gains, const ModelConfig& config, double least, QuantizedModel& model) {
  int64_t dropped = 0;
  for (QuantizedTensor& tensor : model.tensors) {
    if (SteppedCodes* codes = stepped_codes(tensor)) {
      if (tensor.name == head_name(config))
        for (int16_t& step : codes->row_steps) add_to_step(step_change(gains.head), step);
      auto found = gains.rows.find(tensor.name);
      for (size_t r = 0; found != gains.rows.end() && r < codes->row_steps.size(); ++r) {
        const double change = step_change(found->second[r]);
        if (std::abs(change) >= least)
          add_to_step(change, codes->row_steps[r]);
        else
          dropped += std::lround(change) != 0;
      }
    }
    if (auto found = gains.small.find(tensor.name); found != gains.small.end())
      if (auto* raw = std::get_if<RawTensor>(&tensor.data)) raw->bytes = from_float32(raw->dtype, found->second);
  }
  return dropped;
}

// The gains that a model as stored stands for, relative to another with the same codes.
Gains stored_gains(QuantizedModel& tuned, QuantizedModel& first, const std::string& head) {
  Gains gains;
  for (size_t i = 0; i < tuned.tensors.size(); ++i) {
    QuantizedTensor& tensor = tuned.tensors[i];
    const SteppedCodes *codes = stepped_codes(tensor), *before = stepped_codes(first.tensors[i]);
    for (size_t r = 0; codes && r < codes->row_steps.size(); ++r)
      gains.rows[tensor.name].push_back(step_size(codes->row_steps[r] - before->row_steps[r]));
    if (codes && tensor.name == head) gains.head = gains.rows.at(head).at(0);
    if (!is_golf_matrix(tensor.name)) gains.small[tensor.name] = dequantize(tensor);
  }
  return gains;
}

}  // namespace

GainTunerOptions gain_tuner_options(const DistillOptions& options, const Device& device) {
  GainTunerOptions tuner;
  tuner.steps = options.steps.value_or(device.is_cuda ? 32 : 24);
  tuner.batch = options.batch > 0 ? options.batch : device.is_cuda ? 8 : 2;
  tuner.row_rate = options.row_rate;
  tuner.small_rate = options.small_rate;
  return tuner;
}

DistillReport distill(const DistillInput& input, const GainTunerOptions& options, const EncodeOptions& encode,
                      SectionCache& cache, QuantizedModel& model, ByteVector& artifact, StageTimes& times,
                      Progress& progress) {
  const ModelConfig& config = input.original.config;
  const int64_t available = std::min(input.tokens.count, divergence_sequences(config, input.tokens.length));
  DistillReport report;
  report.steps = options.steps;
  report.held_out = std::clamp<int64_t>(available / kHeldOutShare, 1, kMostHeldOut);
  report.sequences = std::min(available - report.held_out, options.steps * options.batch);

  // Those to learn from, then those held out.
  TokenSequences tokens{report.sequences + report.held_out, input.tokens.length, {}};
  const int64_t length = tokens.length;
  auto first = input.tokens.tokens.begin();
  tokens.tokens.assign(first, first + report.sequences * length);
  tokens.tokens.insert(tokens.tokens.end(), input.tokens.tokens.end() - report.held_out * length,
                       input.tokens.tokens.end());

  QuantizedModel tuned = model;
  times.time("distill", [&] {
    GainTunerInput tuner = tuner_input(model, config);
    tuner.sequences = report.sequences;
    tuner.positions = length - 1;
    std::unique_ptr<DivergencePass> pass = make_divergence_pass(
        input.original, dequantize_model(model, "the quantized model"), tokens, input.device, progress);
    auto held_out_divergence = [&](const Gains& gains) {
      pass->set(gains);
      return pass->divergence(report.sequences, report.held_out) /
             static_cast<double>(report.held_out * tuner.positions);
    };
    report.divergence_before = held_out_divergence(stored_gains(model, model, head_name(config)));
    const Gains gains = tune_gains(*pass, tuner, options, progress);

    ByteVector bytes;
    for (double least = 0;;) {
      tuned = model;
      report.dropped_rows = apply(gains, config, least, tuned);
      bytes = encode_artifact(tuned, encode, cache, progress);
      if (!input.limit_bytes || bytes.size() <= *input.limit_bytes) break;
      if (std::isinf(least)) return;  // not even the small tensors fit
      least = least == 0 ? kFirstThreshold : least < kLastThreshold ? least + kThresholdStep : INFINITY;
    }
    report.divergence_after = held_out_divergence(stored_gains(tuned, model, head_name(config)));
    report.is_kept = report.divergence_after < report.divergence_before;
    if (report.is_kept) artifact = std::move(bytes);
  });
  if (report.is_kept) model = std::move(tuned);
  return report;
}

int64_t distill_reserve_bytes(const QuantizedModel& model, const ModelConfig& config, uint64_t artifact_bytes,
                              const EncodeOptions& encode, SectionCache& cache, Progress& progress) {
  QuantizedModel jittered = model;
  const std::set<std::string> names = row_layer_names(config);
  uint64_t stream = 0;
  for (QuantizedTensor& tensor : jittered.tensors) {
    ++stream;
    SteppedCodes* codes = stepped_codes(tensor);
    if (codes && names.contains(tensor.name))
      for (size_t r = 0; r < codes->row_steps.size(); ++r)
        add_to_step(kUsualChange * (2 * uniform_at(0, stream, r) - 1), codes->row_steps[r]);
    if (auto* raw = std::get_if<RawTensor>(&tensor.data); raw && !is_golf_matrix(tensor.name)) {
      std::vector<float> values = to_float32(raw->dtype, raw->bytes);
      for (size_t i = 0; i < values.size(); ++i)
        values[i] *= static_cast<float>(0.96 + 0.08 * uniform_at(1, stream, i));
      raw->bytes = from_float32(raw->dtype, values);
    }
  }
  const ByteVector encoded = encode_artifact(jittered, encode, cache, progress);
  return static_cast<int64_t>(encoded.size()) - static_cast<int64_t>(artifact_bytes);
}

}  // namespace thimble
