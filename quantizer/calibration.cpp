// calibration.cpp: self-generation with resume, and Hessian collection.
#include "quantizer/calibration.h"

#include <algorithm>

#include "eval/token_shard.h"
#include "gptq/cuda_hessians.h"
#include "quantizer/hessian_file.h"
#include "runtime/file.h"
#include "runtime/hash.h"
#include "runtime/window_scores.h"

namespace thimble {

TokenSequences self_generate(LanguageModel& model, const CalibrationOptions& options, uint64_t key,
                             const WorkFolder& work, Progress& progress) {
  int64_t batch = model.preferred_sequences(options);
  TokenSequences all{options.sequences, options.length, {}};
  progress.begin("generating calibration", options.sequences * options.length, "tokens");
  for (int64_t first = 0; first < options.sequences; first += batch) {
    int64_t count = std::min(batch, options.sequences - first);
    uint64_t batch_key = Hasher().add(key).add(static_cast<uint64_t>(first)).add(static_cast<uint64_t>(count)).digest();
    std::optional<std::vector<uint16_t>> tokens = work.load_tokens(batch_key);
    if (tokens && tokens->size() == static_cast<size_t>(count * options.length)) {
      progress.advance(count * options.length);
    } else {
      tokens = model.generate_calibration(options, first, count, progress).tokens;
      work.save_tokens(batch_key, *tokens);
    }
    all.tokens.insert(all.tokens.end(), tokens->begin(), tokens->end());
  }
  progress.end();
  return all;
}

TokenSequences read_calibration_tokens(const std::string& path, int64_t length, int64_t vocab_size) {
  std::vector<uint16_t> tokens = parse_shard(MappedFile(path).bytes(), path, vocab_size);
  auto count = static_cast<int64_t>(tokens.size()) / length;
  if (count == 0 || count * length != static_cast<int64_t>(tokens.size()))
    throw FormatError(path, std::to_string(tokens.size()) +
                                " tokens, allowed is a positive multiple of the calibration length " +
                                std::to_string(length));
  return {count, length, std::move(tokens)};
}

namespace {

HessianSet collect_hessians_cpu(const Model& model, const TokenSequences& sequences, Progress& progress) {
  std::unique_ptr<Backend> backend = make_cpu_backend();
  WindowScorer scorer(model, *backend, sequences.length);
  HessianCollector collector;
  progress.begin("collecting Hessians", sequences.count, "sequences");
  for (int64_t s = 0; s < sequences.count; ++s) {
    std::span<const uint16_t> tokens = sequences.sequence(s);
    scorer.observe(tokens.first(tokens.size() - 1), collector);
    progress.advance(1);
  }
  progress.end();
  return std::move(collector).finish();
}

}  // namespace

HessianSet collect_hessians(const Model& model, const Device& device, const TokenSequences& sequences,
                            Progress& progress) {
  HessianSet hessians = device.is_cuda ? collect_hessians_cuda(model, device, sequences, progress)
                                       : collect_hessians_cpu(model, sequences, progress);
  round_to_float32(hessians);
  return hessians;
}

}  // namespace thimble
