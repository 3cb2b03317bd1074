// cuda_bf16_product_sm90.cu: products of factors in bf16 by bulk tensor copies and asynchronous tensor cores. A CTA
// computes a tile of 128 x 128 of C, two at a time on a multiprocessor: what one writes hides behind what the other
// multiplies. Nine warps:
//
//   8 multipliers   two warpgroups of 64 rows x 128 columns, sums in registers, from there to C
//   1 loader        one thread: tiles of 64 of K, kStages deep     -> full / empty barriers
//
// A factor whose stored rows run along K is loaded as 128 rows of 64, else as two boxes of 64 rows of K by 64 columns,
// which wgmma reads transposed. Tensor maps have a batch's matrices as a third dimension: what lies behind one's last
// row arrives as zeros, not as the next one's first.
#include "runtime/cuda/kernels/products/cuda_bf16_product_sm90.cuh"

#include "runtime/cuda/kernels/cuda_overlap.cuh"
#include "runtime/cuda/kernels/cuda_sm90.cuh"
#include "runtime/cuda/kernels/products/cuda_product_tiles.cuh"

namespace thimble {
namespace {

constexpr int kRows = 128, kColumns = 128, kDepth = 64, kStages = 3, kThreads = 288;
constexpr int kABytes = kRows * kDepth * 2, kBBytes = kColumns * kDepth * 2;
constexpr int kSharedBytes = 1024 + kStages * (kABytes + kBBytes) + 16 * kStages;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

using namespace sm90;

constexpr uint32_t kHalfBytes = kABytes / 2;  // of a factor's tile

// kAlongDepth: of a tile of 128 x 64, else of 64 x 128 in two boxes.
template <bool kAlongDepth>
__device__ void load_factor(uint32_t to, const CUtensorMap& map, int side, int depth, int matrix, uint32_t barrier) {
  if constexpr (kAlongDepth) {
    load_box(to, map, depth, side, matrix, barrier);
  } else {
    load_box(to, map, side, depth, matrix, barrier);
    load_box(to + kHalfBytes, map, side + 64, depth, matrix, barrier);
  }
}

#endif

template <bool kAlongA, bool kAlongB, typename C>
__global__ void __launch_bounds__(kThreads, 2)
    product_sm90_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                        const __grid_constant__ BasicProductOutput<C> c, const ProductShape shape) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char shared_memory[];
  const uint32_t first_a = (static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory)) + 1023) / 1024 * 1024;
  const uint32_t first_b = first_a + kStages * kABytes, full = first_b + kStages * kBBytes, empty = full + 8 * kStages;
  int index = static_cast<int>(blockIdx.x);
  const int first_column = index % shape.column_tiles * kColumns;
  index /= shape.column_tiles;
  const int first_row = index % shape.row_tiles * kRows, matrix = index / shape.row_tiles;
  const int steps = divide_up(shape.depth, kDepth);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      initialise_barrier(full + 8 * stage, 1);
      initialise_barrier(empty + 8 * stage, 2);
    }
    fence_stores();  // barriers are seen by the copies
  }
  __syncthreads();
  wait_for_previous();
  Ring<kStages> ring;
  if (threadIdx.x >= 256) {
    if (threadIdx.x != 256) return;
    for (int step = 0; step < steps; ++step, ring.advance()) {
      const uint32_t barrier = full + 8 * ring.index;
      wait(empty + 8 * ring.index, ring.parity ^ 1);
      expect_bytes(barrier, kABytes + kBBytes);
      load_factor<kAlongA>(first_a + ring.index * kABytes, a, first_row, step * kDepth, matrix, barrier);
      load_factor<kAlongB>(first_b + ring.index * kBBytes, b, first_column, step * kDepth, matrix, barrier);
    }
    return;
  }
  // Bytes, in units of 16, to the next 16 of K: further within swizzled rows, or 16 rows on.
  constexpr int kStepA = kAlongA ? 2 : 128, kStepB = kAlongB ? 2 : 128;
  const int group = static_cast<int>(threadIdx.x) / 128;
  FragmentValues<kColumns> sums;
  int previous = 0;
  for (int step = 0; step < steps; ++step, ring.advance()) {
    wait(full + 8 * ring.index, ring.parity);
    begin_products();
    const uint64_t left = operand(first_a + ring.index * kABytes + group * kHalfBytes);
    const uint64_t right = operand(first_b + ring.index * kBBytes, kAlongB ? 16 : kHalfBytes);
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k)
      multiply_async<__nv_bfloat16, !kAlongA, !kAlongB>(sums, left + kStepA * k, right + kStepB * k, step > 0 || k > 0);
    commit_products();
    wait_for_products<1>();  // the step before this one is done with its stage
    if (step > 0 && threadIdx.x % 128 == 0) arrive(empty + 8 * previous);
    previous = ring.index;
  }
  wait_for_products<0>();
  hold(sums);
  const int lane = threadIdx.x % 32, row = first_row + group * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
  C* to = c.data + matrix * c.steps.outer;
  if constexpr (std::is_same_v<C, __nv_bfloat16>)
    if (shape.whole_chunks) {
#pragma unroll
      for (int j = 0; j < kColumns / 8; j += 4)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 quad[4] = {{sums[j][2 * half], sums[j][2 * half + 1]},
                                  {sums[j + 1][2 * half], sums[j + 1][2 * half + 1]},
                                  {sums[j + 2][2 * half], sums[j + 2][2 * half + 1]},
                                  {sums[j + 3][2 * half], sums[j + 3][2 * half + 1]}};
          write_chunk(quad, c, to, row + 8 * half, first_column + 8 * j, shape.add);
        }
      return;
    }
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      write_sums<2>(sums[j] + 2 * half, c, to, row + 8 * half, first_column + 8 * j + lane % 4 * 2, shape);
#endif
}

