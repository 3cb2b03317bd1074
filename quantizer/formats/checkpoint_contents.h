// checkpoint_contents.h: what the readers of all formats give.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file.h"
#include "runtime/base/json.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

// What a file of any format holds.
struct CheckpointContents {
  TensorMap tensors;                            // views into the file's bytes or into `gathered`
  std::vector<HeldBytes> gathered;              // tensors that lay otherwise in the file, or quantized
  std::map<std::string, std::string> metadata;  // the __metadata__ of a safetensors file
  std::optional<Json> config;                   // a JSON object
};

}  // namespace thimble
