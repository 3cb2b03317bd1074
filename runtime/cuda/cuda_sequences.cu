// cuda_sequences.cu: see cuda_sequences.cuh.
#include "runtime/cuda/cuda_sequences.cuh"

#include <algorithm>
#include <cassert>

#include "runtime/base/error.h"

namespace thimble {
namespace {

constexpr int kStepsPerGraph = 8;          // between graphs the device idles
constexpr int64_t kStepsPerProgress = 64;  // the host may run ahead of the device by as many

}  // namespace

template <typename T>
CudaSequences<T>::CudaSequences(const CudaNetworkWeights<T>& weights, int64_t context, int64_t sequences)
    : weights_(weights),
      context_(context),
      sequences_(sequences),
      pass_(weights, {context, sequences, sequences, /*stepping=*/true}),
      cache_(weights.network(), sequences, context, /*shares_one=*/false),
      tokens_(sequences * context, "tokens and scores"),
      never_drawn_(weights.network().vocabulary(), "tokens and scores"),
      logits_(sequences * pass_.logits_stride(), "tokens and scores"),
      position_(1),
      failed_(1) {
  failed_.fill_zero();
}

template <typename T>
CudaSequences<T>::~CudaSequences() {
  if (!counts_allocations()) cudaStreamSynchronize(stream_);
  if (steps_) cudaGraphExecDestroy(steps_);
}

template <typename T>
SampleRequest CudaSequences<T>::request(double temperature, uint64_t seed, uint64_t first_stream,
                                        int first_position) const {
  return {logits_.data(),
          pass_.logits_stride(),
          static_cast<int>(weights_.network().vocabulary()),
          static_cast<int>(sequences_),
          temperature,
          seed,
          first_stream,
          first_position,
          tokens_.data(),
          context_,
          position_.data(),
          /*offset=*/0,
          failed_.data()};
}

// In each step the token at the position of every sequence goes through the model, the next one is drawn; the draw may
// begin the next step. *position moves after the last step.
template <typename T>
void CudaSequences<T>::capture(SampleRequest request, int steps) {
  CudaBatch batch{{tokens_.data(), context_}, static_cast<int>(sequences_), 1, 1, position_.data()};
  check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    pass_.run(batch, cache_, stream_);
    pass_.logits(logits_.data(), stream_);
    for (int step = 1; step < steps; ++step) {
      request.offset = step - 1;
      batch.offset = step;
      pass_.draw_and_run(request, batch, cache_, stream_);
      pass_.logits(logits_.data(), stream_);
    }
    request.offset = steps - 1;
    launch_sample(request, stream_);
    launch_advance(position_.data(), steps, stream_);
  } catch (...) {
    cudaStreamEndCapture(stream_, &graph);
    cudaGraphDestroy(graph);
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream_, &graph));
  if (steps_) cudaGraphExecDestroy(steps_);
  steps_ = nullptr;
  cudaError_t made = cudaGraphInstantiate(&steps_, graph, 0);
  cudaGraphDestroy(graph);
  check_cuda(made);
}

template <typename T>
void CudaSequences<T>::require_finite() const {
  int failed = 0;
  check_cuda(cudaMemcpy(&failed, failed_.data(), sizeof(int), cudaMemcpyDeviceToHost));
  if (failed) throw Error(ExitCode::kBadInput, "the model's logits are not finite; its weights are damaged");
}

template <typename T>
std::vector<Token> CudaSequences<T>::generate(const TextScript& script, int64_t first, Progress& progress) {
  const auto& [sequences, length, temperature, seed] = script.options;
  assert(length == context_);
  position_.fill_zero();
  cache_.clear_states();
  std::vector<Token> tokens(static_cast<size_t>(sequences_ * length));
  std::ranges::copy(script.sequences(first, sequences_), tokens.begin());
  check_cuda(cudaMemcpy(tokens_.data(), tokens.data(), tokens.size() * sizeof(Token), cudaMemcpyHostToDevice));
  check_cuda(cudaMemcpy(never_drawn_.data(), script.never_drawn.data(), script.never_drawn.size() * sizeof(Token),
                        cudaMemcpyHostToDevice));
  check_cuda(cudaStreamSynchronize(nullptr));  // streams of ours do not wait for the default one
  SampleRequest draw = request(temperature, seed, static_cast<uint64_t>(first), 0);
  draw.never_drawn = never_drawn_.data();
  draw.never_drawn_count = static_cast<int>(script.never_drawn.size());
  int64_t position = 0, told = 0;
  auto advance = [&](int steps, int64_t last) {
    if (position < last) capture(draw, steps);
    while (position < last) {
      check_cuda(cudaGraphLaunch(steps_, stream_));
      position += steps;
      if (position % kStepsPerProgress != 0) continue;
      stream_.wait();
      progress.advance((position - told) * sequences_);
      told = position;
    }
  };
  advance(kStepsPerGraph, (length - 1) / kStepsPerGraph * kStepsPerGraph);
  advance(1, length - 1);
  stream_.wait();
  progress.advance((length - told) * sequences_);
  require_finite();
  check_cuda(cudaMemcpy(tokens.data(), tokens_.data(), tokens.size() * sizeof(Token), cudaMemcpyDeviceToHost));
  return tokens;
}

template <typename T>
void CudaSequences<T>::continue_text(std::span<const Token> prompt, int64_t most_new_tokens, double temperature,
                                     uint64_t seed, const std::function<bool(Token)>& on_token) {
  if (most_new_tokens == 0) return;
  const auto length = static_cast<int64_t>(prompt.size());
  std::vector<Token> tokens(static_cast<size_t>(context_), TextScript::kDrawn);
  std::ranges::copy(prompt, tokens.begin());
  check_cuda(cudaMemcpy(tokens_.data(), tokens.data(), tokens.size() * sizeof(Token), cudaMemcpyHostToDevice));
  check_cuda(cudaStreamSynchronize(nullptr));  // streams of ours do not wait for the default one
  position_.fill_zero();
  cache_.clear_states();
  const SampleRequest draw = request(temperature, seed, 0, static_cast<int>(length));
  CudaPass<T> whole(weights_, prompt_shape(context_, length));
  whole.run({{tokens_.data(), context_}, 1, static_cast<int>(length), 1, position_.data()}, cache_, stream_);
  whole.logits(logits_.data(), stream_);
  const auto drawn = static_cast<int>(length);
  check_cuda(cudaMemcpyAsync(position_.data(), &drawn, sizeof(int), cudaMemcpyHostToDevice, stream_));
  SampleRequest first_draw = draw;
  first_draw.offset = -1;
  launch_sample(first_draw, stream_);
  capture(draw, 1);
  for (int64_t i = 0;; ++i) {
    Token token = 0;
    check_cuda(cudaMemcpyAsync(&token, tokens_.data() + length + i, sizeof(token), cudaMemcpyDeviceToHost, stream_));
    stream_.wait();
    require_finite();
    if (!on_token(token) || i + 1 == most_new_tokens) return;
    check_cuda(cudaGraphLaunch(steps_, stream_));
  }
}

template class CudaSequences<float>;
template class CudaSequences<__nv_bfloat16>;
template class CudaSequences<__half>;

}  // namespace thimble
