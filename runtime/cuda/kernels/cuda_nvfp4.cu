// cuda_nvfp4.cu: see cuda_nvfp4.h and cuda_nvfp4.cuh.
#include "runtime/cuda/kernels/cuda_nvfp4.cuh"

#include <mma.h>

#include "runtime/codes/nvfp4_scale_layout.h"
#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/cuda/kernels/cuda_nvfp4.h"

namespace thimble {
namespace {

using bf16 = __nv_bfloat16;
namespace wmma = nvcuda::wmma;

// A CTA of 4 warps computes 64 x 64 elements of C, each warp a quarter of 32 x 32 in 2 x 2 tiles of the tensor cores.
// Per turn, 32 columns of both operands lie in shared memory as bf16; rows are padded by 8 to spread them over banks.
constexpr int kTile = 64, kTurn = 32, kPadded = kTurn + 8, kThreads = 128;
constexpr int kOutPadded = kTile + 4;

// Elements (row, k) of an operand in NVFP4, less its tensor scale: at most 6 significant bits, exact in bf16.
struct Nvfp4Loader {
  DeviceNvfp4 matrix;
  int64_t rows, columns;

  // Fills tile rows r of (kTile, kTurn) from column `begin`; zeros outside. A thread takes half a block of one row:
  // 8 codes, one scale.
  __device__ void load(bf16 (*tile)[kPadded], int64_t first_row, int64_t begin) const {
    const int64_t row_bytes = nvfp4_row_bytes(columns), blocks = nvfp4_blocks(columns);
    for (int part = static_cast<int>(threadIdx.x); part < kTile * kTurn / 8; part += kThreads) {
      const int r = part / (kTurn / 8), k = part % (kTurn / 8) * 8;
      const int64_t row = first_row + r, column = begin + k;
      const bool has_scale = row < rows && column < columns;
      const float scale =
          has_scale ? float_from_ue4m3(matrix.scales[scale_layout_index(row, column / kNvfp4Block, blocks)]) : 0.0f;
      for (int i = 0; i < 8; i += 2) {
        // The nibble behind an odd end is 0.
        const uint8_t byte = row < rows && column + i < columns ? matrix.codes[row * row_bytes + (column + i) / 2] : 0;
        tile[r][k + i] = __float2bfloat16(float_from_e2m1(byte & 0xf) * scale);
        tile[r][k + i + 1] = __float2bfloat16(float_from_e2m1(byte >> 4) * scale);
      }
    }
  }
};

struct Bf16Loader {
  const bf16* data;
  int64_t rows, columns;

  __device__ void load(bf16 (*tile)[kPadded], int64_t first_row, int64_t begin) const {
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kTurn; i += kThreads) {
      const int r = i / kTurn, k = i % kTurn;
      const bool is_inside = first_row + r < rows && begin + k < columns;
      tile[r][k] = is_inside ? data[(first_row + r) * columns + begin + k] : __float2bfloat16(0.0f);
    }
  }
};

// blockIdx.x: columns of C, blockIdx.y: rows. K is walked in order, so that results repeat bit for bit.
template <typename LoaderA>
__global__ void __launch_bounds__(kThreads) nvfp4_product(LoaderA a, Nvfp4Loader b, float* c, float alpha) {
  __shared__ alignas(32) bf16 a_tile[kTile][kPadded], b_tile[kTile][kPadded];
  __shared__ alignas(32) float out[kTile][kOutPadded];
  const int64_t first_row = int64_t{blockIdx.y} * kTile, first_column = int64_t{blockIdx.x} * kTile;
  const int warp = static_cast<int>(threadIdx.x) / 32, warp_row = warp / 2 * 32, warp_column = warp % 2 * 32;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[2][2];
  for (auto& row : sums)
    for (auto& tile : row) wmma::fill_fragment(tile, 0.0f);

  for (int64_t begin = 0; begin < b.columns; begin += kTurn) {
    a.load(a_tile, first_row, begin);
    b.load(b_tile, first_column, begin);
    __syncthreads();
    for (int k = 0; k < kTurn; k += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::row_major> x[2];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::col_major> w[2];
      for (int i = 0; i < 2; ++i) {
        wmma::load_matrix_sync(x[i], &a_tile[warp_row + 16 * i][k], kPadded);
        wmma::load_matrix_sync(w[i], &b_tile[warp_column + 16 * i][k], kPadded);
      }
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) wmma::mma_sync(sums[i][j], x[i], w[j], sums[i][j]);
    }
    __syncthreads();
  }

  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 2; ++j)
      wmma::store_matrix_sync(&out[warp_row + 16 * i][warp_column + 16 * j], sums[i][j], kOutPadded,
                              wmma::mem_row_major);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kTile; i += kThreads) {
    const int64_t row = first_row + i / kTile, column = first_column + i % kTile;
    if (row < a.rows && column < b.rows) c[row * b.rows + column] = alpha * out[i / kTile][i % kTile];
  }
}

