// gguf_blocks.h: types of tensors in GGUF files: how many elements a block has in how many bytes, and what they stand
// for in float32, by the formulas of ggml. Products and sums are rounded one by one, as ggml's reference and its Python
// package do it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/tensor/dtype.h"

namespace thimble {

struct GgufBlocks {
  uint32_t id = 0;
  std::string_view name;
  int64_t elements = 1;                                                 // of a block: neighbours in a row
  uint64_t bytes = 0;                                                   // of a block
  std::optional<DType> dtype = {};                                      // of elements that are not quantized
  void (*dequantize)(const std::byte* block, float* values) = nullptr;  // of one block; null where dtype is set

  bool is_read() const { return dtype.has_value() || dequantize != nullptr; }
};

// Null for an unknown id. Types that are known by name alone are not read.
const GgufBlocks* gguf_blocks(uint32_t id);
const GgufBlocks* gguf_blocks(std::string_view name);
std::string gguf_types_read();  // "F32, F16, ..."

// All blocks of a tensor. values.size() is its element count, bytes.size() that of its blocks.
void dequantize_gguf(const GgufBlocks& type, Bytes bytes, std::span<float> values);

// Elements as Q8_0: for each 32, a scale in fp16 and 32 codes, rounded half away from zero as ggml does it. The count
// must be a multiple of 32.
ByteVector quantize_gguf_q8_0(std::span<const float> values);

}  // namespace thimble
