// cuda_row_attention.cuh: causal attention of one row of queries and one head at a time, over the cache, whose scores
// and weights are rounded as a numeric mode has it: the plain kernel beside the fused ones of cuda_attention.h, for
// heads of any width and modes that round between the products.
#pragma once

#include "runtime/cuda/cuda_node_rows.cuh"
#include "runtime/ops/network.h"

namespace thimble {

template <typename T>
struct RowAttention {
  NodeRows<T> query, output;  // (rows, H * d); `output` is rounded by `rounding`
  const T* cache;             // (S * capacity, 2 G * padded): keys, then values
  int64_t capacity, padded;
  op::Attention shape;
  Rounding scores, weights, rounding;
};
// `most_keys`: no row sees more. Too many for a multiprocessor's shared memory are a DeviceError.
template <typename T>
void launch_row_attention(const RowAttention<T>& attention, const RowPositions& positions, int64_t most_keys,
                          cudaStream_t stream);

}  // namespace thimble
