// fuzz_torch_checkpoint.cpp: any bytes as a zip file of torch.save, checksums unchecked so that changes get past them.
// Every tensor must have the bytes of its shape, all of them readable (AddressSanitizer checks that they are).
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "quantizer/formats/torch_checkpoint.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  thimble::Bytes file(reinterpret_cast<const std::byte*>(data), size);
  try {
    thimble::CheckpointContents contents = thimble::read_torch_checkpoint(file, "fuzz", thimble::CrcCheck::kSkip);
    size_t gathered_bytes = 0;
    for (const thimble::HeldBytes& tensor : contents.gathered) gathered_bytes += tensor.bytes.size();
    if (gathered_bytes > size) std::abort();
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
