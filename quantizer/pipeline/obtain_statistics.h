// obtain_statistics.h: the calibration statistics of a quantization: collected on text that the model writes or a shard
// holds, or read from a file of Hessians. What a work folder keeps of them is not made again.
#pragma once

#include "quantizer/pipeline/quantize_job.h"

namespace thimble {

// `key`: the hash of checkpoint, config, program and arithmetic. Every rank gets the same.
KeyedStatistics obtain_statistics(const QuantizeRequest& request, const OpenedCheckpoint& source, uint64_t key,
                                  const WorkFolder& work, Ranks& ranks, StageTimes& times, Progress& progress);

}  // namespace thimble
