// llmc_file_builder.h: checkpoints as llm.c writes them, from tensors under the names of gpt2_config.h.
#pragma once

#include "runtime/base/byte_cursor.h"
#include "tests/runtime/families/gpt2/random_gpt2.h"

namespace thimble {

constexpr int32_t kLlmcMagic = 20240326;

// `config` with what the format fixes: an MLP four times as wide, a tied head, epsilon 1e-5.
inline Gpt2Config llmc_config(Gpt2Config config = small_gpt2_config()) {
  config.mlp_dim = 4 * config.model_dim;
  config.tie_embeddings = true;
  config.norm_epsilon = 1e-5;
  return config;
}

inline ByteVector llmc_header(int32_t version, const Gpt2Config& c, int64_t padded_vocab_size) {
  ByteVector bytes;
  append_little_endian(bytes, kLlmcMagic);
  append_little_endian(bytes, version);
  for (int64_t value : {c.num_positions, c.vocab_size, c.num_layers, c.num_heads, c.model_dim, padded_vocab_size})
    append_little_endian(bytes, static_cast<int32_t>(value));
  bytes.resize(256 * sizeof(int32_t));
  return bytes;
}

// `tensors` as random_gpt2_tensors(llmc_config()) has them, F32 for version 3 and BF16 for version 5. Padding rows of
// the embedding are of bytes 0x7f.
inline ByteVector llmc_file(int32_t version, const Gpt2Config& c, const OwnedTensors& tensors,
                            int64_t padded_vocab_size) {
  ByteVector bytes = llmc_header(version, c, padded_vocab_size);
  const size_t width = version == 3 ? 4 : 2;
  append_bytes(bytes, tensors.at("transformer.wte.weight").bytes);
  bytes.resize(bytes.size() + static_cast<size_t>((padded_vocab_size - c.vocab_size) * c.model_dim) * width,
               std::byte{0x7f});
  append_bytes(bytes, tensors.at("transformer.wpe.weight").bytes);
  for (const char* name :
       {"ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
        "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"})
    for (int64_t i = 0; i < c.num_layers; ++i)
      append_bytes(bytes, tensors.at("transformer.h." + std::to_string(i) + "." + name).bytes);
  append_bytes(bytes, tensors.at("transformer.ln_f.weight").bytes);
  append_bytes(bytes, tensors.at("transformer.ln_f.bias").bytes);
  return bytes;
}

}  // namespace thimble
