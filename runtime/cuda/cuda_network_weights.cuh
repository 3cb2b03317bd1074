// cuda_network_weights.cuh: the weights of a network in device memory, laid out for the composites of its Fusion.
//   widths     padded with zeros to multiples of Fusion::options.column_multiple, rows of matrices to multiples of 8.
//   heads      where queries, keys and values are one product: its matrices one below the other, heads padded with
//   zeros
//              to 32, 64 or 128 rows; zeros change neither norms (which divide by d) nor products. Matrices that read
//              such heads have their columns padded alike.
//   rotation   there, query and key rows are permuted within each head so that the two elements that rotate together
//              are neighbours; a permutation common to both leaves every q.k as it is.
//   tables     lookups whose rows a matrix multiplies are stored multiplied; the matrix and the table stay, for those
//              who look at its input.
// T = float, __nv_bfloat16 or __half, rounded to nearest even. Vectors are float32.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "runtime/cuda/cuda_sizes.h"
#include "runtime/cuda/cuda_weight_loader.cuh"
#include "runtime/ops/weights.h"

namespace thimble {

template <typename T>
struct CudaMatrix {
  DeviceArray<T> data;
  int rows = 0, columns = 0;  // padded; row-major without gaps

  CudaMatrix() = default;
  explicit CudaMatrix(const CudaMatrixSize& size)
      : data(size.rows * size.columns), rows(static_cast<int>(size.rows)), columns(static_cast<int>(size.columns)) {
    if (data.count() > 0) data.fill_zero();
  }
};

// What a fused::Project has beside its matrices.
struct CudaProjectVectors {
  DeviceArray<float> bias;  // rows of the product; empty without biases
  DeviceArray<float>
      query_scale;          // (H): head gain * attention's scale * log2(e), so that the softmax is a plain 2^(q.k)
  float largest_score = 0;  // no |q.k| exceeds it
};

template <typename T>
class CudaNetworkWeights {
 public:
  // Copies to the current device; `weights`, not rounded, may go afterwards. Rounds as round_weights() does. In NVFP4
  // a matrix that is not finite is an Error (bad input).
  CudaNetworkWeights(const Weights& weights, const NumericPolicy& policy, const FusionOptions& options);

  // Puts other values, not rounded, of the same shape in the place of a matrix. Nothing may run meanwhile; waits.
  void replace(MatrixId id, const Matrix& values);
  // Replaces all vectors. Nothing may run meanwhile; waits.
  void set_vectors(const std::vector<std::vector<float>>& vectors);

  const Network& network() const { return *network_; }
  std::shared_ptr<const Network> shared_network() const { return network_; }
  const Fusion& fusion() const { return fusion_; }
  const NumericPolicy& policy() const { return policy_; }

  const CudaMatrix<T>& matrix(MatrixId id) const { return matrices_[static_cast<size_t>(id)]; }
  // (rows of queries, keys and values, columns) of a composite.
  const CudaMatrix<T>& projection(size_t composite) const { return projections_[composite]; }
  const CudaMatrix<T>& table(int32_t id) const { return tables_[static_cast<size_t>(id)]; }
  const CudaProjectVectors& project_vectors(size_t composite) const { return project_vectors_[composite]; }
  // Null for kAbsent.
  const float* vector(VectorId id) const { return id == kAbsent ? nullptr : vectors_[static_cast<size_t>(id)].data(); }
  int64_t vector_size(VectorId id) const { return network_->vector(id).count; }
  // The only element of a vector.
  float scalar(VectorId id) const { return host_vectors_[static_cast<size_t>(id)].at(0); }
  const std::vector<float>& host_vector(VectorId id) const { return host_vectors_[static_cast<size_t>(id)]; }
  const std::vector<std::vector<float>>& host_vectors() const { return host_vectors_; }
  // The scale of a fused::LinearAdd by columns; null: 1.
  const float* sum_scale(size_t composite) const;

 private:
  void find_placements();
  void place_projection(size_t composite, const fused::Project& project);
  void load(MatrixId id, const Matrix& values, bool is_in_nvfp4);
  void make_table(size_t table);
  void upload_vectors();
  void upload_project(size_t composite, const fused::Project& project);

  std::shared_ptr<const Network> network_;
  NumericPolicy policy_;
  Fusion fusion_;
  CudaWeightSizes sizes_;
  std::vector<CudaMatrix<T>> matrices_, projections_, tables_;
  std::vector<std::vector<CudaPlacement<T>>> placements_;  // by MatrixId
  std::vector<std::vector<float>> host_vectors_;           // rounded
  std::vector<DeviceArray<float>> vectors_, scales_;       // by VectorId; by composite
  std::vector<CudaProjectVectors> project_vectors_;
  CudaWeightLoader<T> loader_;
};

// Interleaved (cosine, sine) of positions 0 .. context - 1: (context, dims / 2).
DeviceArray<float2> make_cuda_rotary_table(const RotaryRule& rule, int64_t context);

}  // namespace thimble
