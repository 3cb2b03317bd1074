// finite_input.h: --check-finite: what a command reads, and what flows through the model, must be finite.
#pragma once

#include <memory>
#include <string>

#include "runtime/base/progress.h"
#include "runtime/ops/scorer.h"

namespace thimble {

// Throws a FormatError that names the first tensor of a checkpoint or artifact with a NaN or infinity, and its place.
// Of an artifact, tensors that are stored as floats: codes and their scales cannot be anything but finite.
void require_finite_file(const std::string& path);

// A scorer that checks what it computes: throws an Error (bad input, as a score that is
// not finite always is) that names the first input of a linear layer with a NaN or
// infinity. With `every_window`, looks at the inputs before each window is scored, which costs another pass; without,
// only when a score is not finite, again from the window's start.
std::unique_ptr<Scorer> make_finite_scorer(std::unique_ptr<Scorer> scorer, bool every_window);

// The same for calibration sequences, less their last tokens.
void require_finite_activations(Scorer& scorer, const TokenSequences& sequences, Progress& progress);

}  // namespace thimble
