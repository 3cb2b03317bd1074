// golden_files.h: real checkpoints with golden values, where a developer's machine has them; tests skip otherwise.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "quantizer/formats/safetensors.h"
#include "runtime/base/file.h"
#include "runtime/ops/token_sequences.h"
#include "tests/support/test_files.h"

namespace thimble {

// A mapped safetensors file whose tensors are read by name.
struct GoldenFile {
  explicit GoldenFile(const std::string& path) : file(path), tensors(read_safetensors(file.bytes(), path).tensors) {}

  std::vector<float> floats(const std::string& name) const { return to_float32(tensors.at(name)); }
  std::vector<Token> tokens(const std::string& name) const {
    std::vector<Token> out;
    for (float value : floats(name)) out.push_back(static_cast<Token>(value));  // ids are exact in float32
    return out;
  }

  MappedFile file;
  TensorMap tensors;
};

}  // namespace thimble
