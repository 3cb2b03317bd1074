// calibration.cpp: self-generation with resume, and collection of statistics, both shared among ranks and kept.
#include "quantizer/pipeline/calibration.h"

#include <algorithm>
#include <bit>
#include <set>
#include <tuple>

#include "eval/text/token_shard.h"
#include "gptq/statistics/hessian_groups.h"
#include "gptq/statistics/statistics_sum.h"
#include "quantizer/checkpoints/finite_input.h"
#include "quantizer/formats/hessian_file.h"
#include "quantizer/methods/slope/distill_input.h"
#include "quantizer/pipeline/written_text.h"
#include "runtime/base/count_text.h"
#include "runtime/base/file.h"
#include "runtime/base/hash.h"
#include "runtime/base/memory_plan.h"
#include "runtime/cpu/cpu_gradients.h"
#include "runtime/device/models.h"
#include "runtime/ops/numeric_policy.h"

namespace thimble {
namespace {

// Enough to tell two temperatures of the same tokens apart by 0.0015.
constexpr int64_t kTokensAtHome = 1 << 14;

// The names of the matrices that read an input.
std::vector<std::string> readers_of(const Network& network, const LinearInput& input) {
  std::vector<std::string> names;
  for (MatrixId id : input.readers) names.push_back(network.matrix(id).name);
  return names;
}

// Of what it is shown, only some.
class ChosenInputs final : public LinearObserver {
 public:
  ChosenInputs(const Network& network, std::span<const LinearInput> inputs, LinearObserver& observer)
      : observer_(observer) {
    for (const LinearInput& input : inputs) first_readers_.insert(network.matrix(input.readers[0]).name);
  }
  void on_linear_input(std::span<const std::string> weights, ConstMatrixView input) override {
    if (first_readers_.contains(weights[0])) observer_.on_linear_input(weights, input);
  }

 private:
  LinearObserver& observer_;
  std::set<std::string> first_readers_;
};

// Runs sequences through the model on the CPU, one part of the calibration set after another in the same buffers, for
// the Hessians of `inputs`.
class PartCollector {
 public:
  // `with_loss`: nothing is rounded but factors of products.
  PartCollector(const std::shared_ptr<const Weights>& weights, Numerics numerics, const TokenSequences& sequences,
                std::span<const LinearInput> inputs, bool with_loss, Progress& progress)
      : policy_(with_loss ? gradient_policy(gradient_arithmetic(numerics)) : numeric_policy(numerics)),
        weights_(rounded_weights(weights, policy_)),
        sequences_(sequences),
        inputs_(inputs),
        progress_(progress) {
    if (with_loss)
      gradients_.emplace(*weights_, sequences.length, /*for_gains=*/false, /*for_matrices=*/false, policy_.products);
    else
      pass_.emplace(*weights_, sequences.length, policy_);
  }

  CalibrationStatistics collect(Share part) {
    if (gradients_) return collect_with_loss(part);
    HessianCollector collector(static_cast<int64_t>(part.begin), policy_.products);
    for_each_sequence(part, [&](std::span<const Token> tokens) {
      pass_->begin(window_batch(tokens.first(tokens.size() - 1)));
      for (const LinearInput& input : inputs_) {  // and no further
        pass_->run_to(input.first_reader);
        collector.on_linear_input(readers_of(*weights_->network, input), pass_->value(input.value));
      }
    });
    return {std::move(collector).finish(), {}};
  }

 private:
  CalibrationStatistics collect_with_loss(Share part) {
    const auto first = static_cast<int64_t>(part.begin);
    HessianCollector hessians(first, policy_.products), head(first, policy_.products);
    FisherCollector fisher(*weights_->network, first);
    ChosenInputs chosen(*weights_->network, inputs_, hessians);
    for_each_sequence(part, [&](std::span<const Token> tokens) {
      gradients_->run(tokens, {&chosen, &head}, fisher);
      fisher.end_sequence();
    });
    CalibrationStatistics statistics{std::move(hessians).finish(), std::move(fisher).finish()};
    statistics.loss.head = std::move(head).finish();
    return statistics;
  }

  void for_each_sequence(Share part, const std::function<void(std::span<const Token>)>& body) {
    for (size_t s = part.begin; s < part.end; ++s) {
      body(sequences_.sequence(static_cast<int64_t>(s)));
      progress_.advance(1);
    }
  }

