// calibration.h: the calibration statistics of a quantization: collected on text that the model writes or
// somebody gives, or read from a file of Hessians. What a work folder keeps of them is not made again.
#pragma once

#include <memory>
#include <string>

#include "gptq/statistics/stored_statistics.h"
#include "quantizer/checkpoints/model_source.h"
#include "quantizer/console/console.h"
#include "quantizer/methods/shared_work.h"
#include "quantizer/pipeline/quantize_request.h"
#include "runtime/device/device.h"
#include "runtime/ops/generator.h"
#include "runtime/ops/weights.h"

namespace thimble {

// Generates in batches, each a piece of the work. `key` hashes what the tokens depend on besides the script's length
// and how many there are. `generator` is shared among the ranks.
TokenSequences self_generate(Generator& generator, const TextScript& script, uint64_t key, const SharedWork& work,
                             Progress& progress);

// Does one pass over the text give Hessians and losses there? In modes that round nothing but factors of products.
bool collects_at_once(const Device& device);

// Runs every sequence, less its last token (nothing is predicted from it), through the model; Hessians of all its
// linear layers, rounded to float32: those of as many layers in a pass as memory holds (hessian_groups.h), each group a
// piece of the work. They stay in memory where they take a small part of it, else in files. On the CPU the
// ranks take the parts of statistics_sum.h in turn, and all add up all of them; the sum so far is kept. CUDA devices
// each collect everything. `with_loss`: also back from the loss, for LossStatistics; on the CPU, where one pass does
// not give both, by a pass of its own in float32. `key` hashes all that decides the result.
StoredStatistics collect_statistics(const std::shared_ptr<const Weights>& weights, const Device& device,
                                    const TokenSequences& sequences, bool with_loss, uint64_t key,
                                    const SharedWork& work, Progress& progress);

// Statistics and the hash of everything that decided them.
struct KeyedStatistics {
  StoredStatistics statistics;
  uint64_t key = 0;
  TokenSequences tokens;   // none with a file of Hessians alone
  TokenSequences at_home;  // QuantizeRequest::home_length; none where that is 0
};

// `key`: the hash of checkpoint, config, program and arithmetic. Every rank gets the same.
KeyedStatistics obtain_statistics(const QuantizeRequest& request, OpenedCheckpoint& source, uint64_t key,
                                  const SharedWork& work, StageTimes& times, Progress& progress);

}  // namespace thimble
