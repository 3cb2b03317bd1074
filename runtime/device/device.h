// device.h: where models run: the CPU, or one or more CUDA devices, and in which arithmetic.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/codes/block_feed.h"
#include "runtime/cuda/kernels/cuda_devices.h"
#include "runtime/device/language_model.h"
#include "runtime/families/gpt2/gpt2_model.h"
#include "runtime/ops/numeric_policy.h"

namespace thimble {

// What --device, --numerics and --device-memory ask for, resolved against the machine.
struct Device {
  bool is_cuda = false;
  std::vector<int> ordinals;  // CUDA devices to use, at least one when is_cuda
  Numerics numerics = Numerics::kFp32;
  uint64_t memory_limit_bytes = kNoMemoryLimit;  // of each CUDA device; see memory_plan.h

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

// Begins the first use of the device, which takes some tenths of a second, while the caller reads files. Errors are
// left to whoever uses the device next.
[[nodiscard]] std::jthread warm_up(const Device& device);

// CUDA devices have kernels of their own for golf-gpts in fp32 and bf16, with fused attention. Everything else, and all
// that the CPU does, runs through a Backend, whose attention is not fused, in any mode.
bool has_fused_forward(const Device& device);

// The device's Backend, on the first of several, in its numerics. Weights are the caller's to round (round_weights()),
// and their codes in NVFP4 to give (nvfp4_weights()).
std::unique_ptr<Backend> make_backend(const Device& device, Nvfp4Weights weights = {});

// `model` must outlive the result.
std::unique_ptr<LanguageModel> make_language_model(const Model& model, const Device& device, int64_t context);
std::unique_ptr<LanguageModel> make_language_model(const Gpt2Model& model, const Device& device, int64_t context);

// The same from an artifact's codes, for devices with has_fused_forward(), which unpack them; only they may be asked
// for. `stored` and `feed` may go when the call returns.
std::unique_ptr<LanguageModel> make_language_model(const StoredModel& stored, const BlockFeed& feed,
                                                   const Device& device, int64_t context);

}  // namespace thimble
