// stored_model.h: a quantized model whose codes still lie as its file stores them, for devices that unpack them there.
// What packer/ opens and the CUDA model is loaded from. stored_model(file) stands for decode_artifact(file): the same
// weights, bit for bit, and the same files are refused.
// R = output rows, K = input columns
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/byte_cursor.h"
#include "runtime/codes/code_layout.h"
#include "runtime/codes/quantized_model.h"
#include "runtime/families/golf/model.h"

namespace thimble {

// Consecutive codes of one tensor (R, K): `rows` whole rows, or `columns` codes of one row.
struct CodeBlock {
  size_t tensor = 0;  // index into StoredModel::model().tensors
  int64_t first = 0;  // row-major index of its first code
  int64_t rows = 0, columns = 0;
  CodeLayout layout = CodeLayout::kRows;
  int64_t bytes = 0;  // that read() gives
};

class StoredModel {
 public:
  virtual ~StoredModel() = default;

  virtual const std::string& path() const = 0;  // for errors
  // Everything but codes: coded tensors have their max_code and row scales, all checked, and no codes.
  virtual const QuantizedModel& model() const = 0;
  // The codes of each coded tensor, once each.
  virtual const std::vector<CodeBlock>& blocks() const = 0;
  // The bytes of a block, decompressed but not unpacked. From any thread. A FormatError when they are damaged.
  virtual ByteVector read(size_t block) const = 0;
  // The codes in these bytes, row-major. A FormatError where CodeUnpacker finds one that is not allowed.
  virtual std::vector<int8_t> unpack(size_t block, Bytes bytes) const = 0;
};

// Unpacks stored code i of a block.
CodeUnpacker unpacker_of(const StoredModel& stored, size_t block);

// The Model without its matrices, which stay empty: what the host computes before a device can start. The stored config
// must fit the tensors (dequantize_model()).
Model bind_small_tensors(const StoredModel& stored);

}  // namespace thimble
