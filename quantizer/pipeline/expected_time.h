// expected_time.h: about how long a run on a CPU is going to take, before it begins: the arithmetic of its stages,
// which follows from the network and the request, over what this machine does in a second. What takes no arithmetic is
// left out. A run that resumes takes less.
#pragma once

#include <cstdint>

#include "quantizer/pipeline/quantize_request.h"
#include "runtime/ops/network.h"

namespace thimble {

// What a machine is asked to do, or does in a second.
struct ComputeWork {
  double products = 0;  // floating-point operations of matrix products, factorisations and attention
  double paths = 0;     // weights that paths of a trellis are found for
};

// By the stages of run_plan.h.
struct RunWork {
  ComputeWork writing, statistics, searching, scoring;
};

struct RunSeconds {
  double writing = 0, statistics = 0, searching = 0, scoring = 0;

  double total() const { return writing + statistics + searching + scoring; }
};

// Of a model that the program runs. `scored_positions`: of all windows of one model.
RunWork work_of_run(const QuantizeRequest& request, const Network& network, int64_t scored_positions);

// On all threads, at products and paths like those of a run: takes about a tenth of a second.
ComputeWork measure_machine(int trellis_bits);

RunSeconds expected_seconds(const RunWork& work, const ComputeWork& per_second);

}  // namespace thimble
