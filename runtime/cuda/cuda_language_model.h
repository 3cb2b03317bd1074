// cuda_language_model.h: LanguageModel on a CUDA device. Builds without CUDA have these functions too; they throw.
#pragma once

#include <memory>
#include <string>

#include "runtime/codes/block_feed.h"
#include "runtime/device/device.h"
#include "runtime/device/language_model.h"

namespace thimble {

// Copies the weights to the device. Batches are as large as its memory allows (memory_plan.h). A DeviceError when the
// build, the device or its memory cannot.
std::unique_ptr<LanguageModel> make_cuda_language_model(const Model& model, const CudaPlace& place, Numerics numerics,
                                                        int64_t context);

// The same from an artifact's codes, which the device unpacks. A FormatError when they are not allowed.
std::unique_ptr<LanguageModel> make_cuda_language_model(const StoredModel& stored, const BlockFeed& feed,
                                                        const CudaPlace& place, Numerics numerics, int64_t context);

// The device's model, "NVIDIA H200": results are the same bits on all devices of one model.
std::string cuda_arithmetic(int ordinal);

}  // namespace thimble
