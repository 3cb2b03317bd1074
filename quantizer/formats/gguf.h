// gguf.h: the GGUF format of llama.cpp, versions 2 and 3, little-endian, read from bytes.
//
//   4 B "GGUF", u32 version, u64 number of tensors, u64 number of keys
//   keys     text name (u64 length, bytes), u32 type, value; an array: u32 type of elements, u64 count, elements
//   tensors  text name, u32 dimensions (1 to 4), u64 sizes (the innermost first), u32 type, u64 offset
//   data     at the next multiple of "general.alignment" (32 unless stated), where offsets count from
//
// Non-goals: what keys and tensors mean (gguf_checkpoint.h), files split in parts, big-endian files, arrays of arrays.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "quantizer/formats/gguf_blocks.h"
#include "runtime/base/json.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

constexpr uint64_t kMostGgufTensors = 100'000, kMostGgufKeys = 65'536;
constexpr uint64_t kMostGgufNameBytes = 255, kMostGgufKeyBytes = 65'535;
// Arrays of at most so many numbers are in GgufFile::metadata; of all arrays together, kMostGgufElements are.
constexpr uint64_t kShortGgufArray = 1024, kMostGgufElements = 65'536;

enum class GgufType : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kText, kArray, kU64, kI64, kF64 };

struct GgufTensor {
  const GgufBlocks* type = nullptr;
  Shape shape;  // outermost first, as everywhere here
  Bytes bytes;
};

struct GgufArray {
  GgufType type = GgufType::kU8;  // of elements
  uint64_t count = 0;
  Bytes elements;  // as the file has them, each text after its u64 length
};

struct GgufFile {
  Json metadata = Json::object();  // scalars, texts and short arrays of numbers by key; F32 as its shortest decimal
  std::map<std::string, GgufArray> arrays;  // all by key; whether texts are UTF-8 is not looked at
  std::map<std::string, GgufTensor> tensors;
};

// Checks all of the file's structure before it returns: counts, lengths, types, alignment, that no key and no tensor is
// there twice, that tensors lie in the file and do not overlap. FormatErrors(path) name the key or tensor. Tensors of
// types that gguf_blocks.h cannot read are refused by the type's name.
GgufFile read_gguf(Bytes file, const std::string& path);

bool looks_like_gguf(Bytes file);

}  // namespace thimble
