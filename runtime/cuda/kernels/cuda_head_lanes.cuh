// cuda_head_lanes.cuh: heads of rows (rows, heads * head_dim) shared out to the lanes of a warp: kLanes lanes a head,
// of which lane l holds pieces l, l + kLanes, ..., kPieces of them, of kWidth neighbouring columns each, in registers.
// A head's sums are the same bits whatever heads share its warp.
#pragma once

#include "runtime/cuda/kernels/cuda_rotary.cuh"
#include "runtime/cuda/kernels/cuda_row_vectors.cuh"

namespace thimble {

// Of a count of heads below 2^31.
struct RowHeads {
  int count = 0, heads = 1, head_dim = 0;  // heads in all, and of a row

  RowHeads(int64_t rows, int64_t of_row, int64_t width)
      : count(static_cast<int>(rows * of_row)), heads(static_cast<int>(of_row)), head_dim(static_cast<int>(width)) {}
};

template <int kLanes, int kPieces, int kWidth>
struct HeadLanes {
  static constexpr int kHeads = 32 / kLanes;  // of a warp
  using Values = float[kPieces * kWidth];
  int row, head, lane;
  bool exists;  // lanes of no head repeat those of the last one

  __device__ HeadLanes(const RowHeads& rows, int64_t warp, int warp_lane) {
    const int at = static_cast<int>(warp) * kHeads + warp_lane / kLanes, index = min(at, rows.count - 1);
    exists = at < rows.count;
    row = index / rows.heads;
    head = index % rows.heads;
    lane = warp_lane % kLanes;
  }
  // body(i, column) of this lane's columns: values[i] is that of `column`.
  template <typename Body>
  __device__ void for_columns(int head_dim, const Body& body) const {
    for_pieces(head_dim, [&](int i, int c) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) body(i + j, c + j);
    });
  }
  // This lane's columns of a head, of which there are head_dim.
  template <typename T>
  __device__ void load(const T* from, int head_dim, Values& values) const {
    for_pieces(head_dim, [&](int i, int c) { put(load_columns<kWidth>(from + c), values + i); });
  }
  // What they rotate with, and the angles: of columns below 2 * half alone.
  template <typename T>
  __device__ void load_partners(const T* from, int head_dim, int half, Values& values) const {
    for_pieces(min(head_dim, 2 * half),
               [&](int i, int c) { put(load_columns<kWidth>(from + rotation_partner(c, half)), values + i); });
  }
  __device__ void load_angles(const float2* of_position, int head_dim, int half,
                              float2 (&angles)[kPieces * kWidth]) const {
    for_pieces(min(head_dim, 2 * half), [&](int i, int c) {
      const float2* from = of_position + (c < half ? c : c - half);
      if constexpr (kWidth == 1) {
        angles[i] = *from;
      } else {
#pragma unroll
        for (int j = 0; j < kWidth; j += 2) load_two_angles(from + j, angles[i + j], angles[i + j + 1]);
      }
    });
  }
  template <typename T>
  __device__ void store(const Values& values, int head_dim, T* to) const {
    for_pieces(head_dim,
               [&](int i, int c) { write_columns(to + c, columns_of<kWidth>([&](int j) { return values[i + j]; })); });
  }
  // Over the head's columns: sum of term(i, column).
  template <typename Term>
  __device__ float sum(int head_dim, const Term& term) const {
    float total = 0;
    for_columns(head_dim, [&](int i, int c) { total += term(i, c); });
    return sum_over_lanes<kLanes>(total);
  }

 private:
  // body(i, column): the first of a piece.
  template <typename Body>
  __device__ void for_pieces(int head_dim, const Body& body) const {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int column = (lane + piece * kLanes) * kWidth;
      if (column < head_dim) body(piece * kWidth, column);
    }
  }
  static __device__ void put(const Columns<kWidth>& columns, float* to) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) to[j] = columns[j];
  }
};

// Can heads of `head_dim` columns in rows of such vectors be read 16 bytes at a time, and those `half` columns away?
template <typename T>
bool has_head_vectors(int64_t head_dim, int64_t half) {
  return head_dim % kRowVector<T> == 0 && half % kRowVector<T> == 0;
}

// Calls body<kLanes, kPieces, kWidth>() for heads of up to 256 columns; `has_vectors`: 16 bytes at a time.
template <typename T, typename Body>
void with_head_lanes(int64_t head_dim, bool has_vectors, const Body& body) {
  auto with_width = [&]<int kHead>(std::integral_constant<int, kHead>) {
    constexpr int kVector = kRowVector<T>, kLanes = std::min(32, kHead / kVector);
    if (has_vectors) return body.template operator()<kLanes, kHead / kVector / kLanes, kVector>();
    constexpr int kSingle = kHead == 64 ? 16 : 32;
    body.template operator()<kSingle, kHead / kSingle, 1>();
  };
  if (head_dim <= 64)
    with_width(std::integral_constant<int, 64>());
  else if (head_dim <= 128)
    with_width(std::integral_constant<int, 128>());
  else
    with_width(std::integral_constant<int, 256>());
}

// Launches make<kLanes, kPieces, kWidth>(), an operation that takes a warp's number and a lane.
template <typename T, typename Make>
void launch_heads(const RowHeads& rows, bool has_vectors, cudaStream_t stream, const Make& make) {
  with_head_lanes<T>(rows.head_dim, has_vectors, [&]<int kLanes, int kPieces, int kWidth>() {
    launch_rows(divide_up(rows.count, 32 / kLanes), make.template operator()<kLanes, kPieces, kWidth>(), stream);
  });
}

}  // namespace thimble
