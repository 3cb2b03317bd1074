// matrix_loss.cu: predicted losses on a device: rows of errors (R, K) times a triangle of H, as products of float64
// tiles, some rows at a time. P = K rounded up to a multiple of kTile; paddings hold zeros.
#include "gptq/slope/matrix_loss.h"

#include <algorithm>
#include <optional>

#include "gptq/factor/f64_product.cuh"
#include "gptq/factor/hessian_factor.cuh"
#include "runtime/cuda/cuda_weight_loader.cuh"
#include "runtime/cuda/kernels/cuda_devices.h"

namespace thimble {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostRows = 8192;  // at a time

// The lower triangle (P, P) of H, twice what H has off its diagonal: e L e^T = e H e^T takes half the products. One
// thread per element, as in the next; a row per blockIdx.y.
__global__ void doubled_triangle_kernel(const double* packed, int64_t columns, int64_t padded, double* triangle) {
  const int64_t i = blockIdx.y, j = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (j >= padded) return;
  const bool exists = i < columns && j <= i;
  triangle[i * padded + j] = exists ? packed[i * (i + 1) / 2 + j] * (i == j ? 1 : 2) : 0;
}

__global__ void errors_kernel(const float* before, const float* after, int64_t rows, int64_t columns, int64_t padded,
                              double* errors) {
  const int64_t r = blockIdx.y, k = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (k >= padded) return;
  const int64_t at = r * columns + k;
  errors[r * padded + k] = r < rows && k < columns ? static_cast<double>(after[at]) - before[at] : 0;
}

// Sums over k of errors * products, or of errors^2 * diagonal where there are no products. One CTA per row.
__global__ void __launch_bounds__(kThreads)
    row_sums_kernel(const double* errors, const double* products, const double* diagonal, int64_t columns,
                    int64_t padded, double* sums) {
  __shared__ double of_warps[kThreads / 32];
  const int64_t first = blockIdx.x * padded;
  double sum = 0;
  for (int64_t k = threadIdx.x; k < columns; k += kThreads) {
    const double error = errors[first + k];
    sum += error * (products ? products[first + k] : error * diagonal[k]);
  }
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_down_sync(~0U, sum, lane);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kThreads / 32; ++warp) sum += of_warps[warp];
  sums[blockIdx.x] = sum;
}

struct LossMemory {
  double *packed, *triangle, *diagonal;  // of H; (K) of scratch, or H itself where that is diagonal
  int32_t* failed;
  double *errors, *products, *sums;  // of `rows` rows
  float *before, *after;
};

LossMemory lay_out(int64_t columns, int64_t padded, int64_t rows, bool has_hessian, Arena& arena) {
  LossMemory memory{};
  if (has_hessian) {
    memory.packed = arena.take<double>(columns * (columns + 1) / 2);
    memory.triangle = arena.take<double>(padded * padded);
    memory.products = arena.take<double>(rows * padded);
  }
  memory.diagonal = arena.take<double>(columns);
  memory.failed = arena.take<int32_t>(1);
  memory.errors = arena.take<double>(rows * padded);
  memory.sums = arena.take<double>(rows);
  memory.before = arena.take<float>(rows * columns);
  memory.after = arena.take<float>(rows * columns);
  return memory;
}

class CudaLossMeter final : public LossMeter {
 public:
  // On the current device.
  explicit CudaLossMeter(const CudaPlace& place) : place_(place) {}

  std::optional<double> measure(const MatrixLoss& loss, const StoredMatrixView& weights,
                                const StoredMatrixView& quantized) override {
    DeviceScope scope(place_.ordinal);
    const int64_t columns = weights.cols, padded = round_up(columns, kTile);
    const std::optional<int64_t> most = reserve(columns, padded, weights.rows, loss.hessian != nullptr);
    if (!most) return std::nullopt;
    Arena arena(bytes_.data());
    const LossMemory memory = lay_out(columns, padded, *most, loss.hessian != nullptr, arena);
    if (loss.hessian) {
      upload_hessian(*loss.hessian, memory.triangle, memory.diagonal, memory.packed, memory.failed, stream_);
      launch_kernel(doubled_triangle_kernel, {element_grid(padded, padded, kThreads), kThreads}, stream_, memory.packed,
                    columns, padded, memory.triangle);
    } else {
      upload(memory.diagonal, std::span(loss.diagonal), stream_);
    }
    std::vector<double> row_sums(static_cast<size_t>(weights.rows));
    for (int64_t first = 0; first < weights.rows; first += *most) {
      const int64_t rows = std::min(*most, weights.rows - first), tiled = round_up(rows, kTile);
      for (const auto& [matrix, to] : {std::pair(&weights, memory.before), std::pair(&quantized, memory.after)})
        loader_.place(matrix->block_rows(first, rows), {}, {to, columns, 0, {}, {}, 0, rows});
      loader_.finish();
      launch_kernel(errors_kernel, {element_grid(tiled, padded, kThreads), kThreads}, stream_, memory.before,
                    memory.after, rows, columns, padded, memory.errors);
      if (loss.hessian)
        multiply(memory.errors, memory.triangle, tiled, padded, MatrixPart::kLower, memory.products, stream_);
      launch_kernel(row_sums_kernel, {static_cast<unsigned>(rows), kThreads}, stream_, memory.errors, memory.products,
                    memory.diagonal, columns, padded, memory.sums);
      download(std::span(row_sums).subspan(static_cast<size_t>(first), static_cast<size_t>(rows)),
               static_cast<const double*>(memory.sums), stream_);
      stream_.wait();
    }
    return total_loss(row_sums, loss);
  }

 private:
  // Rows at a time that there is memory for.
  std::optional<int64_t> reserve(int64_t columns, int64_t padded, int64_t rows, bool has_hessian) {
    const auto bytes_of = [&](int64_t most) {
      Arena counted(nullptr);
      lay_out(columns, padded, most, has_hessian, counted);
      return counted.bytes();
    };
    const uint64_t usable = usable_memory(place_) + bytes_.bytes();
    int64_t most = std::min(round_up(rows, kTile), kMostRows);
    while (most > kTile && bytes_of(most) > usable) most = round_up(most / 2, kTile);
    if (bytes_of(most) > usable) return std::nullopt;
    bytes_.reserve(static_cast<int64_t>(bytes_of(most)));
    return most;
  }

  CudaPlace place_;
  CudaWeightLoader<float> loader_;
  DeviceArray<std::byte> bytes_;
  CudaStream stream_;
};

}  // namespace

std::unique_ptr<LossMeter> make_cuda_loss_meter(const CudaPlace& place) {
  DeviceScope scope(place.ordinal);
  return std::make_unique<CudaLossMeter>(place);
}

}  // namespace thimble
