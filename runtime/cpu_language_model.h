// cpu_language_model.h: LanguageModel on the CPU in float32, the reference.
#pragma once

#include <memory>

#include "runtime/language_model.h"

namespace thimble {

// `model` must outlive the result.
std::unique_ptr<LanguageModel> make_cpu_language_model(const Model& model, int64_t context);

}  // namespace thimble
