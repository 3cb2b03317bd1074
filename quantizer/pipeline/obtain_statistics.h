// obtain_statistics.h: the calibration statistics of a quantization: collected on text that the model writes or a shard
// holds, or read from a file of Hessians. What a work folder keeps of them is not made again.
#pragma once

#include "gptq/statistics/fisher.h"
#include "quantizer/checkpoints/model_source.h"
#include "quantizer/console/console.h"
#include "quantizer/methods/shared_work.h"
#include "quantizer/pipeline/quantize_request.h"

namespace thimble {

// Statistics and the hash of everything that decided them.
struct KeyedStatistics {
  CalibrationStatistics statistics;
  uint64_t key = 0;
  TokenSequences tokens;  // none with a file of Hessians alone
};

// `key`: the hash of checkpoint, config, program and arithmetic. Every rank gets the same.
KeyedStatistics obtain_statistics(const QuantizeRequest& request, OpenedCheckpoint& source, uint64_t key,
                                  const SharedWork& work, StageTimes& times, Progress& progress);

}  // namespace thimble
