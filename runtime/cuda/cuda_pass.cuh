// cuda_pass.cuh: runs a network forwards on one CUDA device, in the composites of its weights' Fusion; T = float,
// __nv_bfloat16 or __half storage, fp32 accumulation. CpuPass is the reference. Of a decoder the composites are, with
// all that is fused:
//
//   embed -> [ qkv + norm + heads' norms + rotation -> attention + XSA -> output + residual
//              -> up + norm + activation -> down + residual + skip + mix ] x layers -> head + softcap + loss
//
// Several sequences at a time. Results of a row are the same bits whatever other sequences share the batch.
#pragma once

#include "runtime/cuda/cuda_node_runner.cuh"
#include "runtime/cuda/kernels/attention/cuda_attention.h"

namespace thimble {

// Passes of at most so many rows, of which so many are needed. `stepping`: one position of each sequence.
struct CudaPassShape {
  int64_t context = 0, rows = 0, needed = 0;
  bool stepping = false;
};

template <typename T>
class CudaPass {
 public:
  // No position may reach shape.context. `weights` must outlive the pass, and may be replaced between its steps.
  CudaPass(const CudaNetworkWeights<T>& weights, const CudaPassShape& shape);
  CudaPass(const CudaPass&) = delete;
  CudaPass& operator=(const CudaPass&) = delete;

  // A pass in steps. run_to(node) runs what reads no matrix that this node or a later one reads first; of
  // Network::nodes.size() the rest. A cache that serves all layers is free between the steps.
  void begin(const CudaBatch& batch, const CudaCache<T>& cache, cudaStream_t stream);
  void run_to(size_t node);
  // Room for what show() needs, so that it allocates nothing.
  void reserve_shown();
  // Hands an input to the observer, before run_to() a node beyond its first reader.
  void show(const LinearInput& input, CudaInputObserver<T>& observer);
  // A value that has a place, after its composite and before its last reader's: (rows, stride) elements.
  NodeRows<T> value(ValueId value) const;

  // All of it; leaves the needed rows for loss() or logits(). The observer, whose batch must need all rows, sees the
  // inputs of all linear layers below the head.
  void run(const CudaBatch& batch, const CudaCache<T>& cache, cudaStream_t stream,
           CudaInputObserver<T>* observer = nullptr);

  // run() of one position of each sequence whose token is drawn first, by one kernel with what the pass starts from
  // where that is one composite.
  void draw_and_run(const SampleRequest& draw, const CudaBatch& batch, const CudaCache<T>& cache, cudaStream_t stream);

  // nll[row] of the needed rows' targets, both in device memory. Either may be null.
  void loss(const Token* targets, float* nll, cudaStream_t stream);
  // Logits (needed rows, logits_stride()) into device memory.
  void logits(float* out, cudaStream_t stream);
  // The same as log-probabilities, of `rows` needed rows from `first` on: exactly -loss() where the column is the
  // target.
  void log_probabilities(int64_t first, int64_t rows, float* out, cudaStream_t stream);
  int64_t logits_stride() const { return weights_.matrix(network_.head.weight).rows; }

 private:
  struct Rows {  // all rows, or once the others have given their keys and values the needed ones
    int64_t count = 0;
    int positions = 0, offset = 0;
    bool is_compact = false;
  };
  void allocate_squares();
  void begin(const CudaBatch& batch, const CudaCache<T>& cache, const SharedRows& shared, cudaStream_t stream);
  SharedRows shared_rows(const CudaBatch& batch) const;
  void run(size_t composite, const fused::Single& work);
  EmbedOperands<T> embed_operands(const fused::Embed& work) const;
  void run(size_t composite, const fused::Embed& work);
  void run(size_t composite, const fused::Project& work);
  void run(size_t composite, const fused::Attend& work);
  void run(size_t composite, const fused::LinearAdd& work);
  void run(size_t composite, const fused::LinearActivate& work);
  void run(size_t composite, const fused::LinearGate& work);
  void project(size_t composite, const fused::Project& work, int64_t first_column, int64_t columns);
  void project_shared(size_t composite, const fused::Project& work);
  void compact();
  void place_heads(const fused::Attend& work, T* query);
  void launch_attention(const AttentionOperands<T>& operands, int head_width);
  // How the columns of a value lie: heads apart where they are padded.
  HeadColumns columns_of(ValueId value) const;
  // What a product reads of a value (rows, stride) and its norm: as it lies, or in the modes of NVFP4 staged.
  struct ProductInput {
    const T* data;
    RowNorm norm;
  };
  ProductInput product_input(const T* data, int64_t rows, const FusedInput& input);
  struct Product {
    GemmOperands<T> operands;
    RowNorm norm;
  };
  // Of all rows.
  Product product(const FusedInput& input, const CudaMatrix<T>& matrix);
  Product head_input(cudaStream_t stream) const;
  // Of `rows` needed rows from `first` on.
  void logits(int64_t first, int64_t rows, float* out, cudaStream_t stream);
  template <typename Launch>
  void with_logit_rule(const RowNorm& norm, const Launch& launch) const;

  T* slot(int32_t index) const { return slots_[static_cast<size_t>(index)].data(); }
  const Place& place(ValueId value) const {
    return (rows_.is_compact ? fusion_.compact_places : fusion_.places)[static_cast<size_t>(value)];
  }
  T* data(ValueId value) const { return slot(place(value).slot) + place(value).first_column; }
  RowSquares squares(ValueId value) const;
  RowNorm norm(const FusedInput& input) const;
  const float2* angles(RotaryId rotary) const {
    return rotary == kAbsent ? nullptr : rotaries_[static_cast<size_t>(rotary)].data();
  }
  // The distinct rows' stream and projections.
  T* shared_stream() const { return slot(fusion_.shared_scratch); }
  float* shared_heads(const fused::Project& work) const {
    return reinterpret_cast<float*>(shared_stream() + shared_.count() * place(work.input.value).stride);
  }

  const CudaNetworkWeights<T>& weights_;
  const Network& network_;
  const Fusion& fusion_;
  CudaPassShape shape_;
  std::vector<DeviceArray<float2>> rotaries_;
  DeviceArray<float2> identity_{kRotaryQuad};  // pairs of heads that do not rotate
  std::vector<DeviceArray<T>> slots_;
  std::vector<DeviceArray<float>> squares_;  // by slot
  DeviceArray<T> head_input_, shown_;
  DeviceArray<float> head_squares_, target_logits_, log_sums_;
  DeviceArray<float2> loss_parts_;
  CudaNodeRunner<T> runner_;
  // Of the batch that runs.
  CudaBatch batch_;
  const CudaCache<T>* cache_ = nullptr;
  cudaStream_t stream_ = nullptr;
  SharedRows shared_;
  Rows rows_;
  size_t next_ = 0;  // composite
};

}  // namespace thimble
