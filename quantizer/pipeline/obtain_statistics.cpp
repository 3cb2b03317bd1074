// obtain_statistics.cpp: see obtain_statistics.h.
#include "quantizer/pipeline/obtain_statistics.h"

#include <algorithm>
#include <bit>

#include "eval/text/token_shard.h"
#include "quantizer/checkpoints/finite_input.h"
#include "quantizer/checkpoints/hessian_file.h"
#include "quantizer/pipeline/calibration.h"
#include "quantizer/pipeline/statistics_check.h"
#include "runtime/base/file.h"
#include "runtime/base/hash.h"
#include "runtime/device/models.h"

namespace thimble {
namespace {

TokenSequences obtain_tokens(const QuantizeRequest& request, OpenedCheckpoint& source, uint64_t key,
                             const WorkFolder& work, Ranks& ranks, Progress& progress) {
  const CalibrationOptions& wanted = request.calibration;
  if (!request.calibration_tokens.empty())
    return read_calibration_tokens(request.calibration_tokens, wanted.length, source.runnable().vocabulary());
  const std::unique_ptr<Generator> generator =
      make_generator(source.weights(), request.device, wanted.length, wanted.sequences, ranks);
  // Sequence s has temperature s modulo n. Those of one temperature are generated together, with a seed of their own:
  // else they would begin with the same tokens as the others, and go on from the same random numbers.
  const auto n = static_cast<int64_t>(request.temperatures.size());
  TokenSequences tokens{request.calibration.sequences, request.calibration.length, {}};
  tokens.tokens.resize(static_cast<size_t>(tokens.count * tokens.length));
  for (int64_t i = 0; i < std::min(n, tokens.count); ++i) {
    CalibrationOptions options = request.calibration;
    options.sequences = (tokens.count - i + n - 1) / n;
    options.temperature = request.temperatures[static_cast<size_t>(i)];
    options.seed += static_cast<uint64_t>(i) << 32;
    const uint64_t part_key =
        Hasher().add(key).add(options.seed).add(std::bit_cast<uint64_t>(options.temperature)).digest();
    const TokenSequences part = self_generate(*generator, options, part_key, work, ranks, progress);
    for (int64_t s = 0; s < part.count; ++s)
      std::ranges::copy(part.sequence(s), tokens.tokens.begin() + (s * n + i) * tokens.length);
  }
  return tokens;
}

KeyedStatistics collect_from_model(const QuantizeRequest& request, OpenedCheckpoint& source, uint64_t key,
                                   const WorkFolder& work, Ranks& ranks, StageTimes& times, Progress& progress) {
  const uint64_t token_key = Hasher().add(key).add(static_cast<uint64_t>(request.calibration.length)).digest();
  TokenSequences tokens =
      times.time("calibration", [&] { return obtain_tokens(request, source, token_key, work, ranks, progress); });
  if (request.check_finite)
    times.time("finite check", [&] {
      require_finite_activations(*make_scorer(source.weights(), request.device, tokens.length), tokens, progress);
    });
  if (ranks.is_root() && !request.save_calibration.empty())
    write_shard(request.save_calibration, tokens.tokens, source.runnable().vocabulary());
  return times.time("Hessians", [&] {
    Hasher hasher;
    hasher.add(key).add(static_cast<uint64_t>(tokens.length)).add(std::as_bytes(std::span(tokens.tokens)));
    if (request.fisher) hasher.add(std::string_view("fisher"));
    uint64_t statistics_key = hasher.digest();
    ranks.require_equal(hex64(statistics_key), "the hash of the calibration tokens");
    std::optional<CalibrationStatistics> kept = load_kept_statistics(work, statistics_key, ranks);
    if (!kept) {
      kept = collect_statistics(source.weights(), request.device, tokens, request.fisher, ranks, progress);
      work.save_statistics(statistics_key, *kept);
    }
    return KeyedStatistics{std::move(*kept), statistics_key, std::move(tokens)};
  });
}

}  // namespace

KeyedStatistics obtain_statistics(const QuantizeRequest& request, OpenedCheckpoint& source, uint64_t key,
                                  const WorkFolder& work, Ranks& ranks, StageTimes& times, Progress& progress) {
  if (request.hessians.empty()) return collect_from_model(request, source, key, work, ranks, times, progress);
  return times.time("Hessians", [&] {
    CalibrationStatistics statistics = read_hessian_file(request.hessians);
    check_statistics(statistics, request.fisher, source, request.hessians);
    round_to_float32(statistics);
    uint64_t contents = xxh3(MappedFile(request.hessians).bytes());
    ranks.require_equal(hex64(contents), request.hessians + ": the hash of the file");
    KeyedStatistics found{std::move(statistics), Hasher().add(key).add(contents).digest(), {}};
    if (!request.calibration_tokens.empty())
      found.tokens = read_calibration_tokens(request.calibration_tokens, request.calibration.length,
                                             source.runnable().vocabulary());
    return found;
  });
}

}  // namespace thimble
