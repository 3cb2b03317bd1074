// cuda_column_dots.cu: sums over pieces of sequences, all at once; the CTA that ends last adds them up in order.
#include "runtime/cuda/kernels/cuda_column_dots.cuh"

#include <cassert>

#include "runtime/cuda/kernels/cuda_numeric.cuh"
#include "runtime/cuda/kernels/cuda_overlap.cuh"
#include "runtime/tensor/host_device.h"

namespace thimble {
namespace {

constexpr int64_t kPiece = 256;
constexpr int kColumns = 32, kLanes = 8;  // of a CTA

struct Pieces {
  int64_t positions, first_position, columns, per_sequence, count;
};

template <typename A>
__device__ void report_bad(const BasicCudaView<const A>& a, const Pieces& pieces, int64_t piece, int64_t column,
                           const CudaBadTerm& bad) {
  int64_t sequence = piece / pieces.per_sequence, position = piece % pieces.per_sequence * kPiece;
  const A* at = a.data + (sequence * pieces.positions + position) * a.stride + column;
  while (position + 1 < pieces.positions && isfinite(to_float(*at))) {
    ++position;
    at += a.stride;
  }
  int64_t number = ((bad.first_sequence + sequence) * pieces.columns + column) * CudaBadTerm::kPositions +
                   pieces.first_position + position;
  atomicMin(bad.first, static_cast<unsigned long long>(number));
}

// CTA (x, y): 32 * kWidth columns of piece x. Thread (c, l) adds rows l, l + 8, ... of kWidth neighbouring columns, 1
// or 2; then the 8 are added in order. Of each y, the CTA that comes last adds the pieces to `sums`, first piece first;
// done[y] counts the CTAs, and is 0 before and after.
template <typename A, typename B, int kWidth>
__global__ void __launch_bounds__(kColumns* kLanes)
    column_dots_kernel(BasicCudaView<const A> a, BasicCudaView<const B> b, Pieces pieces, CudaBadTerm bad,
                       double* partials, unsigned* done, double* sums) {
  wait_for_previous();
  __shared__ double of_lanes[kLanes][kColumns * kWidth];
  const int thread_column = static_cast<int>(threadIdx.x) % kColumns * kWidth;
  const int lane = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t first_column = static_cast<int64_t>(blockIdx.y) * kColumns * kWidth;
  const int64_t piece = blockIdx.x, column = first_column + thread_column;
  const int64_t sequence = piece / pieces.per_sequence, first = piece % pieces.per_sequence * kPiece;
  const int64_t end = min(first + kPiece, pieces.positions);
  const bool exists = column < pieces.columns;
  double sum[kWidth] = {};
  if (exists)
#pragma unroll 4
    for (int64_t p = first + lane; p < end; p += kLanes) {
      const int64_t row = sequence * pieces.positions + p;
      const A* left = a.data + row * a.stride + column;
      const B* right = b.data + row * b.stride + column;
      if constexpr (kWidth == 1) {
        sum[0] += static_cast<double>(to_float(*left)) * static_cast<double>(to_float(*right));
      } else {
        const float2 x = load_pair(left), y = load_pair(right);
        sum[0] += static_cast<double>(x.x) * static_cast<double>(y.x);
        sum[1] += static_cast<double>(x.y) * static_cast<double>(y.y);
      }
    }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) of_lanes[lane][thread_column + i] = sum[i];
  __syncthreads();
  // Who adds up a column: not the thread above, so that a warp's threads have one row of of_lanes.
  const auto own = static_cast<int>(threadIdx.x);
  const int64_t own_column = first_column + own;
  const bool adds = own < kColumns * kWidth && own_column < pieces.columns;
  if (adds) {
    double all = of_lanes[0][own];
#pragma unroll
    for (int i = 1; i < kLanes; ++i) all += of_lanes[i][own];
    partials[piece * pieces.columns + own_column] = all;
  }
  __threadfence();  // whoever comes last sees them
  __syncthreads();
  __shared__ bool is_last;
  if (threadIdx.x == 0) is_last = atomicAdd(done + blockIdx.y, 1) == gridDim.x - 1;
  __syncthreads();
  if (!is_last) return;
  if (threadIdx.x == 0) done[blockIdx.y] = 0;
  __threadfence();
  constexpr int kRounds = 8;  // of kLanes pieces each, on their way at once
  double total = adds ? sums[own_column] : 0;
  bool is_reported = bad.first == nullptr;
  for (int64_t first_piece = 0; first_piece < pieces.count; first_piece += kRounds * kLanes) {
    double of_pieces[kRounds][kWidth];
#pragma unroll
    for (int round = 0; round < kRounds; ++round)
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const int64_t from = first_piece + round * kLanes + lane;
        // Past the first-level cache, which other CTAs' stores do not reach.
        of_pieces[round][i] = exists && from < pieces.count ? __ldcg(partials + from * pieces.columns + column + i) : 0;
      }
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int64_t of_round = first_piece + round * kLanes;
      if (of_round >= pieces.count) break;
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kWidth; ++i) of_lanes[lane][thread_column + i] = of_pieces[round][i];
      __syncthreads();
      if (!adds) continue;
      const auto count = static_cast<int>(min(int64_t{kLanes}, pieces.count - of_round));
      for (int i = 0; i < count; ++i) {
        const double added = of_lanes[i][own];
        total += added;
        if (isfinite(added) || is_reported) continue;
        report_bad(a, pieces, of_round + i, own_column, bad);
        is_reported = true;
      }
    }
  }
  if (adds) sums[own_column] = total;
}

