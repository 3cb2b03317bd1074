// calibration.cpp: self-generation with resume, and Hessian collection, shared among ranks.
#include "quantizer/pipeline/calibration.h"

#include <algorithm>
#include <cstring>

#include "eval/text/token_shard.h"
#include "gptq/statistics/statistics_sum.h"
#include "quantizer/checkpoints/hessian_file.h"
#include "quantizer/methods/packed_results.h"
#include "runtime/base/count_text.h"
#include "runtime/base/file.h"
#include "runtime/base/hash.h"
#include "runtime/cpu/cpu_gradients.h"
#include "runtime/ops/numeric_policy.h"

namespace thimble {
namespace {

std::optional<std::vector<Token>> load_kept_tokens(const WorkFolder& work, uint64_t key, size_t count, Ranks& ranks) {
  ByteVector bytes;
  if (std::optional<std::vector<Token>> kept = work.load_tokens(key)) {
    Bytes found = std::as_bytes(std::span(*kept));
    bytes.assign(found.begin(), found.end());
  }
  ranks.broadcast(bytes);
  std::vector<Token> tokens(count);
  if (bytes.size() != std::span(tokens).size_bytes()) return std::nullopt;
  std::memcpy(tokens.data(), bytes.data(), bytes.size());
  return tokens;
}

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

// What rank `from` has.
CalibrationStatistics statistics_of_rank(CalibrationStatistics mine, int from, Ranks& ranks) {
  if (ranks.size() == 1) return mine;
  ByteVector bytes;
  if (ranks.rank() == from) bytes = pack_statistics(mine);
  ranks.broadcast(bytes, from);
  return ranks.rank() == from ? std::move(mine) : unpack_statistics(bytes);
}

CalibrationStatistics collect_in_parts(const std::shared_ptr<const Weights>& weights, Numerics numerics,
                                       const TokenSequences& sequences, bool with_loss, Ranks& ranks,
                                       Progress& progress) {
  auto rank = static_cast<size_t>(ranks.rank()), rank_count = static_cast<size_t>(ranks.size());
  size_t part_count = hessian_part_count(sequences.count);
  PartCollector collector(weights, numerics, sequences, with_loss, progress);
  StatisticsSum sum;
  progress.begin(with_loss ? "collecting Hessians and gradients" : "collecting Hessians", sequences.count, "sequences");
  for (size_t first = 0; first < part_count; first += rank_count) {
    CalibrationStatistics mine;
    if (first + rank < part_count) mine = collector.collect(hessian_part(sequences.count, first + rank));
    for (size_t from = 0; from < rank_count && first + from < part_count; ++from) {
      sum.add(statistics_of_rank(mine, static_cast<int>(from), ranks));
      if (from != rank) progress.advance(static_cast<int64_t>(hessian_part(sequences.count, first + from).size()));
    }
  }
  progress.end();
  return std::move(sum).finish();
}

}  // namespace

TokenSequences self_generate(Generator& generator, const CalibrationOptions& options, uint64_t key,
                             const WorkFolder& work, Ranks& ranks, Progress& progress) {
  int64_t batch = generator.preferred_sequences(options);
  TokenSequences all{options.sequences, options.length, {}};
  progress.begin("generating calibration", options.sequences * options.length, "tokens");
  for (int64_t first = 0; first < options.sequences; first += batch) {
    int64_t count = std::min(batch, options.sequences - first);
    uint64_t batch_key = Hasher().add(key).add(static_cast<uint64_t>(first)).add(static_cast<uint64_t>(count)).digest();
    std::optional<std::vector<Token>> tokens =
        load_kept_tokens(work, batch_key, static_cast<size_t>(count * options.length), ranks);
    if (tokens) {
      progress.advance(count * options.length);
    } else {
      tokens = generator.calibration(options, first, count, progress).tokens;
      work.save_tokens(batch_key, *tokens);
    }
    all.tokens.insert(all.tokens.end(), tokens->begin(), tokens->end());
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
                                         const TokenSequences& sequences, bool with_loss, Ranks& ranks,
                                         Progress& progress) {
  CalibrationStatistics statistics;
  if (device.is_cuda) {
    // Done with everything before ranks could have exchanged their parts.
    statistics.hessians = collect_hessians_cuda(weights, device, sequences, progress);
    if (with_loss) statistics.loss = collect_loss_statistics_cuda(weights, device, sequences, progress);
  } else {
    const bool in_one_pass = with_loss && device.numerics == Numerics::kFp32;
    statistics = collect_in_parts(weights, device.numerics, sequences, in_one_pass, ranks, progress);
    if (with_loss && !in_one_pass)
      statistics.loss = collect_in_parts(weights, Numerics::kFp32, sequences, true, ranks, progress).loss;
  }
  round_to_float32(statistics);
  return statistics;
}

std::optional<CalibrationStatistics> load_kept_statistics(const WorkFolder& work, uint64_t key, Ranks& ranks) {
  std::optional<CalibrationStatistics> kept = work.load_statistics(key);
  if (ranks.size() == 1) return kept;
  ByteVector bytes;
  if (kept) bytes = pack_statistics(*kept);
  ranks.broadcast(bytes);
  return bytes.empty() ? std::nullopt : std::optional(unpack_statistics(bytes));
}

}  // namespace thimble
