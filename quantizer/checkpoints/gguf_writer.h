// gguf_writer.h: writes a model as a GGUF file of version 3 that llama.cpp loads and runs, with its tokenizer.
#pragma once

#include <span>
#include <string>

#include "quantizer/checkpoints/weight_source.h"
#include "quantizer/formats/gguf_blocks.h"

namespace thimble {

// The keys of a file, as bytes.
class GgufKeys {
 public:
  // A whole number of 32 bits that is not negative, a fraction (as float32), a truth value or a text.
  void add(const std::string& key, const Json& value);
  void add_texts(const std::string& key, std::span<const std::string> texts);
  void add_numbers(const std::string& key, std::span<const int32_t> numbers);
  void add_fractions(const std::string& key, std::span<const float> fractions);

  uint64_t count() const { return count_; }
  Bytes bytes() const { return bytes_; }

 private:
  void begin(const std::string& key, uint32_t type);

  uint64_t count_ = 0;
  ByteVector bytes_;
};

struct GgufReport {
  size_t tensors = 0;
  size_t narrower = 0;  // matrices in F16, whose rows are no whole blocks
  uint64_t tensor_bytes = 0;
};

// Matrices in `type` (F32, F16, BF16 or Q8_0), vectors in F32. `tokenizer`: path of the model's. Tensors are read and
// written one after the other; the file appears whole or not at all. A UsageError for models and tokenizers that
// llama.cpp does not run, or that are not known to.
GgufReport write_gguf(const std::string& path, const WeightSource& source, const GgufBlocks& type,
                      const std::string& tokenizer);

}  // namespace thimble
