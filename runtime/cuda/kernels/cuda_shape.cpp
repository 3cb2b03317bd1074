// cuda_shape.cpp: the rules of padding.
#include "runtime/cuda/kernels/cuda_shape.h"

#include "runtime/base/error.h"
#include "runtime/tensor/host_device.h"

namespace thimble {
namespace {

constexpr int64_t kColumnMultiple = 8;  // 16-byte rows in bf16

int padded_head(int64_t head_dim) {
  for (int width : {32, 64, 128})
    if (head_dim <= width) return width;
  throw DeviceError("CUDA: heads of " + std::to_string(head_dim) +
                    " columns, at most 128 are supported; use --device cpu");
}

}  // namespace

CudaShape cuda_shape(const ModelConfig& c) {
  CudaShape shape;
  shape.width = static_cast<int>(round_up(c.model_dim, kColumnMultiple));
  shape.mlp_width = static_cast<int>(round_up(c.mlp_dim(), kColumnMultiple));
  shape.head_width = padded_head(c.head_dim());
  shape.vocabulary = round_up(c.vocab_size, kColumnMultiple);
  if (c.bigram_vocab_size > 0) shape.bigram_width = round_up(c.bigram_dim, kColumnMultiple);
  if (!c.ve_layers.empty()) shape.value_width = round_up(c.ve_dim, kColumnMultiple);
  shape.query_columns = c.num_heads * shape.head_width;
  shape.kv_columns = c.num_kv_heads * shape.head_width;
  return shape;
}

}  // namespace thimble
