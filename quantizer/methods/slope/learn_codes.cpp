// learn_codes.cpp: see learn_codes.h.
#include "quantizer/methods/slope/learn_codes.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <numbers>
#include <optional>

#include "quantizer/methods/slope/distill.h"
#include "runtime/base/hash.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

// Steps from one look at the sequences held out to the next. Pieces of work take kLearnedWeightBytes a weight.
constexpr int64_t kStepsPerLook = 4 * kStepsPerPath;
// So many looks in a row so many times as far as the nearest, and learning ends. Less tells nothing: while steps are
// long a model gets farther that comes nearer than before once they are short.
constexpr int64_t kPatience = 8;
constexpr double kFarWorse = 2;

// What stands between two steps, after a look.
struct LearnState {
  GainTuner small;
  CodeLearner codes;
  // What was nearest so far.
  double divergence = 0;
  CodeLearner nearest = {};
  Gains nearest_gains = {};
  int64_t far_looks = 0;  // in a row

  bool ends(int64_t steps) const { return codes.steps_done() >= steps || far_looks >= kPatience; }
  // Is this the nearest?
  bool look(double found) {
    far_looks = found < kFarWorse * divergence ? 0 : far_looks + 1;
    if (!(found < divergence)) return false;
    divergence = found;
    nearest_gains = small.gains();
    return true;
  }

  friend auto members(LearnState& state) {
    return std::tie(state.small, state.codes, state.divergence, state.nearest, state.nearest_gains.rows,
                    state.nearest_gains.head, state.nearest_gains.small, state.far_looks);
  }
};

uint64_t learning_key(const DistillInput& input, const QuantizedModel& model, const std::set<std::string>& block,
                      double price) {
  Hasher hasher;
  hasher.add(std::string_view("learning codes")).add(divergence_key(input, model));
  for (const std::string& name : block) hasher.add(std::string_view(name));
  for (double value : {price, input.codes.rate, input.options.small_rate, input.options.row_rate})
    hasher.add(std::bit_cast<uint64_t>(value));
  for (int64_t count : {input.codes.steps, input.codes.batch, int64_t{input.learns_rows}})
    hasher.add(static_cast<uint64_t>(count));
  return hasher.digest();
}

}  // namespace

std::vector<std::set<std::string>> learned_blocks(const Network& network, int64_t most_weights) {
  std::vector<std::set<std::string>> blocks;
  int64_t weights = 0;
  for (const MatrixUse& matrix : network.matrices) {
    weights += matrix.rows * matrix.columns;
    if (blocks.empty() || weights > most_weights) {
      blocks.emplace_back();
      weights = matrix.rows * matrix.columns;
    }
    blocks.back().insert(matrix.name);
  }
  return blocks;
}

double bit_price(const QuantizedModel& model, double divergence) {
  int64_t weights = 0;
  for (const QuantizedTensor& tensor : model.tensors)
    if (const auto* stepped = std::get_if<SteppedCodes>(&tensor.data)) weights += std::ssize(stepped->codes);
  return 2 * std::numbers::ln2 * divergence / static_cast<double>(std::max<int64_t>(1, weights));
}

double divergence_of_codes(const DistillInput& input, const QuantizedModel& model, double divergence,
                           Progress& progress) {
  if (input.temperature == 1 && input.data_share == 0) return divergence;
  DistillInput as_it_is = input;
  as_it_is.temperature = 1;
  as_it_is.data_share = 0;
  return held_out_divergence(as_it_is, model, progress);
}

