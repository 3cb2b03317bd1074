// fuzz_pickle.cpp: any bytes as the data.pkl of a valid archive with two storages, so that the fuzzer spends its time
// on opcodes, rebuild calls and strides instead of zip headers.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "quantizer/formats/torch_checkpoint.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "tests/quantizer/formats/torch_file_builder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  thimble::ByteVector pickle(bytes, bytes + size);
  std::vector<thimble::ZipPart> parts =
      thimble::torch_parts(pickle, {{"0", thimble::ByteVector(48)}, {"1", thimble::ByteVector(2)}});
  thimble::ByteVector file = thimble::build_zip(parts).bytes;
  try {
    thimble::CheckpointContents contents = thimble::read_torch_checkpoint(file, "fuzz", thimble::CrcCheck::kSkip);
    for (const auto& [name, tensor] : contents.tensors) {
      uint64_t needed = thimble::dtype_bytes(tensor.dtype);
      for (int64_t dimension : tensor.shape) needed *= static_cast<uint64_t>(dimension);
      if (tensor.bytes.size() != needed) std::abort();
      (void)thimble::xxh3(tensor.bytes);
    }
    if (contents.config) (void)thimble::canonical_json(*contents.config);
  } catch (const thimble::FormatError&) {
  }
  return 0;
}
