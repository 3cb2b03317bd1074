// cuda_float_attention.cu: see cuda_float_attention.cuh. Here: attention as products, with softmax between them. In
// matrices of scores, what lies above the diagonal is neither computed nor read beyond the tile of 128 rows that the
// diagonal passes through; within that tile it is zero.
#include "runtime/cuda/kernels/attention/cuda_float_attention.cuh"

#include "runtime/cuda/kernels/attention/cuda_attention.h"
#include "runtime/cuda/kernels/cuda_block_sums.cuh"
#include "runtime/cuda/kernels/cuda_row_kernel.cuh"
#include "runtime/cuda/kernels/products/cuda_float_product.cuh"
#include "runtime/ops/attention_window.h"

namespace thimble {
namespace {

constexpr int kThreads = kRowBlockThreads;

struct ScoreRows {
  int64_t positions, stride, window;
  float scale;

  // Of the CTA's row: its first element, and how many keys it sees.
  __device__ int64_t begin() const { return static_cast<int64_t>(blockIdx.x) * stride; }
  __device__ int64_t valid() const { return static_cast<int64_t>(blockIdx.x) % positions + 1; }
  // Of these, the first that is within the window.
  __device__ int64_t first() const { return first_seen(valid() - 1, window); }
  // Up to where the products read.
  __device__ int64_t end() const { return min(stride, (valid() + kCausalTile - 1) / kCausalTile * kCausalTile); }
};

// One CTA per row of scores, in place: softmax(scale * s), zero where the row sees nothing.
__global__ void softmax_kernel(ScoreRows rows, float* scores) {
  float* row = scores + rows.begin();
  int64_t first = rows.first(), valid = rows.valid();
  float peak = -INFINITY;
  for (int64_t j = first + threadIdx.x; j < valid; j += kThreads) peak = fmaxf(peak, row[j]);
  peak = max_over_block(peak);
  float sum = 0;
  for (int64_t j = first + threadIdx.x; j < valid; j += kThreads) {
    float e = expf((row[j] - peak) * rows.scale);
    row[j] = e;
    sum += e;
  }
  float inverse_sum = 1 / sum_over_block(sum);
  for (int64_t j = threadIdx.x; j < rows.end(); j += kThreads)
    row[j] = j >= first && j < valid ? row[j] * inverse_sum : 0;
}

// The same rows backwards: g = dP becomes dS = P (dP - sum(P dP)) * scale.
__global__ void softmax_backward_kernel(ScoreRows rows, const float* probabilities, float* gradients) {
  const float* p = probabilities + rows.begin();
  float* g = gradients + rows.begin();
  int64_t valid = rows.valid();
  float mean = 0;
  for (int64_t j = threadIdx.x; j < valid; j += kThreads) mean += p[j] * g[j];
  mean = sum_over_block(mean);
  for (int64_t j = threadIdx.x; j < rows.end(); j += kThreads) g[j] = j < valid ? p[j] * (g[j] - mean) * rows.scale : 0;
}

struct OwnValue {
  float norm, inverse;  // |v| and 1 / max(|v|, 1e-12)

  __device__ OwnValue(const float* v, int64_t d, int lane) {
    norm = sqrtf(sum_over_row(d, lane, [&](int64_t c) { return v[c] * v[c]; }));
    inverse = 1 / (norm > kLeastValueNorm ? norm : kLeastValueNorm);
  }
};

// y -= (y . vhat) vhat; a row is one query head of one position.
struct RemoveOwnValue {
  ConstCudaView v;
  int64_t heads, heads_per_group, d;
  CudaView y;

  __device__ void operator()(int64_t row, int lane) const {
    int64_t position = row / heads, head = row % heads;
    const float* value = v.data + position * v.stride + head / heads_per_group * d;
    float* out = y.data + position * y.stride + head * d;
    OwnValue own(value, d, lane);
    float along = sum_over_row(d, lane, [&](int64_t c) { return out[c] * value[c]; }) * own.inverse;
    for (int64_t c = lane; c < d; c += 32) out[c] -= along * own.inverse * value[c];
  }
};

// remove_own_value_backward() of cpu_kernels.cpp; a row is one key/value head of one position. dv becomes the
// sum over the query heads of the group.
struct RemoveOwnValueBackward {
  ConstCudaView v, y;
  int64_t groups, heads_per_group, d;
  CudaView dy, dv;

