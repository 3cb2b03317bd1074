// cuda_language_model.h: LanguageModel on one CUDA device. A build without CUDA links cuda_language_model_stub.cpp,
// where every call is a DeviceError.
#pragma once

#include <memory>
#include <string>

#include "runtime/device.h"
#include "runtime/language_model.h"

namespace thimble {

// `ordinal` counts as in cuda_devices.h; `model` must outlive the result.
std::unique_ptr<LanguageModel> make_cuda_language_model(const Model& model, int ordinal, Numerics numerics,
                                                        int64_t context);

// The device's model, "NVIDIA H200": devices of one model compute the same bits.
std::string cuda_arithmetic(int ordinal);

}  // namespace thimble
