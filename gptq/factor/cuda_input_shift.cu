// cuda_input_shift.cu: w' = w + strength * w D U^T U, columns of D and U in the order of U, as three products of tiles.
// K = input columns, R = output rows, P and Q = K and R rounded up to multiples of kTile; paddings hold zeros.
#include <algorithm>

#include "gptq/factor/cuda_input_shift.h"
#include "gptq/factor/hessian_factor.cuh"

namespace thimble {
namespace {

constexpr int kThreads = 256;

// Which part of a square matrix is not zero.
enum class Part { kWhole, kLower, kUpper };

struct ShiftMemory {
  double* drift;         // (K, K)
  double* ordered;       // (P, P): row k, column i is D(k, order[i])
  double *left, *right;  // (Q, P) products, by turns
  float* weights;        // (R, K), then w'
};

ShiftMemory lay_out(int64_t columns, int64_t padded, int64_t most_rows, Arena& arena) {
  const int64_t rows = round_up(most_rows, kTile);
  return {arena.take<double>(columns * columns), arena.take<double>(padded * padded), arena.take<double>(rows * padded),
          arena.take<double>(rows * padded), arena.take<float>(most_rows * columns)};
}

// One thread per element of (P, P), as in the next two; a row per blockIdx.y.
__global__ void order_kernel(const double* drift, const int32_t* order, int64_t columns, int64_t padded,
                             double* ordered) {
  const int64_t k = blockIdx.y, i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (i >= padded) return;
  ordered[k * padded + i] = k < columns && i < columns ? drift[k * columns + order[i]] : 0;
}

__global__ void transpose_kernel(const double* from, int64_t padded, double* to) {
  const int64_t row = blockIdx.y, column = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (column < padded) to[row * padded + column] = from[column * padded + row];
}

// (Q, P)
__global__ void widen_kernel(const float* weights, int64_t rows, int64_t columns, int64_t padded, double* out) {
  const int64_t row = blockIdx.y, column = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (column >= padded) return;
  out[row * padded + column] = row < rows && column < columns ? weights[row * columns + column] : 0;
}

// weights (R, K) += strength * shift, whose columns are in order.
__global__ void add_shift_kernel(const double* shift, const int32_t* order, int64_t columns, int64_t padded,
                                 double strength, float* weights) {
  const int64_t row = blockIdx.y, i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (i >= columns) return;
  float& weight = weights[row * columns + order[i]];
  weight = static_cast<float>(weight + strength * shift[row * padded + i]);
}

// out (Q, P) = a (Q, P) b (P, P), one CTA per tile.
__global__ void __launch_bounds__(kTileThreads, 2)
    multiply_kernel(const double* a, const double* b, int64_t padded, Part part, double* out) {
  extern __shared__ double shared[];
  const int64_t row = blockIdx.y * static_cast<int64_t>(kTile), column = blockIdx.x * static_cast<int64_t>(kTile);
  const int64_t first = part == Part::kLower ? column : 0, last = part == Part::kUpper ? column + kTile : padded;
  TileAccumulator product;
  product.add_long_product(a + row * padded + first, padded, b + first * padded + column, padded,
                           static_cast<int>(last - first), shared);
  product.store(out + row * padded + column, padded);
}

dim3 elements(int64_t rows, int64_t columns) {
  return {static_cast<unsigned>(divide_up(columns, kThreads)), static_cast<unsigned>(rows)};
}

// On the current device.
class Shifter {
 public:
  Shifter(const InputPair& pair, double damping, const std::string& layer, int64_t most_rows)
      : columns_(pair.hessian.size()),
        padded_(round_up(columns_, kTile)),
        unfactored_(unfactored_hessian(pair.hessian, damping, layer)) {
    const std::vector<FactorItem> items = {{&pair.hessian, &unfactored_, &layer}};
    Arena counted(nullptr);
    FactorBatch(items, padded_, counted);
    lay_out(columns_, padded_, most_rows, counted);
    bytes_ = DeviceArray<std::byte>(static_cast<int64_t>(counted.bytes()));
    Arena arena(bytes_.data());
    FactorBatch factor(items, padded_, arena);
    memory_ = lay_out(columns_, padded_, most_rows, arena);
    factor.factor(stream_, [&] { upload(memory_.drift, pair.drift.values(), stream_); });
    factored_ = factor[0];
    launch_kernel(transpose_kernel, {elements(padded_, padded_), kThreads}, stream_, factored_.upper, padded_,
                  factored_.inverse);
    launch_kernel(order_kernel, {elements(padded_, padded_), kThreads}, stream_, memory_.drift, factored_.order,
                  columns_, padded_, memory_.ordered);
  }

  Matrix shifted(ConstMatrixView weights, double strength) {
    Matrix result(weights.rows, columns_);
    if (weights.rows == 0) return result;
    const int64_t rows = round_up(weights.rows, kTile);
    upload_rows(memory_.weights, weights, stream_);
    launch_kernel(widen_kernel, {elements(rows, padded_), kThreads}, stream_, memory_.weights, weights.rows, columns_,
                  padded_, memory_.left);
    multiply(memory_.left, memory_.ordered, rows, Part::kWhole, memory_.right);
    multiply(memory_.right, factored_.inverse, rows, Part::kLower, memory_.left);
    multiply(memory_.left, factored_.upper, rows, Part::kUpper, memory_.right);
    launch_kernel(add_shift_kernel, {elements(weights.rows, columns_), kThreads}, stream_, memory_.right,
                  factored_.order, columns_, padded_, strength, memory_.weights);
    download(result.values(), static_cast<const float*>(memory_.weights), stream_);
    stream_.wait();
    return result;
  }

 private:
  void multiply(const double* a, const double* b, int64_t rows, Part part, double* out) {
    const dim3 tiles(static_cast<unsigned>(padded_ / kTile), static_cast<unsigned>(rows / kTile));
    launch_kernel(multiply_kernel, {tiles, kTileThreads, static_cast<int>(kTileSharedBytes)}, stream_, a, b, padded_,
                  part, out);
  }

  int64_t columns_, padded_;
  HessianFactor unfactored_;
  DeviceArray<std::byte> bytes_;
  CudaStream stream_;
  ShiftMemory memory_{};
  DeviceFactor factored_{};  // once U is there, `inverse` holds U^T
};

}  // namespace

std::vector<Matrix> shift_weights_cuda(std::span<const ConstMatrixView> weights, const InputPair& pair, double damping,
                                       double strength, const std::string& layer, const CudaPlace& place) {
  int64_t most_rows = 0;
  for (const ConstMatrixView& matrix : weights) most_rows = std::max(most_rows, matrix.rows);
  DeviceScope device(place.ordinal);
  Shifter shifter(pair, damping, layer, most_rows);
  std::vector<Matrix> shifted;
  for (const ConstMatrixView& matrix : weights) shifted.push_back(shifter.shifted(matrix, strength));
  return shifted;
}

}  // namespace thimble