LearnedCodes learn_codes(const DistillInput& input, const QuantizedModel& model, double divergence,
                         const std::set<std::string>& block, Progress& progress) {
  const Network& network = *input.original->network;
  const DistillSplit split = split_sequences(input, input.codes.steps, input.codes.batch);
  const TokenSequences tokens = chosen_sequences(input.tokens, split);
  // Without gains of rows codes do what these would, but for all logits at once.
  GainTunerInput small = tuner_input(model, network);
  std::erase_if(small.row_layers,
                [&](const auto& layer) { return !input.learns_rows || !block.contains(layer.first); });
  if (input.temperature == 1) small.tune_head = false;
  small.sequences = split.learned;
  small.positions = tokens.length - 1;
  GainTunerOptions options = input.options;
  options.steps = input.codes.steps;
  options.batch = input.codes.batch;

  CodeLearnerOptions of_codes = input.codes;
  of_codes.bit_price = bit_price(model, divergence_of_codes(input, model, divergence, progress)) *
                       static_cast<double>(options.batch * (tokens.length - 1));
  const PieceName name = {WorkKind::kLearning, learning_key(input, model, block, of_codes.bit_price)};
  std::optional<LearnState> found = input.work.find<LearnState>(name);
  LearnState state = found ? std::move(*found) : LearnState{GainTuner(small, options), CodeLearner(model, block)};
  if (!found) {
    state.divergence = divergence;
    state.nearest = state.codes.at_rest();
    state.nearest_gains = state.small.gains();
  }
  std::unique_ptr<DivergencePass> pass;
  std::unique_ptr<LatentMover> mover;
  if (!state.ends(options.steps)) {
    pass = make_student_pass(input, model, tokens, progress, {.summed = block, .sums_rows = input.learns_rows});
    mover = make_latent_mover(state.codes, model, *pass);
  }
  progress.begin("learning codes", options.steps, "steps");
  progress.advance(state.codes.steps_done());
  bool has_paths = false;  // those of a look
  while (!state.ends(options.steps)) {
    if (state.codes.needs_paths() && !has_paths) mover->find_paths();
    GainGradients sums = state.small.gradients(*pass, small, options, /*sums_matrices=*/true);
    mover->step(of_codes, [&] { state.small.move(std::move(sums), small, options); });
    progress.advance(1);
    has_paths = state.codes.steps_done() % kStepsPerLook == 0 || state.codes.steps_done() == options.steps;
    if (!has_paths) continue;
    mover->find_paths();
    pass->set(state.small.gains());
    SilentProgress silent;
    const double seen = held_out_divergence(*pass, split, tokens.length, silent);
    if (state.look(seen)) mover->keep();
    if (input.work.folder().keeps()) {
      mover->store();
      mover->store_kept(state.nearest);
    }
    input.work.keep(name, state);
  }
  if (mover) mover->store_kept(state.nearest);
  progress.end();
  const int64_t steps = state.codes.steps_done();
  return {std::move(state.nearest),
          std::move(state.nearest_gains),
          network.matrix(network.head.weight).name,
          steps,
          split.learned,
          split.held_out,
          input.data_share,
          input.temperature};
}

QuantizedModel LearnedCodes::codes_in(QuantizedModel model, double rate_weight) const {
  learner.find_paths(rate_weight, model);
  return model;
}

double LearnedCodes::changed_share(const QuantizedModel& from, const QuantizedModel& to) const {
  std::atomic<int64_t> changed = 0, all = 0;
  const std::vector<std::string> names = learner.matrices();
  parallel_for(std::ssize(from.tensors), [&](int64_t index) {
    const auto i = static_cast<size_t>(index);
    const auto* stepped = std::get_if<SteppedCodes>(&from.tensors[i].data);
    if (!stepped) return;
    const CodeArray& before = stepped->codes;
    all += static_cast<int64_t>(before.size());
    if (!std::ranges::binary_search(names, from.tensors[i].name)) return;
    const CodeArray& after = std::get<SteppedCodes>(to.tensors[i].data).codes;
    before.visit([&](auto old_codes) {
      after.visit([&](auto new_codes) {
        int64_t count = 0;
        for (size_t k = 0; k < old_codes.size(); ++k) count += old_codes[k] != new_codes[k] ? 1 : 0;
        changed += count;
      });
    });
  });
  return static_cast<double>(changed) / static_cast<double>(std::max<int64_t>(1, all));
}

uint64_t code_learning_bytes(const Network& network, const std::set<std::string>& block) {
  uint64_t weights = 0;
  for (const MatrixUse& matrix : network.matrices)
    if (block.contains(matrix.name)) weights += static_cast<uint64_t>(matrix.rows * matrix.columns);
  return weights * kLearnedWeightBytes;
}

}  // namespace thimble
