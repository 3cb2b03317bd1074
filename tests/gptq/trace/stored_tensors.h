// stored_tensors.h: reads tensors of a safetensors file that the tests trust.
#pragma once

#include <map>
#include <string>

#include "runtime/tensor/tensor.h"

namespace thimble {

std::map<std::string, Tensor> read_stored_tensors(const std::string& path);

}  // namespace thimble
