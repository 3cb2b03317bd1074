// cuda_sm90.cuh: Hopper's own units as functions: barriers in shared memory, bulk tensor copies, asynchronous tensor
// cores (wgmma, bf16 or fp16 in, fp32 accumulation). PTX ISA 8.0, sm_90a. Not here: any algorithm.
#pragma once

#include <cuda.h>

#include "runtime/cuda/kernels/cuda_cluster.cuh"
#include "runtime/cuda/kernels/cuda_gemm.cuh"

namespace thimble {

// Can this build's code for the current device use sm_90a's instructions?
bool has_sm90_kernels();

// A matrix (rows, columns) of 16-bit elements for copies of boxes of `box_rows` x 64 columns, swizzled by 128 bytes.
// What lies outside the matrix arrives as zeros.
CUtensorMap make_tensor_map(const void* data, int64_t rows, int64_t columns, int64_t stride, int box_rows);
// The same of `count` such matrices, `step` elements apart, as a third dimension: boxes are of one of them.
CUtensorMap make_tensor_map(const void* data, int64_t rows, int64_t columns, int64_t stride, int box_rows,
                            int64_t count, int64_t step);

// A position in a ring of stages, and the parity of its barriers.
template <int kSize>
struct Ring {
  int index = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++index == kSize) {
      index = 0;
      parity ^= 1;
    }
  }
  __device__ void skip(int count) {
    index += count;
    parity ^= static_cast<uint32_t>(index / kSize & 1);
    index %= kSize;
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
namespace sm90 {

// Words in shared memory, and bits of several in a row.
__device__ inline uint32_t load_word(uint32_t at) {
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(word) : "r"(at) : "memory");
  return word;
}
__device__ inline void store_word(uint32_t at, uint32_t word) {
  asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(at), "r"(word) : "memory");
}
__device__ inline void set_bit(uint32_t at, int bit) {
  asm volatile("red.shared.or.b32 [%0], %1;\n" ::"r"(at + bit / 32 * 4), "r"(1u << bit % 32) : "memory");
}
__device__ inline bool has_bit(uint32_t at, int bit) { return load_word(at + bit / 32 * 4) >> bit % 32 & 1; }

__device__ inline void initialise_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals));
}
__device__ inline void expect_bytes(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes));
}
__device__ inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
// One arrival for all lanes of the warp, after all that they have written; or that of so many warps.
__device__ inline void arrive_as_warp(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(barrier);
}
__device__ inline void arrive_as_warps(uint32_t barrier, int warps) {
  __syncwarp();
  if (threadIdx.x % 32 == 0)
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(warps) : "memory");
}
// At a barrier of another CTA of the cluster. Nothing that this thread wrote is released to that CTA: an arrival that
// releases to a cluster waits for all of the thread's writes to reach the device's memory.
__device__ inline void arrive_at(uint32_t barrier, uint32_t cta) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(barrier),
      "r"(cta)
      : "memory");
}
__device__ inline void wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}\n" ::
          "r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
}

// Copies a box of a tensor map to shared memory; its bytes count at `barrier`.
__device__ inline void load_box(uint32_t to, const CUtensorMap& map, int column, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];\n" ::"r"(
          to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}
// Of a map with a third dimension.
__device__ inline void load_box(uint32_t to, const CUtensorMap& map, int column, int row, int matrix,
                                uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];\n" ::
          "r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(matrix)
      : "memory");
}
// load_box() for the CTAs of the cluster whose bits are set in `ctas`, at the same place in each one's shared memory.
__device__ inline void load_box_for_all(uint32_t to, const CUtensorMap& map, int column, int row, uint32_t barrier,
                                        uint16_t ctas) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, "
      "%4}], [%2], %5;\n" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "h"(ctas)
      : "memory");
}

// Copies a box from shared memory; the memory must not change before wait_for_stores(). What threads wrote there is
// seen after their fence_stores() and a barrier.
__device__ inline void store_box(const CUtensorMap& map, int column, int row, uint32_t from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n" ::"l"(&map), "r"(column),
               "r"(row), "r"(from)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}
__device__ inline void fence_stores() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }
__device__ inline void wait_for_stores() { asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory"); }

// Two neighbouring fragments of 16 x 8 as T: lane l says where row l % 16 of the left (l < 16) or right one goes.
template <typename T>
__device__ void store_fragments(uint32_t to, const float (&left)[4], const float (&right)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(to),
               "r"(packed<T>(left[0], left[1])), "r"(packed<T>(left[2], left[3])), "r"(packed<T>(right[0], right[1])),
               "r"(packed<T>(right[2], right[3]))
               : "memory");
}

// A tile of rows of 128 bytes, swizzled by 128 bytes, as an operand of wgmma: eight rows are 1024 bytes apart from the
// next eight, whether rows run along K (a transposed operand) or along the other axis. A transposed operand of more
// than 64 columns takes several such tiles, `next_tile` bytes apart.
__device__ inline uint64_t operand(uint32_t address, uint32_t next_tile = 16) {
  return (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32) | (uint64_t{next_tile >> 4} << 16) |
         ((address & 0x3FFFF) >> 4);
}

