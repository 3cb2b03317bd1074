// numeric_boundaries.cpp: where a numeric mode loses: the mean loss of a model over the first windows of a text with
// each boundary of the mode rounded alone, and with all rounded but that one.
//   numeric_boundaries CHECKPOINT TOKENS CONTEXT WINDOWS MODE
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "eval/text/token_shard.h"
#include "quantizer/checkpoints/model_source.h"
#include "runtime/cpu/cpu_gradient_kernels.h"
#include "runtime/cpu/cpu_pass.h"
#include "runtime/device/device.h"

namespace thimble {
namespace {

double mean_loss(const Weights& model, const NumericPolicy& policy, std::span<const Token> tokens, int64_t context,
                 int64_t windows) {
  Weights rounded = model;
  round_weights(policy, rounded);
  CpuPass pass(rounded, context, policy);
  Matrix rows(context, model.network->vocabulary());
  double loss = 0;
  for (int64_t w = 0; w < windows; ++w) {
    const std::span<const Token> inputs =
        tokens.subspan(static_cast<size_t>(w * context), static_cast<size_t>(context + 1));
    pass.logits(pass.run(window_batch(inputs.first(static_cast<size_t>(context)))), rows);
    for (int64_t p = 0; p < context; ++p) {
      cpu_gradient_kernels().log_softmax(rows.row(p), rows.cols());
      loss -= double{rows(p, inputs[static_cast<size_t>(p) + 1])};
    }
  }
  return loss / static_cast<double>(windows * context);
}

void run(char** arguments) {
  const std::string path = arguments[1], shard = arguments[2];
  const int64_t context = std::atoll(arguments[3]), windows = std::atoll(arguments[4]);
  const NumericPolicy all = numeric_policy(open_device("cpu", arguments[5]).numerics);
  const RunnableModel model = load_model(path, "").model;
  const std::vector<Token> tokens = parse_shard(MappedFile(shard).bytes(), shard, model.spec.vocabulary());
  if (static_cast<int64_t>(tokens.size()) <= context * windows)
    throw UsageError(shard + ": too few tokens for so many windows");
  auto loss = [&](const NumericPolicy& policy) { return mean_loss(*model.weights, policy, tokens, context, windows); };
  const double exact = loss({}), rounded = loss(all);
  fmt::print("nats per token above fp32, {:.6f}; with all {:+.6f}\n{:<16}{:>14}{:>14}\n", exact, rounded - exact,
             "boundary", "alone", "all but it");
  auto row = [&](std::string_view name, const NumericPolicy& alone, const NumericPolicy& without) {
    fmt::print("{:<16}{:>+14.6f}{:>+14.6f}\n", name, loss(alone) - exact, loss(without) - exact);
    std::fflush(stdout);
  };
  for (size_t i = 0; i < kBoundaries; ++i) {
    NumericPolicy alone, without = all;
    if (all.roundings[i].is_exact()) continue;
    alone.roundings[i] = all.roundings[i];
    without.roundings[i] = {};
    row(boundary_name(static_cast<Boundary>(i)), alone, without);
  }
  NumericPolicy alone, without = all;
  alone.weights = all.weights;
  alone.nvfp4 = all.nvfp4;
  without.weights = {};
  without.nvfp4 = false;
  row("weights", alone, without);
  if (all.logits_scale == 1 && all.attention_scale == 1) return;
  alone = {};
  without = all;
  for (float NumericPolicy::*scale :
       {&NumericPolicy::logits_scale, &NumericPolicy::attention_scale, &NumericPolicy::mlp_scale}) {
    alone.*scale = all.*scale;
    without.*scale = 1;
  }
  row("scales", alone, without);
}

}  // namespace
}  // namespace thimble

int main(int count, char** arguments) {
  try {
    if (count != 6) throw thimble::UsageError("numeric_boundaries CHECKPOINT TOKENS CONTEXT WINDOWS MODE");
    thimble::run(arguments);
  } catch (const thimble::Error& error) {
    std::fputs((std::string(error.what()) + "\n").c_str(), stderr);
    return static_cast<int>(error.code());
  }
}
