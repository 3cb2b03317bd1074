// cuda_network_weights.cuh: the weights of a network in device memory, laid out for the composites of its Fusion.
//   widths     padded with zeros to multiples of Fusion::options.column_multiple, rows of matrices to multiples of 8.
//   heads      where queries, keys and values are one product: its matrices one below the other, heads padded with
//   zeros
//              to 32, 64 or 128 rows; zeros change neither norms (which divide by d) nor products. Matrices that read
//              such heads have their columns padded alike.
//   rotation   there, query and key rows are permuted within each head so that the two elements that rotate together
//              are neighbours; a permutation common to both leaves every q.k as it is.
//   gates      the matrices of a gate and of what it multiplies are one: four rows of the gate, four of the other, and
//              so on, so that a lane's eight products are four pairs.
//   tables     lookups whose rows a matrix multiplies are stored multiplied; the matrix and the table stay, for those
//              who look at its input.
// T = float, __nv_bfloat16 or __half, rounded to nearest even. Vectors are float32.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "runtime/cuda/cuda_weight_loader.cuh"
#include "runtime/ops/fusion.h"
#include "runtime/ops/numeric_policy.h"
#include "runtime/ops/weights.h"

namespace thimble {

// What of a network a pass in this mode may fuse.
FusionOptions cuda_fusion_options(const NumericPolicy& policy, size_t element_bytes);
// The same without fusing products: for backward passes, and as the reference of composites.
FusionOptions cuda_plain_options(size_t element_bytes);

// Columns that a head takes in caches and padded matrices. Heads of more than 256 columns are a DeviceError.
int64_t cuda_head_width(int64_t head_dim);

template <typename T>
struct CudaMatrix {
  DeviceArray<T> data;
  int rows = 0, columns = 0;  // padded; row-major without gaps

  CudaMatrix() = default;
  CudaMatrix(int64_t r, int64_t c) : data(r * c, "weights"), rows(static_cast<int>(r)), columns(static_cast<int>(c)) {
    data.fill_zero();
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
  // Room on the current device, without values yet.
  CudaNetworkWeights(std::shared_ptr<const Network> network, const NumericPolicy& policy, const FusionOptions& options);
  // Copies there; `weights`, not rounded, may go afterwards. Rounds as round_weights() does. In NVFP4 a matrix that is
  // not finite is an Error (bad input).
  CudaNetworkWeights(const Weights& weights, const NumericPolicy& policy, const FusionOptions& options);

  // Puts other values, not rounded, of the same shape in the place of a matrix. Nothing may run meanwhile; waits.
  void replace(MatrixId id, const StoredMatrixView& values);
  // Replaces all vectors, of which none is a matrix's column gain. Nothing may run meanwhile; waits.
  void set_vectors(const std::vector<std::vector<float>>& vectors);

  const Network& network() const { return *network_; }
  std::shared_ptr<const Network> shared_network() const { return network_; }
  const Fusion& fusion() const { return fusion_; }
  const NumericPolicy& policy() const { return policy_; }

  const CudaMatrix<T>& matrix(MatrixId id) const { return matrices_[static_cast<size_t>(id)]; }
  // All matrices of a composite that reads several as one.
  const CudaMatrix<T>& joint_matrix(size_t composite) const { return joint_matrices_[composite]; }
  const CudaMatrix<T>& table(int32_t id) const { return tables_[static_cast<size_t>(id)]; }
  const CudaProjectVectors& project_vectors(size_t composite) const { return project_vectors_[composite]; }
  // Null for kAbsent.
  const float* vector(VectorId id) const {
    return id == kAbsent ? nullptr : vectors_.data() + vector_places_[static_cast<size_t>(id)];
  }
  int64_t vector_size(VectorId id) const { return network_->vector(id).count; }
  // The only element of a vector.
  float scalar(VectorId id) const { return host_vectors_[static_cast<size_t>(id)].at(0); }
  const std::vector<float>& host_vector(VectorId id) const { return host_vectors_[static_cast<size_t>(id)]; }
  const std::vector<std::vector<float>>& host_vectors() const { return host_vectors_; }
  // The scale of a fused::LinearAdd by columns; null: 1.
  const float* sum_scale(size_t composite) const;

 private:
  void allocate();
  void find_placements();
  void place_projection(size_t composite, const fused::Project& project);
  void place_gate(size_t composite, const fused::LinearGate& gate);
  void load(MatrixId id, const StoredMatrixView& values, bool is_in_nvfp4);
  void load_vectors(const std::vector<std::vector<float>>& vectors);
  void use_vectors();
  void make_table(size_t table);
  void upload_project(size_t composite, const fused::Project& project);

  std::shared_ptr<const Network> network_;
  NumericPolicy policy_;
  Fusion fusion_;
  std::vector<CudaMatrix<T>> matrices_, joint_matrices_, tables_;
  std::vector<std::vector<CudaPlacement<T>>> placements_;  // by MatrixId
  std::vector<std::vector<float>> host_vectors_;           // rounded
  DeviceArray<float> vectors_;                             // one after the other, at vector_places_ by VectorId
  std::vector<int64_t> vector_places_;
  std::vector<DeviceArray<float>> scales_;  // by composite
  std::vector<CudaProjectVectors> project_vectors_;
  CudaWeightLoader<T> loader_;
};

// Of positions 0 .. context - 1, as cuda_rotary.cuh has them.
DeviceArray<float2> make_cuda_rotary_table(const RotaryRule& rule, int64_t context);

}  // namespace thimble