// acc (64, N) += A (64, 16) B^T, B (N, 16); `accumulate` 0 overwrites. Accumulators and an A in registers are the
// fragments of cuda_gemm.cuh, 16 rows per warp. A transposed operand's rows run along K.
template <typename T, bool kTransposedA = false, bool kTransposedB = false>
__device__ void multiply_async(FragmentValues<128>& acc, uint64_t a, uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.%67.%67 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1, %68, %69;\n}\n"
      : "+f"(acc[0][0]), "+f"(acc[0][1]), "+f"(acc[0][2]), "+f"(acc[0][3]), "+f"(acc[1][0]), "+f"(acc[1][1]),
        "+f"(acc[1][2]), "+f"(acc[1][3]), "+f"(acc[2][0]), "+f"(acc[2][1]), "+f"(acc[2][2]), "+f"(acc[2][3]),
        "+f"(acc[3][0]), "+f"(acc[3][1]), "+f"(acc[3][2]), "+f"(acc[3][3]), "+f"(acc[4][0]), "+f"(acc[4][1]),
        "+f"(acc[4][2]), "+f"(acc[4][3]), "+f"(acc[5][0]), "+f"(acc[5][1]), "+f"(acc[5][2]), "+f"(acc[5][3]),
        "+f"(acc[6][0]), "+f"(acc[6][1]), "+f"(acc[6][2]), "+f"(acc[6][3]), "+f"(acc[7][0]), "+f"(acc[7][1]),
        "+f"(acc[7][2]), "+f"(acc[7][3]), "+f"(acc[8][0]), "+f"(acc[8][1]), "+f"(acc[8][2]), "+f"(acc[8][3]),
        "+f"(acc[9][0]), "+f"(acc[9][1]), "+f"(acc[9][2]), "+f"(acc[9][3]), "+f"(acc[10][0]), "+f"(acc[10][1]),
        "+f"(acc[10][2]), "+f"(acc[10][3]), "+f"(acc[11][0]), "+f"(acc[11][1]), "+f"(acc[11][2]), "+f"(acc[11][3]),
        "+f"(acc[12][0]), "+f"(acc[12][1]), "+f"(acc[12][2]), "+f"(acc[12][3]), "+f"(acc[13][0]), "+f"(acc[13][1]),
        "+f"(acc[13][2]), "+f"(acc[13][3]), "+f"(acc[14][0]), "+f"(acc[14][1]), "+f"(acc[14][2]), "+f"(acc[14][3]),
        "+f"(acc[15][0]), "+f"(acc[15][1]), "+f"(acc[15][2]), "+f"(acc[15][3])
      : "l"(a), "l"(b), "r"(accumulate), "C"(PtxType<T>::kName), "n"(kTransposedA ? 1 : 0), "n"(kTransposedB ? 1 : 0));
}
template <typename T>
__device__ void multiply_async(FragmentValues<64>& acc, uint64_t a, uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.%35.%35 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, 0, 0;\n}\n"
      : "+f"(acc[0][0]), "+f"(acc[0][1]), "+f"(acc[0][2]), "+f"(acc[0][3]), "+f"(acc[1][0]), "+f"(acc[1][1]),
        "+f"(acc[1][2]), "+f"(acc[1][3]), "+f"(acc[2][0]), "+f"(acc[2][1]), "+f"(acc[2][2]), "+f"(acc[2][3]),
        "+f"(acc[3][0]), "+f"(acc[3][1]), "+f"(acc[3][2]), "+f"(acc[3][3]), "+f"(acc[4][0]), "+f"(acc[4][1]),
        "+f"(acc[4][2]), "+f"(acc[4][3]), "+f"(acc[5][0]), "+f"(acc[5][1]), "+f"(acc[5][2]), "+f"(acc[5][3]),
        "+f"(acc[6][0]), "+f"(acc[6][1]), "+f"(acc[6][2]), "+f"(acc[6][3]), "+f"(acc[7][0]), "+f"(acc[7][1]),
        "+f"(acc[7][2]), "+f"(acc[7][3])
      : "l"(a), "l"(b), "r"(accumulate), "C"(PtxType<T>::kName));
}
// An A in registers must not be read again by later products: of two loop-invariant ones in registers, ptxas 13.0 gave
// one's place away. Such an A belongs in shared memory.
template <typename T, bool kTransposedB>
__device__ void multiply_async(FragmentValues<64>& acc, const uint32_t (&a)[4], uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.%38.%38 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, %39;\n}\n"
      : "+f"(acc[0][0]), "+f"(acc[0][1]), "+f"(acc[0][2]), "+f"(acc[0][3]), "+f"(acc[1][0]), "+f"(acc[1][1]),
        "+f"(acc[1][2]), "+f"(acc[1][3]), "+f"(acc[2][0]), "+f"(acc[2][1]), "+f"(acc[2][2]), "+f"(acc[2][3]),
        "+f"(acc[3][0]), "+f"(acc[3][1]), "+f"(acc[3][2]), "+f"(acc[3][3]), "+f"(acc[4][0]), "+f"(acc[4][1]),
        "+f"(acc[4][2]), "+f"(acc[4][3]), "+f"(acc[5][0]), "+f"(acc[5][1]), "+f"(acc[5][2]), "+f"(acc[5][3]),
        "+f"(acc[6][0]), "+f"(acc[6][1]), "+f"(acc[6][2]), "+f"(acc[6][3]), "+f"(acc[7][0]), "+f"(acc[7][1]),
        "+f"(acc[7][2]), "+f"(acc[7][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "C"(PtxType<T>::kName),
        "n"(kTransposedB ? 1 : 0));
}

// All threads of a warpgroup move their registers to or from the CTA's pool. Per thread, a multiple of 8.
template <int kRegisters>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

// Nothing that computes these values moves behind this point, nothing that uses them before it.
template <int kCount>
__device__ void hold(float (&values)[kCount][4]) {
#pragma unroll
  for (int j = 0; j < kCount; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(values[j][i])::"memory");
}

__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int kPending>
__device__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

}  // namespace sm90
#endif

}  // namespace thimble
