// split_language_model.h: one model on several devices. Each holds all of it and takes a contiguous share of the
// windows or sequences of a call. By LanguageModel's contract the results are the same bits for any number of devices.
#pragma once

#include <memory>
#include <vector>

#include "runtime/device/language_model.h"

namespace thimble {

// `parts`: at least one, of the same model, context and arithmetic. An error on one device ends the call once the
// others have finished their shares.
std::unique_ptr<LanguageModel> make_split_language_model(std::vector<std::unique_ptr<LanguageModel>> parts);

}  // namespace thimble
