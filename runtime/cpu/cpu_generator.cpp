// cpu_generator.cpp: see cpu_models.h.
#include "runtime/cpu/cpu_models.h"

#include <algorithm>
#include <cassert>
#include <limits>

#include "runtime/base/random.h"
#include "runtime/cpu/cpu_pass.h"
#include "runtime/cpu/cpu_text.h"
#include "runtime/cpu/gemm.h"

namespace thimble {
namespace {

class CpuGenerator final : public Generator {
 public:
  CpuGenerator(std::shared_ptr<const Weights> weights, Numerics numerics, int64_t context)
      : policy_(numeric_policy(numerics)),
        weights_(rounded_weights(std::move(weights), policy_)),
        pass_(*weights_, context, policy_) {}

  int64_t preferred_sequences(const CalibrationOptions& options) const override {
    return calibration_batch(pass_.network(), options);
  }

  TokenSequences calibration(const TextScript& script, int64_t first, int64_t count, Progress& progress) override {
    const int64_t length = script.options.length;
    assert(length == pass_.context_length());
    const auto given = script.sequences(first, count);
    TokenSequences out{count, length, {given.begin(), given.end()}};
    for (int64_t start = 0; start < count; start += kMostFewRows) {
      const int64_t some = std::min(kMostFewRows, count - start);
      const auto share =
          std::span(out.tokens).subspan(static_cast<size_t>(start * length), static_cast<size_t>(some * length));
      generate_batch(script, first + start, some, share, progress);
    }
    return out;
  }

  void text(std::span<const Token> prompt, const TextOptions& options,
            const std::function<bool(Token)>& on_token) override {
    CpuText text(pass_, prompt, options);
    for (int64_t i = 0; i < options.most_new_tokens; ++i)
      if (!on_token(text.next())) return;
  }

 private:
  // Draws what `out` (count, length), sequences [first, first + count) of the script, leaves open, as one batch.
  void generate_batch(const TextScript& script, int64_t first, int64_t count, std::span<Token> out,
                      Progress& progress) {
    const CalibrationOptions& options = script.options;
    // A product of one row rounds differently (gemm.h); a sequence that is alone gets an idle companion.
    const int64_t rows = std::max<int64_t>(2, count);
    CpuCache cache(pass_.network(), rows, options.length, kCalibrationCache);
    TokenBatch batch;
    batch.tokens.assign(static_cast<size_t>(rows), 0);
    batch.previous.assign(static_cast<size_t>(rows), TokenBatch::kNoToken);
    auto token_at = [&](int64_t s, int64_t position) -> Token& {
      return out[static_cast<size_t>(s * options.length + position)];
    };
    for (int64_t position = 0; position < options.length; ++position) {
      progress.advance(count);
      if (position + 1 == options.length) break;
      for (int64_t s = 0; s < count; ++s) batch.tokens[static_cast<size_t>(s)] = token_at(s, position);
      batch.shape = {rows, 1, position};
      const MatrixView logits = next_logits(batch, cache);
      batch.previous = batch.tokens;
      for (int64_t s = 0; s < count; ++s) {
        Token& next = token_at(s, position + 1);
        if (next != TextScript::kDrawn) continue;
        const std::span row(logits.row(s), static_cast<size_t>(logits.cols));
        for (Token never : script.never_drawn)
          row[static_cast<size_t>(never)] = -std::numeric_limits<float>::infinity();
        next = sample_token(
            row, options.temperature,
            uniform_at(options.seed, static_cast<uint64_t>(first + s), static_cast<uint64_t>(position + 1)));
      }
    }
  }

  // Valid until the next call.
  MatrixView next_logits(const TokenBatch& batch, CpuCache& cache) {
    const ConstMatrixView hidden = pass_.run(batch, &cache);
    logits_.resize(hidden.rows, pass_.network().vocabulary());
    pass_.logits(hidden, logits_);
    return logits_;
  }

  const NumericPolicy policy_;
  const std::shared_ptr<const Weights> weights_;
  CpuPass pass_;
  Matrix logits_;
};

}  // namespace

std::unique_ptr<Generator> make_cpu_generator(std::shared_ptr<const Weights> weights, Numerics numerics,
                                              int64_t context) {
  return std::make_unique<CpuGenerator>(std::move(weights), numerics, context);
}

int64_t calibration_batch(const Network& network, const CalibrationOptions& options) {
  const uint64_t bytes =
      CpuCache::bytes_per_sequence(network, options.length, kCalibrationCache);  // none without attention
  const auto fitting = static_cast<int64_t>(kMaxCacheBytes / std::max<uint64_t>(1, bytes));
  const int64_t most = std::max<int64_t>(1, fitting), batches = (options.sequences + most - 1) / most;
  return (options.sequences + batches - 1) / batches;
}

}  // namespace thimble
