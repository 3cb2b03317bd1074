// device.cpp: what --device and --numerics may say, and what they mean on this machine.
#include "runtime/device/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <numeric>
#include <optional>
#include <system_error>

#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/cpu/gemm.h"
#include "runtime/cuda/cuda_models.h"
#include "runtime/cuda/kernels/cuda_devices.h"

namespace thimble {
namespace {

constexpr std::string_view kAllCuda = "cuda:all";
constexpr std::string_view kCudaPrefix = "cuda:";

bool is_numbered_cuda(std::string_view text) {
  return text.size() > kCudaPrefix.size() && text.starts_with(kCudaPrefix) &&
         text.find_first_not_of("0123456789", kCudaPrefix.size()) == std::string_view::npos;
}

// N of cuda:N; nullopt when no machine has so many.
std::optional<int> number_of(std::string_view text) {
  int number = 0;
  auto [stop, error] = std::from_chars(text.data() + kCudaPrefix.size(), text.data() + text.size(), number);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

// The ordinals that `text` means on a machine with `count` devices, at least one.
std::vector<int> cuda_ordinals(const std::string& text, int count, int local_rank) {
  if (count == 0) {
    std::string why =
        cuda_runtime_version().empty() ? "this build computes on the CPU only" : "no CUDA device is usable";
    throw DeviceError("--device " + text + ": " + why + "; use --device cpu");
  }
  if (text == kAllCuda) {
    std::vector<int> all(static_cast<size_t>(count));
    std::iota(all.begin(), all.end(), 0);
    for (int ordinal : all)
      if (cuda_arithmetic(ordinal) != cuda_arithmetic(0))
        throw DeviceError(fmt::format("--device {}: devices 0 ({}) and {} ({}) differ, and so would their results",
                                      text, cuda_arithmetic(0), ordinal, cuda_arithmetic(ordinal)));
    return all;
  }
  if (!is_numbered_cuda(text)) return {local_rank % count};
  std::optional<int> number = number_of(text);
  if (!number || *number >= count)
    throw DeviceError(fmt::format("--device {}: the CUDA devices here are 0 to {}", text, count - 1));
  return {*number};
}

std::optional<Numerics> numerics_named(std::string_view text) {
  for (Numerics numerics : kAllNumerics)
    if (numerics_name(numerics) == text) return numerics;
  return std::nullopt;
}

std::string_view instructions_for(Numerics numerics) { return cpu_instruction_set(numeric_policy(numerics).products); }

}  // namespace

bool is_device_text(std::string_view text) {
  return text == "auto" || text == "cpu" || text == "cuda" || text == kAllCuda || is_numbered_cuda(text);
}

bool is_numerics_text(std::string_view text) { return text == "auto" || numerics_named(text); }

std::string Device::arithmetic() const {
  if (!is_cuda && numerics == Numerics::kFp32) return std::string(cpu_instruction_set());
  if (!is_cuda) return fmt::format("{} {}", instructions_for(numerics), numerics_name(numerics));
  return cuda_arithmetic(ordinals[0]) + " " + std::string(numerics_name(numerics));
}

std::string Device::name() const {
  if (!is_cuda && numerics == Numerics::kFp32) return fmt::format("cpu ({})", cpu_instruction_set());
  if (!is_cuda) return fmt::format("cpu ({}, {})", instructions_for(numerics), numerics_name(numerics));
  std::string one = fmt::format("{} ({})", cuda_arithmetic(ordinals[0]), numerics_name(numerics));
  return ordinals.size() == 1 ? one : fmt::format("{} x {}", ordinals.size(), one);
}

Device open_device(const std::string& text, const std::string& numerics, int local_rank) {
  if (!is_device_text(text)) throw UsageError("--device is '" + text + "', allowed are " + kDeviceTexts);
  if (!is_numerics_text(numerics)) throw UsageError("--numerics is '" + numerics + "', allowed are " + kNumericsTexts);
  Device device;
  int count = text == "cpu" ? 0 : cuda_device_count();
  device.is_cuda = text == "auto" ? count > 0 : text != "cpu";
  device.numerics = numerics_named(numerics).value_or(device.is_cuda ? Numerics::kBf16 : Numerics::kFp32);
#ifndef THIMBLE_SF16
  if (is_sf16(device.numerics))
    throw UsageError("--numerics " + numerics + " is not in this build, which was configured with THIMBLE_SF16=OFF");
#endif
  device.host_memory_bytes = usable_memory(thimble::host_memory_bytes(), kNoMemoryLimit);
  if (!device.is_cuda) return device;
  device.ordinals = cuda_ordinals(text, count, local_rank);
  return device;
}

std::jthread warm_up(const std::string& text, DeviceWork work, int local_rank) {
  if (text == "cpu") return {};
  if (work == DeviceWork::kPasses) ask_for_few_connections();
  try {
    return std::jthread([=] {
      try {
        const Device device = open_device(text, "auto", local_rank);
        run_in_threads(device.ordinals.size(), [&](size_t i) { cuda_free_memory(device.ordinals[i]); });
      } catch (const std::exception&) {
      }
    });
  } catch (const std::system_error&) {
    return {};
  }
}

uint64_t usable_memory(const Device& device) {
  uint64_t least = UINT64_MAX;
  for (int ordinal : device.ordinals)
    least = std::min(least, usable_memory(cuda_free_memory(ordinal), device.memory_limit_bytes));
  return least;
}

}  // namespace thimble
