// fuzz_safetensors.cpp: any bytes are either a FormatError or a file whose tensors lie inside it and fit their shapes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "quantizer/formats/safetensors.h"
#include "runtime/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  thimble::Bytes file(reinterpret_cast<const std::byte*>(data), size);
  try {
    uint64_t covered = 0;
    thimble::CheckpointContents contents = thimble::read_safetensors(file, "fuzz");
    for (const auto& [name, tensor] : contents.tensors) {
      uint64_t needed = thimble::dtype_bytes(tensor.dtype);
      for (int64_t dimension : tensor.shape) needed *= static_cast<uint64_t>(dimension);
      bool inside = tensor.bytes.data() >= file.data() && tensor.bytes.data() + needed <= file.data() + size;
      if (tensor.bytes.size() != needed || !inside) std::abort();
      covered += needed;
    }
    if (covered > size) std::abort();
  } catch (const thimble::FormatError&) {
  }
  return 0;
}
