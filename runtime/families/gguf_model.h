// gguf_model.h: what a family says of its models in GGUF files of llama.cpp: keys of the metadata, names of tensors,
// and how their values differ from the parameters. The file format itself is the program's
// (quantizer/formats/gguf.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/json.h"

namespace thimble {

// A parameter as the file has it.
struct GgufParameter {
  std::string parameter, stored;  // names: ours, the file's
  // Above 0: rows come in so many heads of d, and row 2 k + s of a head in the file is row s d / 2 + k of the
  // parameter: llama.cpp turns neighbouring columns, Hugging Face's library those that lie half a head apart.
  int64_t rotary_heads = 0;
  float plus = 0;  // what the file's values have more
};

struct GgufModel {
  Json config;    // with Hugging Face's keys
  Json metadata;  // the file's: whole numbers (unsigned), fractions, truth values, texts
  std::vector<GgufParameter> parameters;
  std::vector<float> rotary_factors;  // of the tensor kGgufRotaryFactors; empty without
};

constexpr const char* kGgufArchitecture = "general.architecture";
constexpr const char* kGgufRotaryFactors = "rope_freqs.weight";  // (d / 2): what divides each rotary frequency

}  // namespace thimble