template <typename LoaderA>
void launch(const LoaderA& a, const Nvfp4Loader& b, float* c, float alpha, cudaStream_t stream) {
  if (a.rows == 0 || b.rows == 0) return;
  const dim3 grid(static_cast<unsigned>(divide_up(b.rows, kTile)), static_cast<unsigned>(divide_up(a.rows, kTile)));
  launch_kernel(nvfp4_product<LoaderA>, {grid, kThreads}, stream, a, b, c, alpha);
}

std::span<const uint8_t> rows_of(const std::vector<uint8_t>& bytes, int64_t first, int64_t rows, int64_t row_bytes) {
  return std::span(bytes).subspan(static_cast<size_t>(first * row_bytes), static_cast<size_t>(rows * row_bytes));
}

Matrix download(const DeviceArray<float>& c, int64_t m, int64_t n) {
  Matrix result(m, n);
  check_cuda(cudaMemcpy(result.data(), c.data(), c.bytes(), cudaMemcpyDeviceToHost));
  return result;
}

// Where two tensor scales multiply to what float32 cannot hold, the host could still scale; the device cannot.
float alpha_of(float a, float b) {
  const double alpha = double{a} * double{b};
  if (alpha != 0 && (alpha < 0x1p-126 || alpha > 0x1p127))
    throw DeviceError("the tensor scales of two NVFP4 operands multiply to what float32 cannot hold");
  return static_cast<float>(alpha);
}

}  // namespace

DeviceNvfp4Matrix::DeviceNvfp4Matrix(const Nvfp4Codes& coded, int64_t first_row, int64_t rows, int64_t columns)
    : codes_(rows_of(coded.codes, first_row, rows, nvfp4_row_bytes(columns))),
      scales_(std::span<const uint8_t>(arrange_scales(
          rows_of(coded.block_scales, first_row, rows, nvfp4_blocks(columns)), rows, nvfp4_blocks(columns)))) {}

void multiply_nvfp4(const bf16* a, const DeviceNvfp4& b, float* c, int64_t m, int64_t n, int64_t k, float alpha,
                    cudaStream_t stream) {
  launch(Bf16Loader{a, m, k}, {b, n, k}, c, alpha, stream);
}

void multiply_nvfp4(const DeviceNvfp4& a, const DeviceNvfp4& b, float* c, int64_t m, int64_t n, int64_t k, float alpha,
                    cudaStream_t stream) {
  launch(Nvfp4Loader{a, m, k}, {b, n, k}, c, alpha, stream);
}

Matrix multiply_nvfp4_on_cuda(int ordinal, const Nvfp4Codes& a, int64_t m, const Nvfp4Codes& b, int64_t n, int64_t k) {
  DeviceScope scope(ordinal);
  CudaStream stream;
  const DeviceNvfp4Matrix x(a, 0, m, k), w(b, 0, n, k);
  DeviceArray<float> c(m * n);
  multiply_nvfp4(x.view(), w.view(), c.data(), m, n, k, alpha_of(a.tensor_scale, b.tensor_scale), stream);
  stream.wait();
  return download(c, m, n);
}

Matrix multiply_bf16_nvfp4_on_cuda(int ordinal, std::span<const uint16_t> a, int64_t m, const Nvfp4Codes& b, int64_t n,
                                   int64_t k) {
  DeviceScope scope(ordinal);
  CudaStream stream;
  const DeviceArray<uint16_t> x(a);
  const DeviceNvfp4Matrix w(b, 0, n, k);
  DeviceArray<float> c(m * n);
  multiply_nvfp4(reinterpret_cast<const bf16*>(x.data()), w.view(), c.data(), m, n, k, b.tensor_scale, stream);
  stream.wait();
  return download(c, m, n);
}

}  // namespace thimble
