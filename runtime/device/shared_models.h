// shared_models.h: one model on several devices and in several processes. Each holds all of it and takes a contiguous
// share of the windows or sequences of a call; all get all results. By the contracts of Scorer and Generator these are
// the same bits for any number of devices and processes.
#pragma once

#include <memory>
#include <vector>

#include "runtime/device/ranks.h"
#include "runtime/ops/generator.h"
#include "runtime/ops/scorer.h"

namespace thimble {

// `parts`: of this process, at least one, of the same model, context and arithmetic as on every other rank. score() and
// calibration() are collective; the other calls are this rank's own, on its first part. `ranks` must outlive the
// result. An error on one device ends the call once the others have finished their shares.
std::unique_ptr<Scorer> make_shared_scorer(std::vector<std::unique_ptr<Scorer>> parts, Ranks& ranks);
std::unique_ptr<Generator> make_shared_generator(std::vector<std::unique_ptr<Generator>> parts, Ranks& ranks);

}  // namespace thimble