template <typename T>
bool has_pairs(const BasicCudaView<const T>& x) {
  return reinterpret_cast<uintptr_t>(x.data) % (2 * sizeof(T)) == 0 && x.stride % 2 == 0 && x.columns % 2 == 0;
}

}  // namespace

void CudaColumnDots::reserve(const BatchShape& batch, int64_t columns) {
  partials_.reserve(batch.sequences * divide_up(batch.positions, kPiece) * columns, "sums");
  const int64_t before = done_.count();
  done_.reserve(divide_up(columns, kColumns), "sums");
  if (done_.count() > before) done_.fill_zero();
}

template <typename A, typename B>
void CudaColumnDots::add(BasicCudaView<const A> a, BasicCudaView<const B> b, const BatchShape& batch, double* sums,
                         const CudaBadTerm& bad, cudaStream_t stream) {
  if (a.count() == 0) return;
  assert(batch.first_position + batch.positions <= CudaBadTerm::kPositions);
  Pieces pieces{batch.positions, batch.first_position, a.columns, divide_up(batch.positions, kPiece), 0};
  pieces.count = batch.sequences * pieces.per_sequence;
  reserve(batch, a.columns);
  auto launch = [&](auto kernel, int64_t width) {
    const dim3 grid(static_cast<unsigned>(pieces.count), static_cast<unsigned>(divide_up(a.columns, kColumns * width)));
    launch_kernel(kernel, {grid, kColumns * kLanes, 0, 1, /*overlaps=*/true}, stream, a, b, pieces, bad,
                  partials_.data(), done_.data(), sums);
  };
  if (has_pairs(a) && has_pairs(b))
    launch(column_dots_kernel<A, B, 2>, 2);
  else
    launch(column_dots_kernel<A, B, 1>, 1);
}

#define THIMBLE_INSTANTIATE(A, B)                                                                               \
  template void CudaColumnDots::add(BasicCudaView<const A>, BasicCudaView<const B>, const BatchShape&, double*, \
                                    const CudaBadTerm&, cudaStream_t);
THIMBLE_INSTANTIATE(float, float)
THIMBLE_INSTANTIATE(__nv_bfloat16, __nv_bfloat16)
THIMBLE_INSTANTIATE(__nv_bfloat16, float)
#undef THIMBLE_INSTANTIATE

}  // namespace thimble
