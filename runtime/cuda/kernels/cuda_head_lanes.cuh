// cuda_head_lanes.cuh: heads of rows (rows, heads * head_dim) shared out to the lanes of a warp: kLanes lanes a head,
// of which lane l holds columns l, l + kLanes, ..., kPieces of them, in registers. A head's sums are the same bits
// whatever heads share its warp.
#pragma once

#include <utility>

#include "runtime/cuda/kernels/cuda_row_kernel.cuh"

namespace thimble {

// Of a count of heads below 2^31.
struct HeadRows {
  int count = 0, heads = 1, head_dim = 0;  // heads in all, and of a row

  HeadRows(int64_t rows, int64_t of_row, int64_t width)
      : count(static_cast<int>(rows * of_row)), heads(static_cast<int>(of_row)), head_dim(static_cast<int>(width)) {}
};

template <int kLanes, int kPieces>
struct HeadLanes {
  static constexpr int kHeads = 32 / kLanes;  // of a warp
  int row, head, lane;
  bool exists;  // lanes of no head repeat those of the last one

  __device__ HeadLanes(const HeadRows& rows, int64_t warp, int warp_lane) {
    const int at = static_cast<int>(warp) * kHeads + warp_lane / kLanes, index = min(at, rows.count - 1);
    exists = at < rows.count;
    row = index / rows.heads;
    head = index % rows.heads;
    lane = warp_lane % kLanes;
  }
  // body(i, column) of this lane's columns.
  template <typename Body>
  __device__ void for_columns(int head_dim, const Body& body) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      if (lane + i * kLanes < head_dim) body(i, lane + i * kLanes);
  }
  // Over the head's columns: sum of term(i, column).
  template <typename Term>
  __device__ float sum(int head_dim, const Term& term) const {
    float total = 0;
    for_columns(head_dim, [&](int i, int c) { total += term(i, c); });
    return sum_over_lanes<kLanes>(total);
  }
};

// Of a rotation by `half` pairs (k, half + k), k < half: the column that c rotates with.
__device__ inline int rotation_partner(int c, int half) { return c < half ? c + half : c - half; }

// Launches make<kLanes, kPieces>(), an operation that takes a warp's number and a lane, for heads of up to 256 columns.
template <typename Make>
void launch_heads(const HeadRows& rows, cudaStream_t stream, const Make& make) {
  auto launch = [&]<int kLanes, int kPieces>(std::integer_sequence<int, kLanes, kPieces>) {
    launch_rows(divide_up(rows.count, 32 / kLanes), make.template operator()<kLanes, kPieces>(), stream);
  };
  if (rows.head_dim <= 64)
    launch(std::integer_sequence<int, 16, 4>());
  else if (rows.head_dim <= 128)
    launch(std::integer_sequence<int, 32, 4>());
  else
    launch(std::integer_sequence<int, 32, 8>());
}

}  // namespace thimble
