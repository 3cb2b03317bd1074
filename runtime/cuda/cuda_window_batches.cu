// cuda_window_batches.cu: see cuda_window_batches.cuh.
#include "runtime/cuda/cuda_window_batches.cuh"

#include <algorithm>
#include <functional>

namespace thimble {
namespace {

bool same_shape(const ScoreWindow& a, const ScoreWindow& b) {
  return a.inputs.size() == b.inputs.size() && a.targets.size() == b.targets.size();
}

// Windows of one text that begin evenly spaced and overlap: the distance. Otherwise a window's length.
size_t common_step(std::span<const ScoreWindow> batch) {
  size_t length = batch[0].inputs.size();
  if (batch.size() < 2) return length;
  std::less<const Token*> before;  // windows may come from different arrays
  const Token *first = batch[0].inputs.data(), *second = batch[1].inputs.data();
  if (!before(first, second) || !before(second, first + length)) return length;
  auto step = static_cast<size_t>(second - first);
  for (size_t i = 1; i < batch.size(); ++i)
    if (batch[i].inputs.data() != batch[i - 1].inputs.data() + step) return length;
  return step;
}

}  // namespace

template <typename T>
CudaWindowBatches<T>::CudaWindowBatches(const CudaNetworkWeights<T>& weights, int64_t context, int64_t windows)
    : context_(context),
      windows_(windows),
      pass_(weights, {context, windows * context, windows * context, /*stepping=*/false}),
      cache_(weights.network(), windows, context, /*shares_one=*/true),
      zero_(1) {
  zero_.fill_zero();
  for (Slot& slot : slots_) {
    const int64_t rows = windows * context;
    slot.host_tokens.reserve(rows);
    slot.host_targets.reserve(rows);
    slot.host_nll.reserve(rows);
    slot.tokens.reserve(rows, "tokens and scores");
    slot.targets.reserve(rows, "tokens and scores");
    slot.nll.reserve(rows, "tokens and scores");
  }
}

template <typename T>
CudaWindowBatches<T>::~CudaWindowBatches() {
  if (!counts_allocations()) cudaStreamSynchronize(stream_);
}

template <typename T>
void CudaWindowBatches<T>::finish(Slot& slot) {
  if (slot.destination.empty()) return;
  check_cuda(cudaEventSynchronize(slot.done));
  std::copy_n(slot.host_nll.data(), slot.destination.size(), slot.destination.begin());
  slot.destination = {};
}

template <typename T>
void CudaWindowBatches<T>::start(Slot& slot, std::span<const ScoreWindow> batch, std::span<float> nll) {
  size_t length = batch[0].inputs.size(), needed = batch[0].targets.size();
  Token *tokens = slot.host_tokens.data(), *targets = slot.host_targets.data();
  size_t step = common_step(batch);
  for (const ScoreWindow& window : batch) {
    // Of overlapping windows, only what the one before did not have.
    size_t known = &window == &batch[0] ? 0 : length - step;
    tokens = std::ranges::copy(window.inputs.subspan(known), tokens).out;
    targets = std::ranges::copy(window.targets, targets).out;
  }
  size_t token_bytes = static_cast<size_t>(tokens - slot.host_tokens.data()) * sizeof(Token),
         target_bytes = nll.size() * sizeof(Token);
  check_cuda(
      cudaMemcpyAsync(slot.tokens.data(), slot.host_tokens.data(), token_bytes, cudaMemcpyHostToDevice, stream_));
  check_cuda(
      cudaMemcpyAsync(slot.targets.data(), slot.host_targets.data(), target_bytes, cudaMemcpyHostToDevice, stream_));
  CudaBatch shape{{slot.tokens.data(), static_cast<int64_t>(step)},
                  static_cast<int>(batch.size()),
                  static_cast<int>(length),
                  static_cast<int>(needed),
                  zero_.data()};
  pass_.run(shape, cache_, stream_);
  pass_.loss(slot.targets.data(), slot.nll.data(), stream_);
  check_cuda(cudaMemcpyAsync(slot.host_nll.data(), slot.nll.data(), nll.size_bytes(), cudaMemcpyDeviceToHost, stream_));
  check_cuda(cudaEventRecord(slot.done, stream_));
  slot.destination = nll;
}

template <typename T>
void CudaWindowBatches<T>::score(std::span<const ScoreWindow> windows, std::span<float> nll) {
  size_t batch_index = 0;
  for (size_t first = 0; first < windows.size();) {
    size_t count = 1;
    while (count < static_cast<size_t>(windows_) && first + count < windows.size() &&
           same_shape(windows[first], windows[first + count]))
      ++count;
    Slot& slot = slots_[batch_index++ % 2];
    finish(slot);
    size_t scores = count * windows[first].targets.size();
    start(slot, windows.subspan(first, count), nll.first(scores));
    nll = nll.subspan(scores);
    first += count;
  }
  for (Slot& slot : slots_) finish(slot);
}

template <typename T>
void CudaWindowBatches<T>::log_probabilities(std::span<const Token> inputs, int64_t targets, int64_t first,
                                             MatrixView out) {
  DeviceArray<Token> tokens(inputs);
  CudaBatch shape{{tokens.data(), 0}, 1, static_cast<int>(inputs.size()), static_cast<int>(targets), zero_.data()};
  pass_.run(shape, cache_, stream_);
  DeviceArray<float> rows(out.rows * pass_.logits_stride());
  pass_.log_probabilities(first, out.rows, rows.data(), stream_);
  check_cuda(cudaMemcpy2DAsync(out.data, static_cast<size_t>(out.stride) * sizeof(float), rows.data(),
                               static_cast<size_t>(pass_.logits_stride()) * sizeof(float),
                               static_cast<size_t>(out.cols) * sizeof(float), static_cast<size_t>(out.rows),
                               cudaMemcpyDeviceToHost, stream_));
  stream_.wait();
}

template <typename T>
void CudaWindowBatches<T>::observe(std::span<const Token> tokens, int64_t sequences, int64_t length, int64_t stride,
                                   CudaInputObserver<T>& observer) {
  DeviceArray<Token> all(tokens);
  for (int64_t first = 0; first < sequences; first += windows_) {
    CudaBatch shape{{all.data() + first * stride, stride},
                    static_cast<int>(std::min(windows_, sequences - first)),
                    static_cast<int>(length),
                    static_cast<int>(length),
                    zero_.data()};
    pass_.run(shape, cache_, stream_, &observer);
  }
  stream_.wait();
}

template class CudaWindowBatches<float>;
template class CudaWindowBatches<__nv_bfloat16>;
template class CudaWindowBatches<__half>;

}  // namespace thimble
