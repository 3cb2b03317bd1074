// cuda_model.cuh: a golf-gpt's weights in device memory, laid out for the kernels.
//   widths     D, M and the embedding widths b and e are padded with zeros to multiples of 8 (16-byte rows in bf16).
//   heads      padded with zeros to 32, 64 or 128 columns; zeros change neither norms (which divide by d) nor products.
//   rotation   query and key rows are permuted within each head so that the two elements that rotate together are
//              neighbours; a permutation common to both leaves every q.k as it is.
//   tables     bigram and value embeddings are stored after their projections: one gather replaces a product per token.
#pragma once

#include "runtime/codes/block_feed.h"
#include "runtime/codes/stored_model.h"
#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/cuda/kernels/cuda_numeric.cuh"
#include "runtime/families/golf/model.h"

namespace thimble {

template <typename T>
class CudaWeightLoader;  // cuda_weights.cuh

// T = float or __nv_bfloat16 (rounded to nearest even).
template <typename T>
struct CudaMatrix {
  DeviceArray<T> data;
  int rows = 0, columns = 0;  // padded; row-major without gaps
};

template <typename T>
struct CudaLayer {
  CudaMatrix<T> qkv;               // ((H + 2G) * head_width, D): query, key and value heads
  CudaMatrix<T> output;            // (D, H * head_width)
  CudaMatrix<T> up;                // (M, D)
  CudaMatrix<T> down;              // (D, M)
  DeviceArray<float> query_scale;  // (H): q_gain * log2(e) / sqrt(d), so that the softmax is a plain 2^(q.k)
  float largest_score = 0;         // no |q.k| exceeds it: both are normed
  DeviceArray<float> attn_scale, mlp_scale, mix_x, mix_x0, skip_weight, skip_gate;
  float value_embedding_scale = 0;
};

template <typename T>
struct CudaModel {
  // Copies and converts on the current device. Heads wider than 128 are a DeviceError.
  explicit CudaModel(const Model& model);
  // The same weights, bit for bit, as of the dequantized model, with codes unpacked on the device. Errors in the codes
  // are FormatErrors.
  CudaModel(const StoredModel& stored, const BlockFeed& feed);

  // Puts other values, of the same shape, in the place of a block's matrix, by unbanked name. Nothing may run on the
  // model meanwhile; waits until they are there.
  void replace(const std::string& name, const Matrix& values, CudaWeightLoader<T>& loader);

  ModelConfig config;
  int width = 0, mlp_width = 0, head_width = 0;     // padded D, M, d
  CudaMatrix<T> token_embedding;                    // (V, D), V padded to a multiple of 8
  CudaMatrix<T> untied_head;                        // the same shape; empty when tied
  CudaMatrix<T> bigram_table;                       // (B, D): scale * projection applied to each embedding
  CudaMatrix<T> value_table;                        // (V, G * head_width): projection applied to each embedding
  CudaMatrix<T> bigram_embedding, value_embedding;  // (B, b), (V, e): the projections' inputs, for Hessians
  DeviceArray<float> smear_gate;
  std::vector<CudaLayer<T>> layers;

  const CudaMatrix<T>& head() const { return config.tie_embeddings ? token_embedding : untied_head; }
};

// Interleaved (cosine, sine) of positions 0 .. context - 1: (context, rope_dims / 2).
DeviceArray<float2> make_cuda_rotary_table(const ModelConfig& config, int64_t context);

}  // namespace thimble
