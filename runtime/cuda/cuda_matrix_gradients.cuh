// cuda_matrix_gradients.cuh: sums of the gradients by all matrices of a network in device memory, in float32: the
// gradient by W (N, K) of y = x W^T is dy^T x, and by a table what its readers leave at each row.
// Sums go window by window, and of a row that is looked up often position by position: the same bits however windows
// are grouped into batches.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/cuda/kernels/cuda_float_matrix.cuh"
#include "runtime/ops/divergence_pass.h"
#include "runtime/ops/network.h"
#include "runtime/ops/token_batch.h"

namespace thimble {

class CudaMatrixGradients {
 public:
  // On the current device, not initialised. `most_rows`: of a batch.
  CudaMatrixGradients(std::shared_ptr<const Network> network, int64_t most_rows);

  void set_zero(cudaStream_t stream);
  // Adds gradient^T input. gradient (rows, N), input (rows, K): `batch` tells the windows that the rows belong to.
  void add_products(MatrixId id, ConstCudaView gradient, ConstCudaView input, const BatchShape& batch,
                    cudaStream_t stream);
  // Adds row p of `gradient` (rows, K) to row rows[p] of the table's. Waits for the stream.
  void add_lookups(MatrixId id, std::span<const int32_t> rows, ConstCudaView gradient, cudaStream_t stream);
  // Waits for the stream.
  void read(MatrixGradients& to, cudaStream_t stream) const;

 private:
  CudaView sum(MatrixId id) const;

  std::shared_ptr<const Network> network_;
  std::vector<DeviceArray<float>> sums_;  // by MatrixId: (N, K padded to a multiple of 4)
  DeviceArray<int32_t> lookups_;          // (3 * most_rows + 1): as RowGroups has them
};

}  // namespace thimble
