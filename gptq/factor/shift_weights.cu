// shift_weights.cu: shift_weights() on a device: w' = w + strength * w D U^T U, columns of D and U in the order of U,
// as three products of tiles. K = input columns, R = output rows, P and Q = K and R rounded up to multiples of kTile;
// paddings hold zeros.
#include <algorithm>
#include <memory>
#include <variant>

#include "gptq/factor/f64_product.cuh"
#include "gptq/factor/hessian_factor.cuh"
#include "gptq/factor/input_pairs.h"
#include "runtime/cuda/kernels/cuda_devices.h"

namespace thimble {
namespace {

constexpr int kThreads = 256;

struct ShiftMemory {
  double* drift;         // (K, K); null where it is on the device already
  double* ordered;       // (P, P): row k, column i is D(k, order[i])
  double *left, *right;  // (Q, P) products, by turns
  float* weights;        // (R, K), then w'
};

// `drift_is_here`: on the device.
ShiftMemory lay_out(int64_t columns, int64_t padded, int64_t most_rows, bool drift_is_here, Arena& arena) {
  const int64_t rows = round_up(most_rows, kTile);
  return {drift_is_here ? nullptr : arena.take<double>(columns * columns), arena.take<double>(padded * padded),
          arena.take<double>(rows * padded), arena.take<double>(rows * padded), arena.take<float>(most_rows * columns)};
}

// `from` (rows, K) as it is padded, columns in the given order, if any. One thread per element, as in the next two; a
// row per blockIdx.y.
template <typename T>
__global__ void pad_kernel(const T* from, const int32_t* order, int64_t rows, int64_t columns, int64_t padded,
                           double* out) {
  const int64_t row = blockIdx.y, i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (i >= padded) return;
  const bool exists = row < rows && i < columns;
  out[row * padded + i] = exists ? from[row * columns + (order ? order[i] : i)] : T(0);
}

__global__ void transpose_kernel(const double* from, int64_t padded, double* to) {
  const int64_t row = blockIdx.y, column = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (column < padded) to[row * padded + column] = from[column * padded + row];
}

// weights (R, K) += strength * shift, whose columns are in order.
__global__ void add_shift_kernel(const double* shift, const int32_t* order, int64_t columns, int64_t padded,
                                 double strength, float* weights) {
  const int64_t row = blockIdx.y, i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (i >= columns) return;
  float& weight = weights[row * columns + order[i]];
  weight = static_cast<float>(weight + strength * shift[row * padded + i]);
}

// On the current device.
class Shifter {
 public:
  Shifter(const StoredPair& pair, double damping, const std::string& layer, int64_t most_rows)
      : columns_(pair.hessian->size()), padded_(round_up(columns_, kTile)) {
    const FactorJob job{layer, pair.hessian.get(), damping};
    const auto* const here = std::get_if<DeviceValues>(&pair.drift);
    const std::vector<FactorItem> items = factor_items({&job, 1});
    Arena counted(nullptr);
    FactorBatch({&items[0]}, padded_, counted);
    lay_out(columns_, padded_, most_rows, here != nullptr, counted);
    bytes_ = DeviceArray<std::byte>(static_cast<int64_t>(counted.bytes()));
    Arena arena(bytes_.data());
    FactorBatch factor({&items[0]}, padded_, arena);
    memory_ = lay_out(columns_, padded_, most_rows, here != nullptr, arena);
    factor.factor(stream_, [&] {
      if (!here) upload(memory_.drift, std::get<std::shared_ptr<const MatrixF64>>(pair.drift)->values(), stream_);
    });
    factored_ = factor[0];
    launch_kernel(transpose_kernel, {element_grid(padded_, padded_, kThreads), kThreads}, stream_, factored_.upper,
                  padded_, factored_.inverse);
    launch_kernel(pad_kernel<double>, {element_grid(padded_, padded_, kThreads), kThreads}, stream_,
                  here ? here->values.data() : memory_.drift, factored_.order, columns_, columns_, padded_,
                  memory_.ordered);
  }

  Matrix shifted(const StoredMatrixView& weights, double strength) {
    Matrix result(weights.rows, columns_);
    if (weights.rows == 0) return result;
    const int64_t rows = round_up(weights.rows, kTile);
    upload_rows(memory_.weights, weights, memory_.left, stream_);
    launch_kernel(pad_kernel<float>, {element_grid(rows, padded_, kThreads), kThreads}, stream_, memory_.weights,
                  nullptr, weights.rows, columns_, padded_, memory_.left);
    multiply(memory_.left, memory_.ordered, rows, padded_, MatrixPart::kWhole, memory_.right, stream_);
    multiply(memory_.right, factored_.inverse, rows, padded_, MatrixPart::kLower, memory_.left, stream_);
    multiply(memory_.left, factored_.upper, rows, padded_, MatrixPart::kUpper, memory_.right, stream_);
    launch_kernel(add_shift_kernel, {element_grid(weights.rows, columns_, kThreads), kThreads}, stream_, memory_.right,
                  factored_.order, columns_, padded_, strength, memory_.weights);
    download(result.values(), static_cast<const float*>(memory_.weights), stream_);
    stream_.wait();
    return result;
  }

 private:
  int64_t columns_, padded_;
  DeviceArray<std::byte> bytes_;
  CudaStream stream_;
  ShiftMemory memory_{};
  DeviceFactor factored_{};  // once U is there, `inverse` holds U^T
};

}  // namespace

std::vector<Matrix> shift_weights_cuda(std::span<const StoredMatrixView> weights, const StoredPair& pair,
                                       double damping, double strength, const std::string& layer,
                                       const CudaPlace& place) {
  int64_t most_rows = 0;
  for (const StoredMatrixView& matrix : weights) most_rows = std::max(most_rows, matrix.rows);
  DeviceScope device(place.ordinal);
  Shifter shifter(pair, damping, layer, most_rows);
  std::vector<Matrix> shifted;
  for (const StoredMatrixView& matrix : weights) shifted.push_back(shifter.shifted(matrix, strength));
  return shifted;
}

}  // namespace thimble
