// cuda_matrix_gradients.cuh: sums of the gradients by matrices of a network in device memory, in float32, of gradients
// and inputs in T = float or __nv_bfloat16: the gradient by W (N, K) of y = x W^T is dy^T x, and by a table what its
// readers leave at each row. Sums go window by window, also of a row that is looked up often; what a table is
// multiplied with and what is looked up in it are added at the end: the same bits however windows are grouped into
// batches. Such sums are parts of one that may be made of them here: the first, and each of the others added to it,
// element by element.
#pragma once

#include <map>
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
  // Of the matrices of these names. On the current device, all zero. `most`: the largest batch.
  CudaMatrixGradients(std::shared_ptr<const Network> network, const std::set<std::string>& names,
                      const BatchShape& most, DivergenceOptions::Adds adds);

  void set_zero(cudaStream_t stream);
  // What is added to matrices of other names is passed over.
  // Adds gradient^T input. gradient (rows, N), input (rows, K): `batch` tells the windows that the rows belong to.
  template <typename T>
  void add_products(MatrixId id, BasicCudaView<const T> gradient, BasicCudaView<const T> input, const BatchShape& batch,
                    cudaStream_t stream);
  // Adds row p of `gradient` (rows, K) to row rows[p] of the table's.
  template <typename T>
  void add_lookups(MatrixId id, std::span<const int32_t> rows, BasicCudaView<const T> gradient, const BatchShape& batch,
                   cudaStream_t stream);
  // All has been added: until set_zero().
  void finish(cudaStream_t stream);
  // Then DevicePass's: adds the part, which is spent; that of another device, which is done with it; or one matrix in
  // host memory. All wait for the stream.
  void add_part(bool begins, cudaStream_t stream);
  void add_part_of(const CudaMatrixGradients& other, int other_ordinal, int ordinal, bool begins, cudaStream_t stream);
  void add_matrix(MatrixId id, ConstMatrixView values, bool begins, cudaStream_t stream);
  void read_part(MatrixId id, Matrix& to, cudaStream_t stream) const { read(sum(id), to, stream); }
  // Of the part, (N, K), or of the sum once there is something in it.
  ConstCudaView gradient(MatrixId id) const { return gives_whole_ ? whole(id) : sum(id); }
  // Then, all of them. Waits for the stream.
  void read(MatrixGradients& to, cudaStream_t stream) const;

 private:
  // Of products, or of a table that is multiplied too what is looked up.
  CudaView sum(MatrixId id) const { return view(sums_.data() + places(id).sum, id); }
  CudaView whole(MatrixId id) const { return view(wholes_.data() + places(id).sum, id); }
  // Where what comes from elsewhere goes: into the sum if that begins with it.
  float* place_of(MatrixId id, bool begins) const { return begins ? whole(id).data : other_.data(); }
  static void read(ConstCudaView from, Matrix& to, cudaStream_t stream);
  CudaView lookup_sum(MatrixId id) const {
    return is_both(id) ? view(lookup_sums_.data() + places(id).lookups, id) : sum(id);
  }
  // Where a matrix (N, K padded to a multiple of 4) begins, in elements; absent: it is not summed, or no table that is
  // multiplied too.
  struct Places {
    int64_t sum = kAbsent, lookups = kAbsent;
  };
  const Places& places(MatrixId id) const { return places_[static_cast<size_t>(id)]; }
  bool is_summed(MatrixId id) const { return places(id).sum != kAbsent; }
  bool is_both(MatrixId id) const { return places(id).lookups != kAbsent; }
  CudaView view(float* data, MatrixId id) const;

  std::shared_ptr<const Network> network_;
  std::vector<Places> places_;  // by MatrixId
  DeviceArray<float> sums_, lookup_sums_;
  DeviceArray<float> wholes_;  // of several parts, as sums_; empty where nothing is added up
  DeviceArray<float> other_;   // a matrix of another device or rank
  bool gives_whole_ = false;
  DeviceArray<float> parts_;  // of several windows, before they are added
  // What looks up which row, and where the kernels read it.
  std::map<MatrixId, SentList> lookups_;
  DeviceArray<int32_t> on_device_;
};

}  // namespace thimble
