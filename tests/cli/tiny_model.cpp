// tiny_model.cpp: weights, banks, torch files, tokenizer and text for tiny_model.h.
#include "tests/cli/tiny_model.h"

#include <random>

#include "runtime/base/atomic_file.h"
#include "runtime/families/golf/golf_layout.h"
#include "tests/eval/tokenizers/tokenizer_builder.h"
#include "tests/quantizer/formats/torch_file_builder.h"

namespace thimble::testing {
namespace {

const std::vector<PieceSpec>& words() {
  static const std::vector<PieceSpec> pieces = {{"▁", PieceType::kNormal, -2},
                                                {"▁the", PieceType::kNormal, -1},
                                                {"▁sea", PieceType::kNormal, -1},
                                                {"e", PieceType::kNormal, -3},
                                                {"n", PieceType::kNormal, -3}};
  return pieces;
}

}  // namespace

GolfConfig tiny_config() {
  GolfConfig config;
  config.vocab_size = static_cast<int64_t>(byte_fallback_model(words()).pieces.size());
  config.num_layers = 2;
  config.model_dim = 32;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.mlp_mult = 2;
  config.logit_softcap = 30;
  config.rope_base = 10000;
  config.rope_dims = 8;
  config.rope_train_seq_len = 64;
  config.ln_scale = true;
  config.xsa_last_n = 1;
  config.bigram_vocab_size = 32;
  config.bigram_dim = 8;
  config.smear_gate = true;
  config.skip_gates = true;
  config.ve_layers = {1};
  config.ve_dim = 8;
  return config;
}

Tensor random_tensor(const Shape& shape, float deviation, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(static_cast<size_t>(element_count(shape)));
  for (float& value : values) value = normal(random);
  return {DType::kF32, shape, from_float32(DType::kF32, values)};
}

Tensors tiny_weights(uint32_t seed) {
  Tensors weights;
  // Large enough that row scales lie above the method's floor and codes spread over their range.
  for (const auto& [name, shape] : golf_tensor_shapes(tiny_config()))
    weights[name] = random_tensor(shape, shape.size() == 2 ? 0.5f : 0.8f, seed++);
  return weights;
}

Tensors banked(const Tensors& weights) { return with_banks(weights, tiny_config().num_layers); }

void write_torch_file(const std::string& path, const Tensors& tensors) {
  PickleBuilder pickle;
  pickle.op('}').op('(');
  std::map<std::string, ByteVector> storages;
  for (const auto& [name, tensor] : tensors) {
    std::string key = std::to_string(storages.size());
    Shape strides(tensor.shape.size(), 1);
    for (size_t axis = strides.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * tensor.shape[axis];
    pickle.text(name).tensor("FloatStorage", key, element_count(tensor.shape), 0, tensor.shape, strides);
    storages[key] = tensor.bytes;
  }
  pickle.op('u');
  write_file_atomically(path, Bytes(build_zip(torch_parts(pickle.stop(), storages)).bytes));
}

std::string tiny_tokenizer_bytes() { return byte_fallback_model(words()).bytes(); }

std::string tiny_text() {
  std::string text;
  for (int i = 0; i < 12; ++i)
    text += "the sea and the wind, " + std::to_string(i * 37) + " waves\nbetween the stones é\n" +
            (i % 5 == 4 ? "<|doc|>\n" : "");
  return text;
}

}  // namespace thimble::testing
