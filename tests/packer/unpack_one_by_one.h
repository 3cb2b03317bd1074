// unpack_one_by_one.h: decodes an artifact as a device's threads do: each code by itself, with CodeUnpacker.
#pragma once

#include <algorithm>
#include <stdexcept>

#include "packer/artifact.h"
#include "runtime/codes/stored_model.h"

namespace thimble {

// The codes of a block. One that is not allowed is the FormatError of StoredModel::unpack(), which must agree about
// every code: otherwise a logic_error.
inline std::vector<int8_t> unpack_block(const StoredModel& stored, size_t block, Bytes bytes) {
  if (static_cast<int64_t>(bytes.size()) != stored.blocks()[block].bytes)
    throw std::logic_error("a block is not as long as it says");
  const CodeUnpacker unpacker = unpacker_of(stored, block);
  std::vector<int8_t> codes(static_cast<size_t>(unpacker.count()));
  bool is_allowed = true;
  for (int64_t i = 0; i < unpacker.count(); ++i) {
    int code = 0;
    is_allowed = unpacker.read(reinterpret_cast<const uint8_t*>(bytes.data()), i, code) && is_allowed;
    codes.at(static_cast<size_t>(unpacker.place(i))) = static_cast<int8_t>(code);
  }
  std::vector<int8_t> expected = stored.unpack(block, bytes);
  if (!is_allowed) throw std::logic_error("unpack() accepts what CodeUnpacker refuses");
  if (codes != expected) throw std::logic_error("unpack() and CodeUnpacker give different codes");
  return codes;
}

// What decode_artifact() gives.
inline QuantizedModel unpack_one_by_one(Bytes file) {
  std::unique_ptr<StoredModel> stored = open_stored_artifact(file, "test.thmb");
  QuantizedModel model = stored->model();
  for (size_t b = 0; b < stored->blocks().size(); ++b) {
    const CodeBlock& block = stored->blocks()[b];
    std::vector<int8_t> codes = unpack_block(*stored, b, stored->read(b));
    auto& all = std::get<RowScaledCodes>(model.tensors[block.tensor].data).codes;
    if (static_cast<int64_t>(all.size()) != block.first) throw std::logic_error("blocks leave codes out");
    all.insert(all.end(), codes.begin(), codes.end());
  }
  return model;
}

}  // namespace thimble
