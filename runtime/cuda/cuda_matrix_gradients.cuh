// cuda_matrix_gradients.cuh: sums of the gradients by matrices of a network in device memory, in float32: the gradient
// by W (N, K) of y = x W^T is dy^T x, and by a table what its readers leave at each row.
// Sums go window by window, and of a row that is looked up often position by position; what a table is multiplied with
// and what is looked up in it are added at the end: the same bits however windows are grouped into batches.
#pragma once

#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_gradient_products.cuh"
#include "runtime/ops/divergence_pass.h"
#include "runtime/ops/network.h"
#include "runtime/ops/token_batch.h"

namespace thimble {

class CudaMatrixGradients {
 public:
  // Of the matrices of these names. On the current device, not initialised. `most`: the largest batch.
  CudaMatrixGradients(std::shared_ptr<const Network> network, const std::set<std::string>& names,
                      const BatchShape& most);

  void set_zero(cudaStream_t stream);
  // What is added to matrices of other names is passed over.
  // Adds gradient^T input. gradient (rows, N), input (rows, K): `batch` tells the windows that the rows belong to.
  void add_products(MatrixId id, ConstCudaView gradient, ConstCudaView input, const BatchShape& batch,
                    CudaGradientProducts& products, cudaStream_t stream);
  // Adds row p of `gradient` (rows, K) to row rows[p] of the table's. Waits for the stream.
  void add_lookups(MatrixId id, std::span<const int32_t> rows, ConstCudaView gradient, cudaStream_t stream);
  // All has been added: until set_zero().
  void finish(cudaStream_t stream);
  // Then, (N, K).
  ConstCudaView gradient(MatrixId id) const { return sum(id); }
  // Then, all of them. Waits for the stream.
  void read(MatrixGradients& to, cudaStream_t stream) const;

 private:
  // Of products, or of a table that is multiplied too what is looked up.
  CudaView sum(MatrixId id) const { return view(sums_, id); }
  CudaView lookup_sum(MatrixId id) const { return view(is_both(id) ? lookup_sums_ : sums_, id); }
  bool is_summed(MatrixId id) const { return sums_[static_cast<size_t>(id)].count() > 0; }
  bool is_both(MatrixId id) const { return lookup_sums_[static_cast<size_t>(id)].count() > 0; }
  CudaView view(const std::vector<DeviceArray<float>>& sums, MatrixId id) const;

  std::shared_ptr<const Network> network_;
  // By MatrixId: (N, K padded to a multiple of 4), empty of those that are not summed. The second of tables that are
  // multiplied too, else empty.
  std::vector<DeviceArray<float>> sums_, lookup_sums_;
  DeviceArray<float> parts_;      // of several windows, before they are added
  DeviceArray<int32_t> lookups_;  // (3 * rows + 1): as RowGroups has them
};

}  // namespace thimble
