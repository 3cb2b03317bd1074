// owned_tensors.h: a checkpoint's tensors in memory of their own.
#pragma once

#include <map>
#include <string>

#include "runtime/base/random.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

using OwnedTensors = std::map<std::string, Tensor>;

inline TensorMap views_of(const OwnedTensors& tensors) {
  TensorMap views;
  for (const auto& [name, tensor] : tensors) views.emplace(name, tensor.view());
  return views;
}

// Center and half-width of a tensor's uniform values.
struct WeightRange {
  double center = 0, half_width = 1;
};

inline Tensor random_tensor(const WeightRange& range, const Shape& shape, DType dtype, uint64_t seed, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(element_count(shape)));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(range.center + range.half_width * (2 * uniform_at(seed, stream, i) - 1));
  return {dtype, shape, from_float32(dtype, values)};
}

}  // namespace thimble
