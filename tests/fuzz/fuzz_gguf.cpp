// fuzz_gguf.cpp: any bytes are either a FormatError or a GGUF file whose tensors lie inside it and hold what their
// shapes ask for; as a checkpoint, the same of its tensors in memory; its tokenizer gives every text tokens that it
// has.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "quantizer/formats/gguf.h"
#include "quantizer/formats/gguf_checkpoint.h"
#include "quantizer/formats/gguf_tokenizer_json.h"
#include "runtime/base/error.h"

namespace {

using namespace thimble;

void check_file(Bytes file) {
  const GgufFile gguf = read_gguf(file, "fuzz");
  uint64_t covered = 0;
  for (const auto& [name, tensor] : gguf.tensors) {
    const auto blocks = static_cast<uint64_t>(element_count(tensor.shape) / tensor.type->elements);
    const bool is_inside =
        tensor.bytes.data() >= file.data() && tensor.bytes.data() + tensor.bytes.size() <= file.data() + file.size();
    if (tensor.bytes.size() != blocks * tensor.type->bytes || !is_inside) std::abort();
    covered += tensor.bytes.size();
  }
  if (covered > file.size()) std::abort();
}

void check_checkpoint(Bytes file) {
  const CheckpointContents contents = read_gguf_checkpoint(file, "fuzz");
  if (!contents.config || !contents.config->is_object()) std::abort();
  for (const auto& [name, tensor] : contents.tensors)
    if (tensor.bytes.size() != static_cast<uint64_t>(element_count(tensor.shape)) * dtype_bytes(tensor.dtype))
      std::abort();
}

// Texts of any bytes that are UTF-8 have tokens.
void check_tokenizer(Bytes file) {
  const Tokenizer tokenizer = gguf_tokenizer(read_gguf(file, "fuzz"), "fuzz");
  for (const Token token : tokenizer.encode("The sea's  12 \n\xC3\xBC<s>"))
    if (token < 0 || token >= tokenizer.vocab_size()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Bytes file(reinterpret_cast<const std::byte*>(data), size);
  for (void (*check)(Bytes) : {check_file, check_checkpoint, check_tokenizer}) {
    try {
      check(file);
    } catch (const FormatError&) {
    }
  }
  return 0;
}