  const NumericPolicy policy_;
  const std::shared_ptr<const Weights> weights_;
  const TokenSequences& sequences_;
  const std::span<const LinearInput> inputs_;
  Progress& progress_;
  std::optional<CpuPass> pass_;  // one of the two
  std::optional<CpuGradients> gradients_;
};

// The sum of the first parts.
struct SumOfParts {
  uint64_t parts = 0;
  StatisticsSum sum;

  friend auto members(SumOfParts& sums) { return std::tie(sums.parts, sums.sum); }
};

CalibrationStatistics collect_in_parts(const std::shared_ptr<const Weights>& weights, Numerics numerics,
                                       const TokenSequences& sequences, std::span<const LinearInput> inputs,
                                       bool with_loss, uint64_t key, const SharedWork& work, Progress& progress) {
  Ranks& ranks = work.ranks();
  const auto rank = static_cast<size_t>(ranks.rank()), rank_count = static_cast<size_t>(ranks.size());
  const size_t part_count = hessian_part_count(sequences.count);
  PartCollector collector(weights, numerics, sequences, inputs, with_loss, progress);
  progress.begin(with_loss ? "collecting Hessians and gradients" : "collecting Hessians", sequences.count, "sequences");
  const PieceName name = {WorkKind::kSums, Hasher().add(key).add(uint64_t{with_loss}).digest()};
  SumOfParts done = work.find<SumOfParts>(name).value_or(SumOfParts{});
  auto advance = [&](size_t part) {
    progress.advance(static_cast<int64_t>(hessian_part(sequences.count, part).size()));
  };
  for (size_t part = 0; part < done.parts; ++part) advance(part);
  while (done.parts < part_count) {
    const size_t first = done.parts;
    {
      CalibrationStatistics mine;  // and gone before the sum is packed
      if (first + rank < part_count) mine = collector.collect(hessian_part(sequences.count, first + rank));
      for (size_t from = 0; from < rank_count && first + from < part_count; ++from) {
        done.sum.add(rank_count == 1 ? mine : work.of_rank(mine, static_cast<int>(from)));
        if (from != rank) advance(first + from);
        ++done.parts;
      }
    }
    release_free_memory();
    work.keep(name, done);
  }
  progress.end();
  return std::move(done.sum).finish();
}

// Rank 0's, for its memory may be another's.
HessianGroups common_groups(HessianGroups groups, const SharedWork& work) {
  std::vector<int64_t> sizes;
  for (const auto& group : groups.groups) sizes.push_back(std::ssize(group));
  sizes = work.of_rank(sizes, 0);
  std::vector<LinearInput> all;
  for (const auto& group : groups.groups) all.insert(all.end(), group.begin(), group.end());
  groups.groups.clear();
  auto next = all.begin();
  for (int64_t size : sizes) {
    groups.groups.emplace_back(next, next + size);
    next += size;
  }
  return groups;
}

}  // namespace

TokenSequences self_generate(Generator& generator, const TextScript& script, uint64_t key, const SharedWork& work,
                             Progress& progress) {
  const CalibrationOptions& options = script.options;
  const int64_t batch = generator.preferred_sequences(options);
  TokenSequences all{options.sequences, options.length, {}};
  progress.begin("generating calibration", options.sequences * options.length, "tokens");
  for (int64_t first = 0; first < options.sequences; first += batch) {
    const int64_t count = std::min(batch, options.sequences - first);
    const uint64_t batch_key = Hasher()
                                   .add(key)
                                   .add(static_cast<uint64_t>(options.length))
                                   .add(static_cast<uint64_t>(first))
                                   .add(static_cast<uint64_t>(count))
                                   .digest();
    bool is_new = false;
    const auto tokens = work.result<std::vector<Token>>({WorkKind::kTokens, batch_key}, [&] {
      is_new = true;
      return generator.calibration(script, first, count, progress).tokens;
    });
    if (!is_new) progress.advance(count * options.length);
    all.tokens.insert(all.tokens.end(), tokens.begin(), tokens.end());
  }
  progress.end();
  return all;
}

bool collects_at_once(const Device& device) {
  return !device.is_cuda && (device.numerics == Numerics::kFp32 || device.numerics == Numerics::kBf16);
}

StoredStatistics collect_statistics(const std::shared_ptr<const Weights>& weights, const Device& device,
                                    const TokenSequences& sequences, bool with_loss, uint64_t key,
                                    const SharedWork& work, Progress& progress) {
  const Network& network = *weights->network;
  const bool in_one_pass = with_loss && collects_at_once(device);
  const HessianGroups plan = common_groups(
      group_hessians(weights->network, device, sequences.count, sequences.length, in_one_pass, weights->owned_bytes()),
      work);
  StoredStatistics all;
  for (const std::vector<LinearInput>& inputs : plan.groups) {
    const bool adds_loss = with_loss && &inputs == &plan.groups.front();
    Hasher hasher;
    hasher.add(key).add(uint64_t{adds_loss});
    for (const LinearInput& input : inputs) hasher.add(network.matrix(input.readers[0]).name);
    const PieceName name = {WorkKind::kHessians, hasher.digest()};
    auto collect = [&] {
      CalibrationStatistics statistics;
      if (device.is_cuda) {
        // Done with everything before ranks could have exchanged their parts.
        statistics.hessians = collect_hessians_cuda(weights, device, sequences, inputs, progress);
        if (adds_loss) statistics.loss = collect_loss_statistics_cuda(weights, device, sequences, progress);
      } else {
        const bool with_gradients = adds_loss && in_one_pass;
        statistics =
            collect_in_parts(weights, device.numerics, sequences, inputs, with_gradients, name.key, work, progress);
        if (adds_loss && !with_gradients)
          statistics.loss =
              collect_in_parts(weights, Numerics::kFp32, sequences, {}, true, name.key, work, progress).loss;
      }
      round_to_float32(statistics.loss);
      return store_in_memory(std::move(statistics));  // rounded as they are packed
    };
    StoredStatistics part = work.stored<StoredStatistics>(name, plan.fit_in_memory, collect);
    all.hessians.merge(part.hessians);
    if (adds_loss) all.loss = std::move(part.loss);
  }
  return all;
}

namespace {

TokenSequences given_sequences(const QuantizeRequest& request, const OpenedCheckpoint& source) {
  return read_given_text(request.given_text, request.calibration, source.runnable().vocabulary(), source.path(),
                         held_out_sequences(request.calibration.sequences, /*is_given=*/true));
}

// The part of a calibration that is written at one temperature and from one seed.
TokenSequences written_part(Generator& generator, const OpenedCheckpoint& source, const CalibrationOptions& options,
                            uint64_t key, const SharedWork& work, Progress& progress) {
  const TextScript script = script_for(source, options);
  const uint64_t part_key = Hasher()
                                .add(key)
                                .add(options.seed)
                                .add(std::bit_cast<uint64_t>(options.temperature))
                                .add(std::as_bytes(std::span(script.given)))
                                .add(std::as_bytes(std::span(script.never_drawn)))
                                .digest();
  return self_generate(generator, script, part_key, work, progress);
}

// Parts that are written together would begin with the same tokens, and go on from the same random numbers.
uint64_t seed_of_part(uint64_t seed, int64_t part) { return seed + (static_cast<uint64_t>(part) << 32); }

// As the model itself predicts: at temperature 1.
TokenSequences tokens_at_home(const QuantizeRequest& request, OpenedCheckpoint& source, uint64_t key,
                              const SharedWork& work, Progress& progress) {
  if (request.home_length == 0) return {};
  CalibrationOptions options = request.calibration;
  options.length = request.home_length;
  options.sequences = std::max<int64_t>(1, kTokensAtHome / options.length);
  options.temperature = 1;
  options.seed = seed_of_part(options.seed, std::ssize(request.temperatures));
  const std::unique_ptr<Generator> generator =
      make_generator(source.weights(), request.device, options.length, options.sequences, work.ranks());
  return written_part(*generator, source, options, key, work, progress);
}

TokenSequences obtain_tokens(const QuantizeRequest& request, OpenedCheckpoint& source, uint64_t key,
                             const SharedWork& work, Progress& progress) {
  const CalibrationOptions& wanted = request.calibration;
  if (request.given_text.is_given()) return given_sequences(request, source);
  const std::unique_ptr<Generator> generator =
      make_generator(source.weights(), request.device, wanted.length, wanted.sequences, work.ranks());
  // Sequence s has temperature s modulo n. Those of one temperature are generated together, with a seed of their own.
  const auto n = static_cast<int64_t>(request.temperatures.size());
  TokenSequences tokens{request.calibration.sequences, request.calibration.length, {}};
  tokens.tokens.resize(static_cast<size_t>(tokens.count * tokens.length));
  for (int64_t i = 0; i < std::min(n, tokens.count); ++i) {
    CalibrationOptions options = request.calibration;
    options.sequences = (tokens.count - i + n - 1) / n;
    options.temperature = request.temperatures[static_cast<size_t>(i)];
    options.seed = seed_of_part(options.seed, i);
    const TokenSequences part = written_part(*generator, source, options, key, work, progress);
    for (int64_t s = 0; s < part.count; ++s)
      std::ranges::copy(part.sequence(s), tokens.tokens.begin() + (s * n + i) * tokens.length);
  }
  return tokens;
}

// Do statistics from a file belong to this checkpoint? Every Hessian, Fisher and count in `path` must name a matrix of
// the checkpoint and have its columns or rows; `needs_fisher`: and every layer with a Hessian an output Fisher. Else a
// FormatError(path).
void check_statistics(const StoredStatistics& statistics, bool needs_fisher, const OpenedCheckpoint& source,
                      const std::string& path) {
  auto check = [&](const char* what, const char* unit, const std::string& name, size_t found, size_t axis) {
    const std::string object = std::string(what) + " '" + name + "' ";
    auto tensor = source.shapes().find(name);
    if (tensor == source.shapes().end()) throw FormatError(path, object + "names no tensor of " + source.path());
    const Shape& shape = tensor->second.shape;
    if (shape.size() != 2 || shape[axis] != static_cast<int64_t>(found))
      throw FormatError(path, object + "has " + counted(found, unit) + ", the tensor in " + source.path() +
                                  " has shape " + shape_text(shape));
  };
  const LossStatistics& loss = statistics.loss;
  const StoredHessians head = store_in_memory(loss.head);
  for (const StoredHessians* hessians : {&statistics.hessians, &head})
    for (const auto& [name, hessian] : *hessians)
      check("Hessian", "column", name, static_cast<size_t>(hessian->size()), 1);
  for (const auto& [name, fisher] : loss.output_fisher)
    check("output Fisher", "value", name, fisher.mean_square.size(), 0);
  for (const auto& [name, fisher] : loss.lookup_fisher)
    check("lookup Fisher", "value", name, fisher.mean_square.size(), 1);
  for (const auto& [name, counts] : loss.row_counts) check("row counts", "value", name, counts.size(), 0);
  if (!needs_fisher) return;
  for (const auto& [layer, hessian] : statistics.hessians)
    if (!loss.output_fisher.contains(layer))
      throw FormatError(path, "has a Hessian but no output Fisher of '" + layer +
                                  "'; --fisher needs one for every layer with a Hessian");
}

KeyedStatistics collect_from_model(const QuantizeRequest& request, OpenedCheckpoint& source, uint64_t key,
                                   const SharedWork& work, StageTimes& times, Progress& progress) {
  TokenSequences tokens =
      times.time("calibration", [&] { return obtain_tokens(request, source, key, work, progress); });
  TokenSequences at_home =
      times.time("calibration", [&] { return tokens_at_home(request, source, key, work, progress); });
  if (request.check_finite)
    times.time("finite check", [&] {
      require_finite_activations(*make_scorer(source.weights(), request.device, tokens.length), tokens, progress);
    });
  if (work.ranks().is_root() && !request.save_calibration.empty())
    write_shard(request.save_calibration, tokens.tokens, source.runnable().vocabulary());
  return times.time("Hessians", [&] {
    Hasher hasher;
    const TokenSequences read = tokens.first(request.statistics_count());
    hasher.add(key).add(static_cast<uint64_t>(read.length)).add(std::as_bytes(std::span(read.tokens)));
    if (request.fisher) hasher.add(std::string_view("fisher"));
    const uint64_t statistics_key = hasher.digest();
    work.ranks().require_equal(hex64(statistics_key), "the hash of the calibration tokens");
    StoredStatistics statistics =
        collect_statistics(source.weights(), request.device, read, request.fisher, statistics_key, work, progress);
    return KeyedStatistics{std::move(statistics), statistics_key, std::move(tokens), std::move(at_home)};
  });
}

}  // namespace

KeyedStatistics obtain_statistics(const QuantizeRequest& request, OpenedCheckpoint& source, uint64_t key,
                                  const SharedWork& work, StageTimes& times, Progress& progress) {
  if (request.hessians.empty()) return collect_from_model(request, source, key, work, times, progress);
  return times.time("Hessians", [&] {
    StoredStatistics statistics = read_hessian_file(request.hessians);
    check_statistics(statistics, request.fisher, source, request.hessians);
    uint64_t contents = xxh3(MappedFile(request.hessians).bytes());
    work.ranks().require_equal(hex64(contents), request.hessians + ": the hash of the file");
    KeyedStatistics found{std::move(statistics), Hasher().add(key).add(contents).digest(), {}, {}};
    if (request.given_text.is_given()) found.tokens = given_sequences(request, source);
    return found;
  });
}

}  // namespace thimble
