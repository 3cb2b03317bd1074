// torch_file_reader.h: what the tests of torch checkpoints share: a file around a pickle, and what is read from it.
#pragma once

#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "quantizer/formats/torch_checkpoint.h"
#include "tests/quantizer/formats/reader_asserts.h"
#include "tests/quantizer/formats/torch_file_builder.h"

namespace thimble {

using TorchStorages = std::map<std::string, ByteVector>;

// 0, 1, 2, ... in float32
inline ByteVector counting_floats(size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0f);
  return from_float32(DType::kF32, values);
}

// A file and what was read from it; the views point into the file.
struct ReadTorchFile {
  ByteVector file;
  CheckpointContents contents;
  const TensorView& at(const std::string& name) const { return contents.tensors.at(name); }
  std::vector<float> floats(const std::string& name) const { return to_float32(at(name)); }
};

inline ReadTorchFile read_parts(const std::vector<ZipPart>& parts) {
  ReadTorchFile result;
  result.file = build_zip(parts).bytes;
  result.contents = read_torch_checkpoint(result.file, "m.pt");
  return result;
}

// Reads a file whose pickle is built by `build` after PROTO 2; storage "0" holds 12 floats.
inline ReadTorchFile read_pickle(const std::function<void(PickleBuilder&)>& build,
                                 const TorchStorages& storages = {{"0", counting_floats(12)}}) {
  PickleBuilder pickle;
  build(pickle);
  return read_parts(torch_parts(pickle.stop(), storages));
}

inline void expect_torch_error(const std::string& part, const std::function<void(PickleBuilder&)>& build,
                               const TorchStorages& storages = {{"0", counting_floats(12)}}) {
  expect_format_error(part, [&] { read_pickle(build, storages); });
}

// {"w": _rebuild_tensor_v2(FloatStorage "0" of 12, offset, shape, strides)}
inline void one_tensor(PickleBuilder& pickle, int64_t offset, const Shape& shape, const Shape& strides) {
  pickle.op('}').text("w").tensor("FloatStorage", "0", 12, offset, shape, strides).op('s');
}

// The same around whatever `push_value` pushes.
inline std::function<void(PickleBuilder&)> named(const std::function<void(PickleBuilder&)>& push_value) {
  return [=](PickleBuilder& pickle) {
    pickle.op('}').text("w");
    push_value(pickle);
    pickle.op('s');
  };
}

}  // namespace thimble
