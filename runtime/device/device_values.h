// device_values.h: values that stay in a CUDA device's memory between one who computes them there and one who goes on
// with them there; who handles them needs no CUDA.
#pragma once

#include <functional>
#include <span>

namespace thimble {

struct DeviceValues {
  std::span<const double> values;                       // at addresses of the device
  std::function<void(std::span<double>)> copy_to_host;  // all of them; holds the memory
};

}  // namespace thimble
