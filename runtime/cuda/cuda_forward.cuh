// cuda_forward.cuh: the golf-gpt forward pass on one CUDA device, T = float or __nv_bfloat16 storage, fp32
// accumulation. The same order of operations as forward.cpp (the reference), fused into five products and one attention
// per layer:
//
//   embed -> [ qkv + norm + heads' norms + rotation -> attention + XSA -> output + residual
//              -> up + norm + activation -> down + residual + skip + mix ] x layers -> head + softcap + loss
//
// Results of a row are the same bits whatever other sequences share the batch.
#pragma once

#include <functional>
#include <string>

#include "runtime/cuda/cuda_model.cuh"
#include "runtime/cuda/kernels/cuda_attention.h"
#include "runtime/cuda/kernels/cuda_rows.cuh"

namespace thimble {

// What a pass runs over. `tokens` and `first` lie in device memory.
struct CudaBatch {
  CudaTokens tokens;
  int sequences = 0, positions = 0;
  int needed = 0;              // the last positions of each sequence whose hidden states are wanted
  const int* first = nullptr;  // position of each sequence's first row
};

// Receives the input of every linear layer, in device memory, while a pass runs.
template <typename T>
class CudaInputObserver {
 public:
  virtual ~CudaInputObserver() = default;
  // `weights`: unbanked names of the matrices that read x (sequences * positions, columns). Valid for work that is
  // queued on `stream` during the call.
  virtual void on_linear_input(std::span<const std::string> weights, const T* x, int sequences, int positions,
                               int columns, cudaStream_t stream) = 0;
};

// Keys and values of all layers, or of one at a time (`layers` 1) when a pass covers whole windows.
template <typename T>
struct CudaKeyValueCache {
  CudaKeyValueCache(const CudaModel<T>& model, int64_t sequences, int64_t capacity, int layers);
  T* layer(int index) const { return data.data() + (layers == 1 ? 0 : index) * layer_elements; }

  DeviceArray<T> data;
  int64_t capacity, layer_elements;
  int layers;
};

template <typename T>
class CudaForward {
 public:
  // Buffers for passes of at most `max_rows` rows, of which at most `max_needed` are needed. `stepping`: every pass has
  // one position per sequence (generation); tiles are chosen for few rows. memory_plan.cpp counts the buffers.
  CudaForward(const CudaModel<T>& model, int64_t context, int64_t max_rows, int64_t max_needed, bool stepping);

  // Runs all layers and leaves the needed rows' hidden states for loss() or logits().
  void run(const CudaBatch& batch, const CudaKeyValueCache<T>& cache, cudaStream_t stream,
           CudaInputObserver<T>* observer = nullptr);

  // The same in steps, between which the model's weights may change. Input kInputsOfLayer * layer + i is read by the
  // layer's query, key and value (i = 0), its attention's output (1), its MLP's first (2) and second matrix (3).
  // begin() leaves input 0 at hand, advance(input, ...) runs what reads that one, up to the next. The cache, as any
  // that holds one layer, is free between them.
  void begin(const CudaBatch& batch, cudaStream_t stream);
  void advance(int input, const CudaKeyValueCache<T>& cache, cudaStream_t stream);
  // Hands the input at hand to the observer.
  void show(int input, CudaInputObserver<T>& observer, cudaStream_t stream);
  static constexpr int kInputsOfLayer = 4;

  // nll[row] of the needed rows' targets, both in device memory.
  void loss(const uint16_t* targets, float* nll, cudaStream_t stream);
  // Softcapped logits (needed rows, logits_stride()) into device memory.
  void logits(float* out, cudaStream_t stream);
  // The same as log-probabilities: exactly -loss() where the column is the target.
  void log_probabilities(float* out, cudaStream_t stream);

  int64_t logits_stride() const { return model_.token_embedding.rows; }
  const CudaModel<T>& model() const { return model_; }

 private:
  struct Rows {  // a residual stream: all rows, or the last layer's needed ones
    T* u;
    RowSquares squares;
    int64_t count;
    int positions, offset;
  };
  template <typename Epilogue>
  void multiply(const T* a, int64_t a_stride, const T* b, int64_t rows, int columns, int depth,
                const Epilogue& epilogue, cudaStream_t stream);
  template <typename Epilogue>
  void multiply_head(const Epilogue& epilogue, cudaStream_t stream);
  template <typename Epilogue>
  void multiply_window(const GemmOperands<T>& operands, const Epilogue& epilogue, cudaStream_t stream);
  template <int kHead, bool kShared>
  void project_heads(int layer, const CudaBatch& batch, const CudaKeyValueCache<T>& cache, const Rows& rows,
                     int first_column, int columns, cudaStream_t stream);
  void project(int layer, const CudaBatch& batch, const CudaKeyValueCache<T>& cache, const Rows& rows, int first_column,
               int columns, cudaStream_t stream);
  void project_shared(const CudaBatch& batch, const CudaKeyValueCache<T>& cache, const Rows& rows, cudaStream_t stream);
  SharedRows shared_rows(const CudaBatch& batch) const;
  // The distinct rows' stream and projections lie where the MLP works later.
  T* shared_u() const { return wide_.data(); }
  float* shared_heads() const {
    return reinterpret_cast<float*>(wide_.data() + static_cast<int64_t>(shared_.count()) * model_.width);
  }
  void launch_attention(const AttentionOperands<T>& operands, cudaStream_t stream);
  void begin(const CudaBatch& batch, const SharedRows& shared, cudaStream_t stream);
  void project_layer(int layer, const CudaKeyValueCache<T>& cache, cudaStream_t stream);
  void attend(int layer, const CudaKeyValueCache<T>& cache, cudaStream_t stream);
  void add_attention(int layer, cudaStream_t stream);
  void widen(int layer, cudaStream_t stream);
  void end_layer(int layer, cudaStream_t stream);
  void make_room_to_observe();
  void observe_embeddings(const CudaBatch& batch, CudaInputObserver<T>& observer, cudaStream_t stream);
  void observe_stream(std::span<const std::string> weights, float c, CudaInputObserver<T>& observer,
                      cudaStream_t stream);
  RowNorm norm_of(const Rows& rows, float c) const;
  float depth_scale(int layer) const;

  // Columns of a product's tile: of one position per sequence, of whole windows, and of windows on sm_90.
  static constexpr int kStepColumns = 64, kWindowColumns = 128, kSm90Columns = 256;

  const CudaModel<T>& model_;
  int64_t max_rows_, max_needed_;
  bool stepping_, sm90_;
  int parts_;  // of each row's squares
  DeviceArray<float2> rotary_;
  int half_;
  DeviceArray<T> x0_, u_, query_, wide_, needed_u_, observed_;
  std::vector<DeviceArray<T>> skips_;
  DeviceArray<float> squares_, needed_squares_, target_logits_, log_sums_;
  DeviceArray<float2> loss_parts_;
  // Of the batch that runs.
  CudaBatch batch_;
  SharedRows shared_;
  Rows rows_{};
};

}  // namespace thimble
