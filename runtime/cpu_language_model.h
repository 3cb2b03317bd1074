// cpu_language_model.h: LanguageModel on the CPU in float32, the reference.
#pragma once

#include <memory>

#include "runtime/gpt2_model.h"
#include "runtime/language_model.h"

namespace thimble {

// `model` must outlive the result. `context` is at most the positions of a GPT-2.
std::unique_ptr<LanguageModel> make_cpu_language_model(const Model& model, int64_t context);
std::unique_ptr<LanguageModel> make_cpu_language_model(const Gpt2Model& model, int64_t context);

}  // namespace thimble
