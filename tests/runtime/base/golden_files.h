// golden_files.h: real checkpoints with golden values, where a developer's machine has them; tests skip otherwise.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "quantizer/checkpoints/safetensors.h"
#include "runtime/base/file.h"
#include "runtime/families/golf/golf_layout.h"
#include "runtime/families/golf/model.h"

namespace thimble {

inline std::string shared_data(const std::string& name) { return std::string(THIMBLE_SHARED_DATA) + "/" + name; }

// A mapped safetensors file whose tensors are read by name.
struct GoldenFile {
  explicit GoldenFile(const std::string& path) : file(path), tensors(read_safetensors(file.bytes(), path).tensors) {}

  std::vector<float> floats(const std::string& name) const { return to_float32(tensors.at(name)); }
  std::vector<uint16_t> tokens(const std::string& name) const {
    std::vector<uint16_t> out;
    for (float value : floats(name)) out.push_back(static_cast<uint16_t>(value));  // ids are exact in float32
    return out;
  }

  MappedFile file;
  TensorMap tensors;
};

inline Model load_golden_model(const std::string& folder) {
  std::string config_path = shared_data(folder + "/config.json"), path = shared_data(folder + "/model.safetensors");
  GoldenFile checkpoint(path);
  TensorMap tensors = unbank(checkpoint.tensors, path);
  Json config = parse_json(as_bytes_of(read_text_file(config_path, 1 << 20)), config_path);
  return bind_model(resolve_model_config(config, config_path, tensors, path), tensors);
}

}  // namespace thimble
