// tiny_model.h: a random golf-gpt of two layers, small enough to quantize in a blink, and the files it comes in.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/json.h"
#include "runtime/families/golf/golf_config.h"
#include "runtime/tensor/tensor.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble::testing {

using Tensors = OwnedTensors;

// 2 layers of width 32, every optional part of the family; the vocabulary is that of tiny_tokenizer().
GolfConfig tiny_config();

// F32 weights under unbanked names. Equal seeds give equal weights.
Tensors tiny_weights(uint32_t seed = 1);

// The same weights with their matrices gathered in banks.
Tensors banked(const Tensors& weights);

// Elements of a random F32 tensor, normally distributed.
Tensor random_tensor(const Shape& shape, float deviation, uint32_t seed);

// As torch.save writes a state dict.
void write_torch_file(const std::string& path, const Tensors& tensors);

// A SentencePiece model with byte fallback and a few words, and text that it splits into both.
std::string tiny_tokenizer_bytes();
std::string tiny_text();

}  // namespace thimble::testing
