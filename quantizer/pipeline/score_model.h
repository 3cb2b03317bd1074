// score_model.h: bits per byte of one model file on the text that the options name: what eval and quantize share.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/score/bpb.h"
#include "eval/score/kl_divergence.h"
#include "eval/text/byte_table.h"
#include "eval/tokenizers/tokenizer.h"
#include "quantizer/checkpoints/model_source.h"
#include "quantizer/console/console.h"
#include "quantizer/methods/shared_work.h"
#include "quantizer/pipeline/token_source.h"
#include "runtime/base/memory_plan.h"
#include "runtime/device/device.h"
#include "runtime/device/ranks.h"

namespace thimble {

struct ScoredModel {
  std::string path;
  uint64_t file_bytes = 0;
  BpbReport report;
  double load_seconds = 0;                     // from the file to a model on the device
  std::optional<MemoryPlan> memory;            // on a CUDA device
  double first_token_seconds = 0;              // from the program's start to the first batch of scores
  std::optional<std::string> note;             // context_note()
  std::optional<DivergenceReport> divergence;  // from the first of several models
};

// A model on its device, and what it is to score.
struct ReadyModel {
  std::string path;
  uint64_t file_bytes = 0;
  Spec spec;
  std::vector<Token> tokens;
  std::unique_ptr<Scorer> scorer;
  double load_seconds = 0;
  std::optional<MemoryPlan> memory;  // on a CUDA device
  double ready_seconds = 0;          // since the program's start
};

// The model on `device`, windows shared among the ranks. The plan of a CUDA device's memory is printed first.
// `check_finite` looks for NaN and infinities as finite_input.h says, on the CPU in every window.
ReadyModel make_ready(LoadedModel loaded, const TokenSource& source, const Tokenizer& tokenizer, const Device& device,
                      Ranks& ranks, Console& console, bool check_finite = false);
ScoredModel score_model(const ReadyModel& model, const TokenSource& source, const ByteTable& bytes, Console& console);
// Both of the last.
ScoredModel score_model(LoadedModel loaded, const TokenSource& source, const Tokenizer& tokenizer,
                        const ByteTable& bytes, const Device& device, Ranks& ranks, Console& console);

// Of the second model's predictions from the first's on the same tokens. Each rank computes all of it, on one device.
DivergenceReport divergence_of(const ReadyModel& first, const ReadyModel& second, const TokenSource& source,
                               const ByteTable& bytes, Console& console);

// Hash of what is scored and how: tokens, tokenizer, context, stride and how many targets.
uint64_t scoring_key(const TokenSource& source, const Spec& spec, std::span<const Token> tokens, int64_t context);

// The same figure of a model in memory, windows shared among the ranks of `work`, of which every few windows are a
// piece. `key` hashes the model. Collective.
double bits_per_byte(const RunnableModel& model, uint64_t key, const Device& device, const TokenSource& source,
                     const SharedWork& work, Console& console);

}  // namespace thimble
