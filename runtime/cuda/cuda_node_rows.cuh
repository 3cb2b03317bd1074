// cuda_node_rows.cuh: operations of network.h one by one, row by row, for nodes that no composite covers and as the
// reference of those that one does. Arithmetic is float32; what is written is rounded, then stored as T. A row's result
// depends on its own sequence alone. T = float, __nv_bfloat16, __half; all is enqueued on one stream.
#pragma once

#include "runtime/cuda/kernels/cuda_epilogues.cuh"
#include "runtime/cuda/kernels/cuda_float_matrix.cuh"
#include "runtime/ops/activation.h"
#include "runtime/tensor/rounding.h"

namespace thimble {

// Rows of a value. Whoever writes them puts zeros in columns [columns, padded), which products read.
template <typename T>
struct NodeRows {
  T* data = nullptr;
  int64_t rows = 0, columns = 0, stride = 0, padded = 0;
};

// Rotation of a row's heads; angles as make_cuda_rotary_table() has them, or null.
struct NodeRotation {
  const float2* angles = nullptr;
  int64_t half = 0;
};

template <typename T>
class CudaNodeRows {
 public:
  explicit CudaNodeRows(cudaStream_t stream) : stream_(stream) {}

  // to row s * to_positions + i = from row s * from_positions + from_positions - to_positions + i.
  void copy_last(const NodeRows<T>& from, int64_t from_positions, const NodeRows<T>& to, int64_t to_positions) const;
  void copy(const NodeRows<T>& from, const NodeRows<T>& to) const { copy_last(from, 1, to, 1); }

  // In all of these y may be x, its first input, but of smear().

  // y = x + factor * scale * a; `scale` a vector, or null: 1.
  void add(const NodeRows<T>& x, const NodeRows<T>& a, const float* scale, float factor, const Rounding& r,
           const NodeRows<T>& y) const;
  void rms_norm(const NodeRows<T>& x, const float* gain, float factor, float epsilon, const Rounding& r,
                const NodeRows<T>& y) const;
  void layer_norm(const NodeRows<T>& x, const float* weight, const float* bias, float epsilon, const Rounding& r,
                  const NodeRows<T>& y) const;
  // op::Heads; null gains are 1, and without a norm (epsilon 0) norm_gain counts for nothing.
  void heads(const NodeRows<T>& x, int64_t head_dim, float epsilon, const float* norm_gain, const float* head_gain,
             const NodeRotation& rotation, const RowPositions& positions, const Rounding& r,
             const NodeRows<T>& y) const;
  void activate(Activation activation, const NodeRows<T>& x, const Rounding& r, const NodeRows<T>& y) const;
  // y = f(x) * a.
  void gate(Activation activation, const NodeRows<T>& x, const NodeRows<T>& a, const Rounding& r,
            const NodeRows<T>& y) const;
  void mix(const NodeRows<T>& x, const NodeRows<T>& a, const float* first, const float* second, const Rounding& r,
           const NodeRows<T>& y) const;
  // `gate` may be null.
  void skip(const NodeRows<T>& x, const NodeRows<T>& a, const float* weight, const float* gate, const Rounding& r,
            const NodeRows<T>& y) const;
  // A sequence's first row follows `state` (sequences, columns), or zeros where it is null; with one, the sequences'
  // last rows replace it.
  void smear(const NodeRows<T>& x, const float* gate, T* state, const RowPositions& positions, const Rounding& r,
             const NodeRows<T>& y) const;
  // y += bias.
  void add_bias(const float* bias, const NodeRows<T>& y) const;

 private:
  // Launches make(where rows go), whose columns are 16 bytes a lane where all rows that it reads and writes allow that.
  template <typename Make>
  void launch_wide(bool has_vectors_too, const Rounding& r, const NodeRows<T>& y, const Make& make) const;
  template <typename Function>
  void map_rows(bool has_vectors_too, const Rounding& r, const NodeRows<T>& y, const Function& function) const;

  cudaStream_t stream_;
};

// What attention reads, from queries, keys and values in heads of `head_dim` to heads of `padded` columns.
template <typename T>
struct PlacedHeads {
  NodeRows<T> query, key, value;
  int64_t head_dim, padded;
  int64_t heads, kv_heads;
  T* query_out;  // (rows, H * padded) scaled by query_scale, or null
  float query_scale;
  T* cache;  // (S * capacity, 2 G * padded): keys, then values
  int64_t capacity;
};
template <typename T>
void launch_place_heads(const PlacedHeads<T>& heads, const RowPositions& positions, cudaStream_t stream);

}  // namespace thimble
