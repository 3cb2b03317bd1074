// cuda_generator.cu: see cuda_generator.cuh.
#include "runtime/cuda/cuda_generator.cuh"

#include <algorithm>

#include "runtime/base/error.h"

namespace thimble {
namespace {

constexpr int64_t kStepsPerProgress = 64;  // the host may run ahead of the device by as many graph launches

}  // namespace

template <typename T>
CudaGenerator<T>::CudaGenerator(const CudaModel<T>& model, int64_t context, int64_t sequences)
    : model_(model),
      context_(context),
      sequences_(sequences),
      forward_(model, context, sequences, sequences, /*stepping=*/true),
      cache_(model, sequences, context, static_cast<int>(model.config.num_layers)),
      tokens_(sequences * context),
      logits_(sequences * forward_.logits_stride()),
      position_(1),
      failed_(1) {
  failed_.fill_zero();
  tokens_.fill_zero();
}

template <typename T>
CudaGenerator<T>::~CudaGenerator() {
  cudaStreamSynchronize(stream_);
  if (step_) cudaGraphExecDestroy(step_);
}

// One step: the token at *position of every sequence goes through the model, the next one is drawn.
template <typename T>
void CudaGenerator<T>::capture(const SampleRequest& request) {
  CudaBatch batch{{tokens_.data(), context_}, static_cast<int>(sequences_), 1, 1, position_.data()};
  check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    forward_.run(batch, cache_, stream_);
    forward_.logits(logits_.data(), stream_);
    launch_sample(request, stream_);
  } catch (...) {
    cudaStreamEndCapture(stream_, &graph);
    cudaGraphDestroy(graph);
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream_, &graph));
  if (step_) cudaGraphExecDestroy(step_);
  step_ = nullptr;
  cudaError_t made = cudaGraphInstantiate(&step_, graph, 0);
  cudaGraphDestroy(graph);
  check_cuda(made);
}

template <typename T>
void CudaGenerator<T>::require_finite() const {
  int failed = 0;
  check_cuda(cudaMemcpy(&failed, failed_.data(), sizeof(int), cudaMemcpyDeviceToHost));
  if (failed) throw Error(ExitCode::kBadInput, "the model's logits are not finite; its weights are damaged");
}

template <typename T>
std::vector<uint16_t> CudaGenerator<T>::generate(std::span<const uint16_t> first_tokens, int64_t length,
                                                 double temperature, uint64_t seed, uint64_t first_stream,
                                                 Progress& progress) {
  position_.fill_zero();
  check_cuda(cudaMemcpy2D(tokens_.data(), static_cast<size_t>(context_) * sizeof(uint16_t), first_tokens.data(),
                          sizeof(uint16_t), sizeof(uint16_t), first_tokens.size(), cudaMemcpyHostToDevice));
  check_cuda(cudaStreamSynchronize(nullptr));  // streams of ours do not wait for the default one
  SampleRequest request{logits_.data(),
                        forward_.logits_stride(),
                        static_cast<int>(model_.config.vocab_size),
                        static_cast<int>(sequences_),
                        temperature,
                        seed,
                        first_stream,
                        0,
                        tokens_.data(),
                        context_,
                        position_.data(),
                        failed_.data()};
  capture(request);
  for (int64_t position = 1; position < length; ++position) {
    check_cuda(cudaGraphLaunch(step_, stream_));
    if (position % kStepsPerProgress != 0) continue;
    stream_.wait();
    progress.advance(kStepsPerProgress * sequences_);
  }
  stream_.wait();
  progress.advance((length - (length - 1) / kStepsPerProgress * kStepsPerProgress) * sequences_);
  require_finite();
  std::vector<uint16_t> tokens(static_cast<size_t>(sequences_ * length));
  check_cuda(cudaMemcpy2D(tokens.data(), static_cast<size_t>(length) * sizeof(uint16_t), tokens_.data(),
                          static_cast<size_t>(context_) * sizeof(uint16_t),
                          static_cast<size_t>(length) * sizeof(uint16_t), static_cast<size_t>(sequences_),
                          cudaMemcpyDeviceToHost));
  return tokens;
}

template <typename T>
void CudaGenerator<T>::continue_text(std::span<const uint16_t> prompt, int64_t max_new_tokens, double temperature,
                                     uint64_t seed, const std::function<bool(uint16_t)>& on_token) {
  if (max_new_tokens == 0) return;
  auto length = static_cast<int64_t>(prompt.size());
  check_cuda(cudaMemcpy(tokens_.data(), prompt.data(), prompt.size_bytes(), cudaMemcpyHostToDevice));
  check_cuda(cudaStreamSynchronize(nullptr));  // streams of ours do not wait for the default one
  position_.fill_zero();
  SampleRequest request{logits_.data(),
                        forward_.logits_stride(),
                        static_cast<int>(model_.config.vocab_size),
                        1,
                        temperature,
                        seed,
                        0,
                        static_cast<int>(length),
                        tokens_.data(),
                        context_,
                        position_.data(),
                        failed_.data()};
  CudaForward<T> whole(model_, context_, length, 1, /*stepping=*/false);
  whole.run({{tokens_.data(), context_}, 1, static_cast<int>(length), 1, position_.data()}, cache_, stream_);
  whole.logits(logits_.data(), stream_);
  auto last = static_cast<int>(length - 1);
  check_cuda(cudaMemcpyAsync(position_.data(), &last, sizeof(int), cudaMemcpyHostToDevice, stream_));
  launch_sample(request, stream_);
  capture(request);
  for (int64_t i = 0;; ++i) {
    uint16_t token = 0;
    check_cuda(cudaMemcpyAsync(&token, tokens_.data() + length + i, sizeof(token), cudaMemcpyDeviceToHost, stream_));
    stream_.wait();
    require_finite();
    if (!on_token(token) || i + 1 == max_new_tokens) return;
    check_cuda(cudaGraphLaunch(step_, stream_));
  }
}

template class CudaGenerator<float>;
template class CudaGenerator<__nv_bfloat16>;

}  // namespace thimble