  __device__ void operator()(int64_t row, int lane) const {
    const int64_t position = row / groups, group = row % groups;
    const float* value = v.data + position * v.stride + group * d;
    float* dvalue = dv.data + position * dv.stride + group * d;
    OwnValue own(value, d, lane);
    bool is_replaced = !(own.norm > kLeastValueNorm);
    for (int64_t member = 0; member < heads_per_group; ++member) {
      const int64_t column = (group * heads_per_group + member) * d;
      const float* out = y.data + position * y.stride + column;
      float* g = dy.data + position * dy.stride + column;
      float y_along = sum_over_row(d, lane, [&](int64_t c) { return out[c] * value[c]; }) * own.inverse;
      float g_along = sum_over_row(d, lane, [&](int64_t c) { return g[c] * value[c]; }) * own.inverse;
      float along = is_replaced ? 0.0f : -2.0f * y_along * g_along;
      for (int64_t c = lane; c < d; c += 32) {
        float removed = own.inverse * (y_along * g[c] + g_along * out[c] + along * own.inverse * value[c]);
        dvalue[c] = (member == 0 ? 0 : dvalue[c]) - removed;
        g[c] -= g_along * own.inverse * value[c];
      }
    }
  }
};

// Floats from one row of scores to the next: rows begin at multiples of 16 bytes.
constexpr int64_t score_stride(int64_t positions) { return (positions + 3) / 4 * 4; }

// How the operands of all windows and heads lie in memory.
class Layout {
 public:
  Layout(const op::Attention& shape, const BatchShape& batch, ProductArithmetic arithmetic)
      : shape_(shape),
        arithmetic_(arithmetic),
        positions_(batch.positions),
        sequences_(batch.sequences),
        stride_(score_stride(positions_)) {}

  int64_t score_count() const { return sequences_ * shape_.heads * positions_ * stride_; }
  int64_t score_rows() const { return sequences_ * shape_.heads * positions_; }
  int64_t heads_per_group() const { return shape_.heads / shape_.kv_heads; }
  // Products of all query heads, and of all groups.
  ProductOptions of_heads(ProductPart part) const {
    return {.arithmetic = arithmetic_, .batch = {sequences_, shape_.heads}, .part = part};
  }
  ProductOptions of_groups(ProductPart part, bool add) const {
    return {.arithmetic = arithmetic_, .add = add, .batch = {sequences_, shape_.kv_heads}, .part = part};
  }
  ScoreRows rows() const { return {positions_, stride_, shape_.window, shape_.scale}; }

  // Operands of batches over all query heads.
  template <typename Operand, typename T>
  Operand scores(T* data) const {
    return {data, positions_, stride_, stride_, {shape_.heads * head_scores(), head_scores()}};
  }
  template <typename Operand, typename View>
  Operand queries(View view) const {
    return {view.data, positions_, shape_.head_dim, view.stride, {positions_ * view.stride, shape_.head_dim}};
  }
  ProductInput keys(ConstCudaView view) const {
    return {view.data,
            positions_,
            shape_.head_dim,
            view.stride,
            {positions_ * view.stride, shape_.head_dim, static_cast<int>(heads_per_group())}};
  }
  // Operands of batches over groups, each with the `member`-th of its query heads.
  ProductInput member_scores(const float* data, int64_t member) const {
    return {data + member * head_scores(),
            positions_,
            stride_,
            stride_,
            {shape_.heads * head_scores(), heads_per_group() * head_scores()}};
  }
  ProductInput member_queries(ConstCudaView view, int64_t member) const {
    return {view.data + member * shape_.head_dim,
            positions_,
            shape_.head_dim,
            view.stride,
            {positions_ * view.stride, heads_per_group() * shape_.head_dim}};
  }
  ProductOutput group_values(CudaView view) const { return queries<ProductOutput>(view); }

 private:
  int64_t head_scores() const { return positions_ * stride_; }

