// cuda_column_dots.cu: sums over pieces of sequences, all at once; then one thread per column adds them up in order, of
// many sums at once: each takes longer to begin and to wait for its first terms than to add them.
#include "runtime/cuda/kernels/cuda_column_dots.cuh"

#include <algorithm>
#include <cassert>
#include <span>

#include "runtime/cuda/kernels/cuda_numeric.cuh"
#include "runtime/cuda/kernels/cuda_overlap.cuh"
#include "runtime/tensor/host_device.h"

namespace thimble {
namespace {

constexpr int64_t kPiece = 256;
constexpr int kColumns = 32, kLanes = 8;             // of a CTA
constexpr int kAddThreads = 32;                      // few columns, many multiprocessors
constexpr int64_t kWaitingParts = int64_t{1} << 22;  // 32 MiB, or those of one sum if they are more

struct Pieces {
  int64_t positions, first_position, columns, per_sequence, count;
};

// CTA (x, y): 32 * kWidth columns of piece x. Thread (c, l) adds rows l, l + 8, ... of kWidth neighbouring columns, 1
// or 2; then the 8 are added in order.
template <typename A, typename B, int kWidth>
__global__ void sum_pieces_kernel(BasicCudaView<const A> a, BasicCudaView<const B> b, Pieces pieces, double* partials) {
  wait_for_previous();
  __shared__ double sums[kLanes][kColumns][kWidth];
  const auto place = static_cast<int>(threadIdx.x) % kColumns, lane = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t piece = blockIdx.x, column = (static_cast<int64_t>(blockIdx.y) * kColumns + place) * kWidth;
  const int64_t sequence = piece / pieces.per_sequence, first = piece % pieces.per_sequence * kPiece;
  const int64_t end = min(first + kPiece, pieces.positions);
  double(&own)[kWidth] = sums[lane][place];
  double sum[kWidth] = {};
  if (column < pieces.columns)
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
  for (int i = 0; i < kWidth; ++i) own[i] = sum[i];
  __syncthreads();
  if (lane != 0 || column >= pieces.columns) return;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    for (int other = 1; other < kLanes; ++other) sum[i] += sums[other][place][i];
    partials[piece * pieces.columns + column + i] = sum[i];
  }
}

template <typename T>
bool has_pairs(const BasicCudaView<const T>& x) {
  return reinterpret_cast<uintptr_t>(x.data) % (2 * sizeof(T)) == 0 && x.stride % 2 == 0 && x.columns % 2 == 0;
}

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

// Adds the parts of one column to its sum, calling seen(piece, part) of each.
template <typename Seen>
__device__ void add_parts(const CudaPartialSums& of, int64_t column, const Seen& seen) {
  constexpr int kAtOnce = 32;  // on their way before the first is added
  double sum = of.sums[column];
  for (int64_t first = 0; first < of.count; first += kAtOnce) {
    double parts[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) parts[i] = first + i < of.count ? of.parts[(first + i) * of.columns + column] : 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      sum += parts[i];
      seen(first + i, parts[i]);
    }
  }
  of.sums[column] = sum;
}

__global__ void __launch_bounds__(kAddThreads) add_pieces_kernel(const __grid_constant__ CudaPartialSumsList all) {
  wait_for_previous();
  const CudaPartialSums& of = all.values[blockIdx.y];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kAddThreads + threadIdx.x;
  if (column < of.columns) add_parts(of, column, [](int64_t, double) {});
}

template <typename A>
__global__ void __launch_bounds__(kAddThreads)
    add_checked_kernel(CudaPartialSums of, BasicCudaView<const A> a, Pieces pieces, CudaBadTerm bad) {
  wait_for_previous();
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kAddThreads + threadIdx.x;
  if (column >= of.columns) return;
  bool is_reported = false;
  add_parts(of, column, [&](int64_t piece, double part) {
    if (isfinite(part) || is_reported) return;
    report_bad(a, pieces, piece, column, bad);
    is_reported = true;
  });
}

LaunchShape adding_shape(int64_t columns, size_t sums) {
  return {dim3(static_cast<unsigned>(divide_up(columns, kAddThreads)), static_cast<unsigned>(sums)), kAddThreads, 0, 1,
          /*overlaps=*/true};
}

}  // namespace

void CudaColumnDots::reserve(const BatchShape& batch, int64_t columns) {
  const int64_t one = batch.sequences * divide_up(batch.positions, kPiece) * columns;
  partials_.reserve(std::max(one, kWaitingParts), "sums");
}

void CudaColumnDots::finish(cudaStream_t stream) {
  if (waiting_count_ == 0) return;
  const auto waiting = std::span(waiting_.values).first(waiting_count_);
  const int64_t widest = std::ranges::max(waiting, {}, &CudaPartialSums::columns).columns;
  launch_kernel(add_pieces_kernel, adding_shape(widest, waiting_count_), stream, waiting_);
  waiting_count_ = 0;
  waiting_parts_ = 0;
}

template <typename A, typename B>
void CudaColumnDots::add(BasicCudaView<const A> a, BasicCudaView<const B> b, const BatchShape& batch, double* sums,
                         const CudaBadTerm& bad, cudaStream_t stream) {
  if (a.count() == 0) return;
  assert(batch.first_position + batch.positions <= CudaBadTerm::kPositions);
  Pieces pieces{batch.positions, batch.first_position, a.columns, divide_up(batch.positions, kPiece), 0};
  pieces.count = batch.sequences * pieces.per_sequence;
  const int64_t parts = pieces.count * a.columns;
  const auto waiting = std::span(waiting_.values).first(waiting_count_);
  const bool is_full = waiting_count_ == CudaPartialSumsList::kMost || waiting_parts_ + parts > partials_.count();
  if (is_full || std::ranges::any_of(waiting, [&](const CudaPartialSums& of) { return of.sums == sums; }))
    finish(stream);
  reserve(batch, a.columns);
  const CudaPartialSums of{partials_.data() + waiting_parts_, sums, a.columns, pieces.count};
  auto sum_pieces = [&](auto kernel, int64_t width) {
    const dim3 grid(static_cast<unsigned>(pieces.count), static_cast<unsigned>(divide_up(a.columns, kColumns * width)));
    launch_kernel(kernel, {grid, kColumns * kLanes, 0, 1, /*overlaps=*/true}, stream, a, b, pieces,
                  partials_.data() + waiting_parts_);
  };
  if (has_pairs(a) && has_pairs(b))
    sum_pieces(sum_pieces_kernel<A, B, 2>, 2);
  else
    sum_pieces(sum_pieces_kernel<A, B, 1>, 1);
  if (bad.first) return launch_kernel(add_checked_kernel<A>, adding_shape(a.columns, 1), stream, of, a, pieces, bad);
  waiting_.values[waiting_count_++] = of;
  waiting_parts_ += parts;
}

#define THIMBLE_INSTANTIATE(A, B)                                                                               \
  template void CudaColumnDots::add(BasicCudaView<const A>, BasicCudaView<const B>, const BatchShape&, double*, \
                                    const CudaBadTerm&, cudaStream_t);
THIMBLE_INSTANTIATE(float, float)
THIMBLE_INSTANTIATE(__nv_bfloat16, __nv_bfloat16)
THIMBLE_INSTANTIATE(__nv_bfloat16, float)
#undef THIMBLE_INSTANTIATE

}  // namespace thimble
