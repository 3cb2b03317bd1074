// fuzz_llmc.cpp: any bytes are either a FormatError or a checkpoint of llm.c whose tensors lie inside it, fit their
// shapes, and are those of the GPT-2 that its config describes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "quantizer/formats/llmc_checkpoint.h"
#include "runtime/base/error.h"
#include "runtime/families/gpt2/gpt2_family.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  thimble::Bytes file(reinterpret_cast<const std::byte*>(data), size);
  thimble::CheckpointContents contents;
  try {
    contents = thimble::read_llmc_checkpoint(file, "fuzz");
  } catch (const thimble::FormatError&) {
    return 0;
  }
  if (!thimble::looks_like_llmc(file)) std::abort();
  for (const auto& [name, tensor] : contents.tensors) {
    const auto count = static_cast<uint64_t>(thimble::element_count(tensor.shape));
    const bool inside =
        tensor.bytes.data() >= file.data() && tensor.bytes.data() + tensor.bytes.size() <= file.data() + file.size();
    if (tensor.bytes.size() != count * thimble::dtype_bytes(tensor.dtype) || !inside) std::abort();
  }
  // A FormatError here is a finding.
  thimble::Gpt2Family().resolve(*contents.config, contents.tensors, {"fuzz", "fuzz"});
  return 0;
}