  const op::Attention& shape_;
  ProductArithmetic arithmetic_;
  int64_t positions_, sequences_, stride_;
};

// left (S*T, H*d) right^T (S*T, G*d) of every head, below the diagonal.
void multiply_scores(const Layout& at, ConstCudaView left, ConstCudaView right, float* scores, cudaStream_t stream) {
  launch_product(ProductForm::kNT, at.queries<ProductInput>(left), at.keys(right), at.scores<ProductOutput>(scores),
                 at.of_heads(ProductPart::kLowerTiles), stream);
}

void form_probabilities(const Layout& at, ConstCudaView q, ConstCudaView k, float* scores, cudaStream_t stream) {
  multiply_scores(at, q, k, scores, stream);
  launch_kernel(softmax_kernel, {dim3(static_cast<unsigned>(at.score_rows())), kThreads}, stream, at.rows(), scores);
}

// out = scores * right of every head.
void apply_scores(const Layout& at, const float* scores, ConstCudaView right, CudaView out, cudaStream_t stream) {
  launch_product(ProductForm::kNN, at.scores<ProductInput>(scores), at.keys(right), at.queries<ProductOutput>(out),
                 at.of_heads(ProductPart::kDepthToRow), stream);
}

// out (+)= sum over a group's query heads, first head first, of scores^T * right.
void apply_transposed(const Layout& at, const float* scores, ConstCudaView right, bool add, CudaView out,
                      cudaStream_t stream) {
  for (int64_t member = 0; member < at.heads_per_group(); ++member)
    launch_product(ProductForm::kTN, at.member_scores(scores, member), at.member_queries(right, member),
                   at.group_values(out), at.of_groups(ProductPart::kDepthFromRow, add || member > 0), stream);
}

}  // namespace

void CudaFloatAttention::reserve(const op::Attention& shape, const BatchShape& batch) {
  const int64_t scores = batch.rows() * shape.heads * score_stride(batch.positions);
  for (DeviceArray<float>* array : {&probabilities_, &gradients_}) array->reserve(scores, "attention scores");
  if (shape.exclusive) y_.reserve(batch.rows() * shape.heads * shape.head_dim);
}

void CudaFloatAttention::forward(ConstCudaView q, ConstCudaView k, ConstCudaView v, const op::Attention& shape,
                                 const BatchShape& batch, CudaView y, cudaStream_t stream) {
  Layout at(shape, batch, arithmetic_);
  probabilities_.reserve(at.score_count());
  form_probabilities(at, q, k, probabilities_.data(), stream);
  apply_scores(at, probabilities_.data(), v, y, stream);
  if (shape.exclusive)
    launch_rows(q.rows * shape.heads, RemoveOwnValue{v, shape.heads, shape.heads / shape.kv_heads, shape.head_dim, y},
                stream);
}

void CudaFloatAttention::backward(ConstCudaView q, ConstCudaView k, ConstCudaView v, const op::Attention& shape,
                                  const BatchShape& batch, CudaView dy, CudaView dq, CudaView dk, CudaView dv,
                                  cudaStream_t stream) {
  reserve(shape, batch);
  const Layout at(shape, batch, arithmetic_);
  form_probabilities(at, q, k, probabilities_.data(), stream);
  if (shape.exclusive) {
    const CudaView before{y_.data(), q.rows, q.columns};
    apply_scores(at, probabilities_.data(), v, before, stream);
    launch_rows(q.rows * shape.kv_heads,
                RemoveOwnValueBackward{v, before, shape.kv_heads, at.heads_per_group(), shape.head_dim, dy, dv},
                stream);
  }
  apply_transposed(at, probabilities_.data(), dy, shape.exclusive, dv, stream);
  multiply_scores(at, dy, v, gradients_.data(), stream);
  launch_kernel(softmax_backward_kernel, {dim3(static_cast<unsigned>(at.score_rows())), kThreads}, stream, at.rows(),
                static_cast<const float*>(probabilities_.data()), gradients_.data());
  apply_scores(at, gradients_.data(), k, dq, stream);
  apply_transposed(at, gradients_.data(), q, /*add=*/false, dk, stream);
}

}  // namespace thimble
