// backend_language_model.h: LanguageModel over a Backend, in any numeric mode. On the CPU in float32 it is the
// reference.
#pragma once

#include <memory>

#include "runtime/device/language_model.h"
#include "runtime/families/gpt2/gpt2_model.h"
#include "runtime/ops/numeric_policy.h"

namespace thimble {

// `exact` is a device's Backend that rounds nothing; `numerics` decides what is rounded. `model` must outlive the
// result, which has a copy of its own where the weights are rounded. `context` is at most the positions of a GPT-2.
std::unique_ptr<LanguageModel> make_backend_language_model(const Model& model, Numerics numerics,
                                                           std::unique_ptr<Backend> exact, int64_t context);
std::unique_ptr<LanguageModel> make_backend_language_model(const Gpt2Model& model, Numerics numerics,
                                                           std::unique_ptr<Backend> exact, int64_t context);

// On the CPU in float32.
std::unique_ptr<LanguageModel> make_cpu_language_model(const Model& model, int64_t context);
std::unique_ptr<LanguageModel> make_cpu_language_model(const Gpt2Model& model, int64_t context);

}  // namespace thimble
