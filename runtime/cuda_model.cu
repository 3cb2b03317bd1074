// cuda_model.cu: upload and layout of the weights.
#include <algorithm>
#include <string>

#include "runtime/cuda_gemm.cuh"
#include "runtime/cuda_model.cuh"
#include "runtime/error.h"
#include "runtime/forward.h"

namespace thimble {
namespace {

// Where an axis's indices go: plain, or heads of `head` indices spread to `padded`, the first 2 * rotated of each
// interleaved.
struct AxisMap {
  int head = 1, padded = 1, rotated = 0;

  __device__ int64_t operator()(int64_t index) const {
    int within = static_cast<int>(index % head);
    if (within < rotated)
      within = 2 * within;
    else if (within < 2 * rotated)
      within = 2 * (within - rotated) + 1;
    return index / head * padded + within;
  }
};

template <typename T>
__global__ void place_kernel(const float* source, int64_t rows, int64_t columns, AxisMap row_map, AxisMap column_map,
                             T* out, int64_t first_row, int64_t stride) {
  int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= rows * columns) return;
  int64_t row = row_map(index / columns) + first_row, column = column_map(index % columns);
  out[row * stride + column] = from_float<T>(source[index]);
}

// Copies matrices through one device buffer, each converted and put in place by one kernel.
class Uploader {
 public:
  template <typename T>
  void place(const Matrix& from, AxisMap row_map, AxisMap column_map, CudaMatrix<T>& to, int64_t first_row) {
    buffer_.reserve(from.rows() * from.cols());
    check_cuda(cudaMemcpy(buffer_.data(), from.data(), from.values().size_bytes(), cudaMemcpyHostToDevice));
    int64_t count = from.rows() * from.cols();
    if (count == 0) return;
    place_kernel<T><<<static_cast<unsigned>(divide_up(count, 256)), 256>>>(
        buffer_.data(), from.rows(), from.cols(), row_map, column_map, to.data.data(), first_row, to.columns);
    check_cuda(cudaGetLastError());
  }

 private:
  DeviceArray<float> buffer_;
};

template <typename T>
CudaMatrix<T> zero_matrix(int64_t rows, int64_t columns) {
  CudaMatrix<T> matrix{DeviceArray<T>(rows * columns), static_cast<int>(rows), static_cast<int>(columns)};
  matrix.data.fill_zero();
  return matrix;
}

DeviceArray<float> padded_vector(std::span<const float> values, int64_t count) {
  if (values.empty()) return {};
  std::vector<float> padded(values.begin(), values.end());
  padded.resize(static_cast<size_t>(std::max<int64_t>(count, static_cast<int64_t>(values.size()))), 0.0f);
  return DeviceArray<float>(std::span<const float>(padded));
}

// table (rows of `embedding`, outputs) = scale * embedding projection^T.
template <typename T>
CudaMatrix<T> projected_table(const CudaMatrix<T>& embedding, const CudaMatrix<T>& projection, float scale) {
  auto table = zero_matrix<T>(embedding.rows, projection.rows);
  GemmOperands<T> operands{embedding.data.data(), embedding.columns, projection.data.data(),
                           embedding.rows,        projection.rows,   embedding.columns};
  launch_gemm<T, 1, 64, 3>(operands, ScaledEpilogue<T>{table.data.data(), table.columns, scale}, nullptr);
  return table;
}

int padded_head(int64_t head_dim) {
  for (int width : {32, 64, 128})
    if (head_dim <= width) return width;
  throw DeviceError("CUDA: heads of " + std::to_string(head_dim) +
                    " columns, at most 128 are supported; use --device cpu");
}

constexpr float kLog2E = 1.4426950408889634f;

}  // namespace

template <typename T>
CudaModel<T>::CudaModel(const Model& model) : config(model.config) {
  const ModelConfig& c = config;
  auto head_dim = static_cast<int>(c.head_dim());
  width = static_cast<int>(round_up(c.model_dim, 8));
  mlp_width = static_cast<int>(round_up(c.mlp_dim(), 8));
  head_width = padded_head(head_dim);
  int64_t vocabulary = round_up(c.vocab_size, 8);
  AxisMap plain, heads{head_dim, head_width, 0}, rotated{head_dim, head_width, static_cast<int>(c.rope_dims / 2)};
  Uploader uploader;
  auto upload = [&](const Matrix& from, int64_t rows, int64_t columns, AxisMap row_map, AxisMap column_map) {
    auto to = zero_matrix<T>(rows, columns);
    uploader.place(from, row_map, column_map, to, 0);
    return to;
  };

  token_embedding = upload(model.token_embedding, vocabulary, width, plain, plain);
  if (!c.tie_embeddings) untied_head = upload(model.untied_head, vocabulary, width, plain, plain);
  if (c.bigram_vocab_size > 0) {
    int64_t inner = round_up(c.bigram_dim, 8);
    bigram_embedding = upload(model.bigram_embedding, c.bigram_vocab_size, inner, plain, plain);
    bigram_table = projected_table(bigram_embedding, upload(model.bigram_projection, width, inner, plain, plain),
                                   model.bigram_scale);
  }
  if (!c.ve_layers.empty()) {
    int64_t inner = round_up(c.ve_dim, 8);
    value_embedding = upload(model.value_embedding, c.vocab_size, inner, plain, plain);
    value_table = projected_table(
        value_embedding, upload(model.value_projection, c.num_kv_heads * head_width, inner, heads, plain), 1.0f);
  }
  smear_gate = padded_vector(model.smear_gate, width);

  for (const LayerWeights& from : model.layers) {
    CudaLayer<T>& to = layers.emplace_back();
    int64_t query_rows = c.num_heads * head_width, kv_rows = c.num_kv_heads * head_width;
    to.qkv = zero_matrix<T>(query_rows + 2 * kv_rows, width);
    uploader.place(from.query, rotated, plain, to.qkv, 0);
    uploader.place(from.key, rotated, plain, to.qkv, query_rows);
    uploader.place(from.value, heads, plain, to.qkv, query_rows + kv_rows);
    to.output = upload(from.output, width, query_rows, plain, heads);
    to.up = upload(from.up, mlp_width, width, plain, plain);
    to.down = upload(from.down, width, mlp_width, plain, plain);
    std::vector<float> query_scale;
    for (float gain : from.q_gain) query_scale.push_back(gain * kLog2E / std::sqrt(static_cast<float>(head_dim)));
    for (float scale : query_scale)
      to.largest_score = std::max(to.largest_score, std::abs(scale) * static_cast<float>(head_dim));
    to.query_scale = DeviceArray<float>(std::span<const float>(query_scale));
    to.attn_scale = padded_vector(from.attn_scale, width);
    to.mlp_scale = padded_vector(from.mlp_scale, width);
    to.mix_x = padded_vector(from.mix_x, width);
    to.mix_x0 = padded_vector(from.mix_x0, width);
    to.skip_weight = padded_vector(from.skip_weight, width);
    to.skip_gate = padded_vector(from.skip_gate, width);
    to.value_embedding_scale = from.value_embedding_scale;
  }
  check_cuda(cudaDeviceSynchronize());
}

template struct CudaModel<float>;
template struct CudaModel<__nv_bfloat16>;

DeviceArray<float2> make_cuda_rotary_table(const ModelConfig& config, int64_t context) {
  RotaryTable table = make_rotary_table(config, context);
  std::vector<float2> pairs;
  for (size_t i = 0; i < table.cosine.values().size(); ++i)
    pairs.push_back({table.cosine.values()[i], table.sine.values()[i]});
  return DeviceArray<float2>(std::span<const float2>(pairs));
}

}  // namespace thimble
