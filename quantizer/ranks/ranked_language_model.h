// ranked_language_model.h: one model on all ranks. Each rank holds all of it and takes a contiguous share of the
// windows or sequences of a call; all get all results. By LanguageModel's contract they are the same bits for any
// number of ranks.
#pragma once

#include <memory>

#include "quantizer/ranks/ranks.h"
#include "runtime/device/language_model.h"

namespace thimble {

// score() and generate_calibration() are collective; the other calls are this rank's own. `ranks` must outlive the
// result. `model` is of the same model, context and arithmetic on every rank.
std::unique_ptr<LanguageModel> make_ranked_language_model(std::unique_ptr<LanguageModel> model, Ranks& ranks);

}  // namespace thimble
