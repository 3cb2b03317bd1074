// calibration.cpp: self-generation with resume, and Hessian collection, both shared among ranks and kept.
#include "quantizer/pipeline/calibration.h"

#include <algorithm>
#include <tuple>

#include "eval/text/token_shard.h"
#include "gptq/statistics/statistics_sum.h"
#include "quantizer/checkpoints/hessian_file.h"
#include "runtime/base/count_text.h"
#include "runtime/base/file.h"
#include "runtime/base/hash.h"
#include "runtime/cpu/cpu_gradients.h"
#include "runtime/ops/numeric_policy.h"

namespace thimble {
namespace {

// Runs sequences through the model on the CPU, one part of the calibration set after another in the same buffers.
class PartCollector {
 public:
  // `with_loss`: in fp32, whatever the numerics.
  PartCollector(const std::shared_ptr<const Weights>& weights, Numerics numerics, const TokenSequences& sequences,
                bool with_loss, Progress& progress)
      : policy_(numeric_policy(with_loss ? Numerics::kFp32 : numerics)),
        weights_(rounded_weights(weights, policy_)),
        sequences_(sequences),
        progress_(progress) {
    if (with_loss)
      gradients_.emplace(*weights_, sequences.length);
    else
      pass_.emplace(*weights_, sequences.length, policy_);
  }

  CalibrationStatistics collect(Share part) {
    if (gradients_) return collect_with_loss(part);
    HessianCollector collector(static_cast<int64_t>(part.begin));
    for_each_sequence(part, [&](std::span<const Token> tokens) {
      pass_->run(window_batch(tokens.first(tokens.size() - 1)), nullptr, 0, &collector);
    });
    return {std::move(collector).finish(), {}};
  }

 private:
  CalibrationStatistics collect_with_loss(Share part) {
    const auto first = static_cast<int64_t>(part.begin);
    HessianCollector hessians(first), head(first);
    FisherCollector fisher(*weights_->network, first);
    for_each_sequence(part, [&](std::span<const Token> tokens) {
      gradients_->run(tokens, {&hessians, &head}, fisher);
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
                                       const TokenSequences& sequences, bool with_loss, uint64_t key,
                                       const SharedWork& work, Progress& progress) {
  Ranks& ranks = work.ranks();
  const auto rank = static_cast<size_t>(ranks.rank()), rank_count = static_cast<size_t>(ranks.size());
  const size_t part_count = hessian_part_count(sequences.count);
  PartCollector collector(weights, numerics, sequences, with_loss, progress);
  progress.begin(with_loss ? "collecting Hessians and gradients" : "collecting Hessians", sequences.count, "sequences");
  const PieceName name = {WorkKind::kSums, Hasher().add(key).add(uint64_t{with_loss}).digest()};
  SumOfParts done = work.find<SumOfParts>(name).value_or(SumOfParts{});
  auto advance = [&](size_t part) {
    progress.advance(static_cast<int64_t>(hessian_part(sequences.count, part).size()));
  };
  for (size_t part = 0; part < done.parts; ++part) advance(part);
  while (done.parts < part_count) {
    const size_t first = done.parts;
    CalibrationStatistics mine;
    if (first + rank < part_count) mine = collector.collect(hessian_part(sequences.count, first + rank));
    for (size_t from = 0; from < rank_count && first + from < part_count; ++from) {
      done.sum.add(rank_count == 1 ? mine : work.of_rank(mine, static_cast<int>(from)));
      if (from != rank) advance(first + from);
      ++done.parts;
    }
    work.keep(name, done);
  }
  progress.end();
  return std::move(done.sum).finish();
}

}  // namespace

TokenSequences self_generate(Generator& generator, const CalibrationOptions& options, uint64_t key,
                             const SharedWork& work, Progress& progress) {
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
      return generator.calibration(options, first, count, progress).tokens;
    });
    if (!is_new) progress.advance(count * options.length);
    all.tokens.insert(all.tokens.end(), tokens.begin(), tokens.end());
  }
  progress.end();
  return all;
}

TokenSequences read_calibration_tokens(const std::string& path, int64_t length, int64_t vocab_size) {
  std::vector<Token> tokens = parse_shard(MappedFile(path).bytes(), path, vocab_size);
  auto count = static_cast<int64_t>(tokens.size()) / length;
  if (count == 0 || count * length != static_cast<int64_t>(tokens.size()))
    throw FormatError(path, counted(tokens.size(), "token") +
                                ", allowed is a positive multiple of the calibration length " + std::to_string(length));
  return {count, length, std::move(tokens)};
}

CalibrationStatistics collect_statistics(const std::shared_ptr<const Weights>& weights, const Device& device,
                                         const TokenSequences& sequences, bool with_loss, uint64_t key,
                                         const SharedWork& work, Progress& progress) {
  return work.result<CalibrationStatistics>({WorkKind::kHessians, key}, [&] {
    CalibrationStatistics statistics;
    if (device.is_cuda) {
      // Done with everything before ranks could have exchanged their parts.
      statistics.hessians = collect_hessians_cuda(weights, device, sequences, progress);
      if (with_loss) statistics.loss = collect_loss_statistics_cuda(weights, device, sequences, progress);
    } else {
      const bool in_one_pass = with_loss && device.numerics == Numerics::kFp32;
      statistics = collect_in_parts(weights, device.numerics, sequences, in_one_pass, key, work, progress);
      if (with_loss && !in_one_pass)
        statistics.loss = collect_in_parts(weights, Numerics::kFp32, sequences, true, key, work, progress).loss;
    }
    round_to_float32(statistics);
    return statistics;
  });
}

}  // namespace thimble
