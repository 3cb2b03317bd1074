// device.h: where models run: the CPU, or one or more CUDA devices, and in which arithmetic.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/cuda/kernels/cuda_devices.h"
#include "runtime/ops/numeric_policy.h"

namespace thimble {

// What --device, --numerics and --device-memory ask for, resolved against the machine.
struct Device {
  bool is_cuda = false;
  std::vector<int> ordinals;  // CUDA devices to use, at least one when is_cuda
  Numerics numerics = Numerics::kFp32;
  uint64_t memory_limit_bytes = kNoMemoryLimit;  // of each CUDA device; see memory_plan.h
  uint64_t host_memory_bytes = kNoMemoryLimit;   // of the host, that may be planned with

  // What results depend on besides the inputs: the CPU's instruction set or the CUDA device's model, and the numerics,
  // which on the CPU go without saying when they are fp32.
  std::string arithmetic() const;
  std::string name() const;  // for people: "cpu (avx512)", "cpu (avx512, sf16)", "2 x NVIDIA H200 (bf16)"
};

constexpr const char* kDeviceTexts = "auto, cpu, cuda, cuda:N and cuda:all";
constexpr const char* kNumericsTexts =
    "auto, fp32, bf16, fp16, sf16, sf16-q115, sf16-legacy, sf16-legacy-q115 and nvfp4";
bool is_device_text(std::string_view text);
bool is_numerics_text(std::string_view text);

// `text` is one of kDeviceTexts; auto takes a CUDA device and else the CPU, cuda a device: the first, or of N devices
// number `local_rank` modulo N, for processes that share a machine. `numerics` is one of kNumericsTexts; auto is bf16
// on CUDA devices and fp32 on the CPU. What is not there, and cuda:all over devices of several models, is a
// DeviceError; a text of another form, and a mode that the build leaves out, is a UsageError.
Device open_device(const std::string& text, const std::string& numerics, int local_rank = 0);

// What a program does on devices: passes of models, one kernel after another, for which few connections do
// (ask_for_few_connections()), or also solving, several layers beside each other in streams of their own.
enum class DeviceWork { kPasses, kSolving };

// Begins the first use of what open_device(text) will open, which takes some tenths of a second, while the caller reads
// files: open_device() then waits for the driver alone. Errors are left to it; where no thread starts, nothing
// begins early. To be called before other threads.
[[nodiscard]] std::jthread warm_up(const std::string& text, DeviceWork work, int local_rank = 0);

// Bytes that may be planned with (memory_plan.h), of the scarcest of the device's. Not for the CPU.
uint64_t usable_memory(const Device& device);

}  // namespace thimble
