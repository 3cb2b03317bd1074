// owned_tensors.h: a checkpoint's tensors in memory of their own.
#pragma once

#include <map>
#include <string>

#include "runtime/tensor/tensor.h"

namespace thimble {

using OwnedTensors = std::map<std::string, Tensor>;

inline TensorMap views_of(const OwnedTensors& tensors) {
  TensorMap views;
  for (const auto& [name, tensor] : tensors) views.emplace(name, tensor.view());
  return views;
}

}  // namespace thimble