// A factor's tensor map, in the boxes in which it is loaded.
CUtensorMap factor_map(const Bf16Factor& factor, bool runs_along_depth, int64_t batch) {
  const int64_t step = batch == 1 ? factor.rows * factor.stride : factor.steps.outer;
  return make_tensor_map(factor.data, factor.rows, factor.columns, factor.stride, runs_along_depth ? kRows : kDepth,
                         batch, step);
}

template <bool kAlongA, bool kAlongB, typename C>
void launch_product_sm90(const Bf16Factor& a, const Bf16Factor& b, const BasicProductOutput<C>& c,
                         const ProductShape& shape, int64_t batch, cudaStream_t stream) {
  const int64_t tiles = batch * shape.row_tiles * shape.column_tiles;
  if (tiles > INT32_MAX) throw DeviceError("CUDA: a product of " + std::to_string(tiles) + " tiles, at most 2^31 - 1");
  launch_kernel(product_sm90_kernel<kAlongA, kAlongB, C>,
                {dim3(static_cast<unsigned>(tiles)), kThreads, kSharedBytes, 1, /*overlaps=*/true}, stream,
                factor_map(a, kAlongA, batch), factor_map(b, kAlongB, batch), c, shape);
}

}  // namespace

bool is_sm90_factor(const Bf16Factor& factor, int64_t batch) {
  return reinterpret_cast<uintptr_t>(factor.data) % 16 == 0 && factor.stride % 8 == 0 &&
         (batch == 1 || factor.steps.outer % 8 == 0);
}

template <typename C>
void launch_bf16_product_sm90(ProductForm form, const Bf16Factor& a, const Bf16Factor& b,
                              const BasicProductOutput<C>& c, bool add, int64_t batch, cudaStream_t stream) {
  if (c.rows == 0 || c.columns == 0 || batch == 0) return;
  const bool has_pairs = reinterpret_cast<uintptr_t>(c.data) % (2 * sizeof(C)) == 0 && c.stride % 2 == 0 &&
                         c.columns % 2 == 0 && c.steps.outer % 2 == 0;
  ProductShape shape{.row_tiles = divide_up(c.rows, kRows),
                     .column_tiles = divide_up(c.columns, kColumns),
                     .add = add,
                     .whole_vectors = has_pairs,
                     .whole_chunks = reinterpret_cast<uintptr_t>(c.data) % 16 == 0 && c.stride % 8 == 0 &&
                                     c.columns % 8 == 0 && c.steps.outer % 8 == 0};
  switch (form) {
    case ProductForm::kNT:
      shape.depth = static_cast<int>(a.columns);
      return launch_product_sm90<true, true>(a, b, c, shape, batch, stream);
    case ProductForm::kNN:
      shape.depth = static_cast<int>(a.columns);
      return launch_product_sm90<true, false>(a, b, c, shape, batch, stream);
    case ProductForm::kTN:
      shape.depth = static_cast<int>(a.rows);
      return launch_product_sm90<false, false>(a, b, c, shape, batch, stream);
  }
}

template void launch_bf16_product_sm90(ProductForm, const Bf16Factor&, const Bf16Factor&,
                                       const BasicProductOutput<float>&, bool, int64_t, cudaStream_t);
template void launch_bf16_product_sm90(ProductForm, const Bf16Factor&, const Bf16Factor&,
                                       const BasicProductOutput<__nv_bfloat16>&, bool, int64_t, cudaStream_t);

}  // namespace thimble
