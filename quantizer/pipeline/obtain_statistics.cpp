// obtain_statistics.cpp: see obtain_statistics.h.
#include "quantizer/pipeline/obtain_statistics.h"

#include <algorithm>
#include <bit>

#include "eval/text/token_shard.h"
#include "quantizer/checkpoints/finite_input.h"
#include "quantizer/checkpoints/hessian_file.h"
#include "quantizer/pipeline/calibration.h"
#include "runtime/base/count_text.h"
#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/base/hash.h"
#include "runtime/device/models.h"

namespace thimble {
namespace {

TokenSequences obtain_tokens(const QuantizeRequest& request, OpenedCheckpoint& source, uint64_t key,
                             const SharedWork& work, Progress& progress) {
  const CalibrationOptions& wanted = request.calibration;
  if (!request.calibration_tokens.empty())
    return read_calibration_tokens(request.calibration_tokens, wanted.length, source.runnable().vocabulary());
  const std::unique_ptr<Generator> generator =
      make_generator(source.weights(), request.device, wanted.length, wanted.sequences, work.ranks());
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
    const TokenSequences part = self_generate(*generator, options, part_key, work, progress);
    for (int64_t s = 0; s < part.count; ++s)
      std::ranges::copy(part.sequence(s), tokens.tokens.begin() + (s * n + i) * tokens.length);
  }
  return tokens;
}

// Every Hessian belongs to a matrix with as many columns.
void check_hessians(const HessianSet& hessians, const OpenedCheckpoint& source, const std::string& path) {
  for (const auto& [layer, hessian] : hessians) {
    auto found = source.shapes().find(layer);
    if (found == source.shapes().end())
      throw FormatError(path, "Hessian '" + layer + "' names no tensor of " + source.path());
    const Shape& shape = found->second.shape;
    if (shape.size() != 2 || shape[1] != hessian->matrix.size())
      throw FormatError(path, "Hessian '" + layer + "' has " + std::to_string(hessian->matrix.size()) +
                                  " columns, the tensor in " + source.path() + " has shape " + shape_text(shape));
  }
}

// What names a matrix or a table has as many values as that has rows, or columns.
void check_length(const std::string& what, const std::string& name, size_t found, size_t axis,
                  const OpenedCheckpoint& source, const std::string& path) {
  auto tensor = source.shapes().find(name);
  if (tensor == source.shapes().end())
    throw FormatError(path, what + " '" + name + "' names no tensor of " + source.path());
  const Shape& shape = tensor->second.shape;
  if (shape.size() != 2 || shape[axis] != static_cast<int64_t>(found))
    throw FormatError(path, what + " '" + name + "' has " + counted(found, "value") + ", the tensor in " +
                                source.path() + " has shape " + shape_text(shape));
}

// Do statistics from a file belong to this checkpoint? Every Hessian, Fisher and count in `path` must name a matrix of
// the checkpoint and have its columns or rows; `needs_fisher`: and every layer with a Hessian an output Fisher. Else a
// FormatError(path).
void check_statistics(const CalibrationStatistics& statistics, bool needs_fisher, const OpenedCheckpoint& source,
                      const std::string& path) {
  check_hessians(statistics.hessians, source, path);
  const LossStatistics& loss = statistics.loss;
  for (const auto& [name, fisher] : loss.output_fisher)
    check_length("output Fisher", name, fisher.mean_square.size(), 0, source, path);
  for (const auto& [name, fisher] : loss.lookup_fisher)
    check_length("lookup Fisher", name, fisher.mean_square.size(), 1, source, path);
  for (const auto& [name, counts] : loss.row_counts) check_length("row counts", name, counts.size(), 0, source, path);
  check_hessians(loss.head, source, path);
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
  if (request.check_finite)
    times.time("finite check", [&] {
      require_finite_activations(*make_scorer(source.weights(), request.device, tokens.length), tokens, progress);
    });
  if (work.ranks().is_root() && !request.save_calibration.empty())
    write_shard(request.save_calibration, tokens.tokens, source.runnable().vocabulary());
  return times.time("Hessians", [&] {
    Hasher hasher;
    hasher.add(key).add(static_cast<uint64_t>(tokens.length)).add(std::as_bytes(std::span(tokens.tokens)));
    if (request.fisher) hasher.add(std::string_view("fisher"));
    const uint64_t statistics_key = hasher.digest();
    work.ranks().require_equal(hex64(statistics_key), "the hash of the calibration tokens");
    CalibrationStatistics statistics =
        collect_statistics(source.weights(), request.device, tokens, request.fisher, statistics_key, work, progress);
    return KeyedStatistics{std::move(statistics), statistics_key, std::move(tokens)};
  });
}

}  // namespace

KeyedStatistics obtain_statistics(const QuantizeRequest& request, OpenedCheckpoint& source, uint64_t key,
                                  const SharedWork& work, StageTimes& times, Progress& progress) {
  if (request.hessians.empty()) return collect_from_model(request, source, key, work, times, progress);
  return times.time("Hessians", [&] {
    CalibrationStatistics statistics = read_hessian_file(request.hessians);
    check_statistics(statistics, request.fisher, source, request.hessians);
    round_to_float32(statistics);
    uint64_t contents = xxh3(MappedFile(request.hessians).bytes());
    work.ranks().require_equal(hex64(contents), request.hessians + ": the hash of the file");
    KeyedStatistics found{std::move(statistics), Hasher().add(key).add(contents).digest(), {}};
    if (!request.calibration_tokens.empty())
      found.tokens = read_calibration_tokens(request.calibration_tokens, request.calibration.length,
                                             source.runnable().vocabulary());
    return found;
  });
}

}  // namespace thimble
