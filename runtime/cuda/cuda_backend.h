// cuda_backend.h: Backend on a CUDA device, plainly: float32 operations one after another, none fused, so that each can
// round what it writes. A build without CUDA links cuda_backend_stub.cpp, where the call is a DeviceError.
#pragma once

#include <memory>

#include "runtime/cpu/backend.h"
#include "runtime/device/device.h"

namespace thimble {

// Weights, vectors and rotary tables are copied to the device when they are first used, and kept by their address: one
// Backend serves one model, which must neither change nor move. Activations lie in managed memory. Memory beyond the
// place's limit is a DeviceError.
std::unique_ptr<Backend> make_cuda_backend(const CudaPlace& place);

}  // namespace thimble
