// cuda_scorer.cu: see cuda_scorer.cuh.
#include "runtime/cuda/cuda_scorer.cuh"

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
  std::less<const uint16_t*> before;  // windows may come from different arrays
  const uint16_t *first = batch[0].inputs.data(), *second = batch[1].inputs.data();
  if (!before(first, second) || !before(second, first + length)) return length;
  auto step = static_cast<size_t>(second - first);
  for (size_t i = 1; i < batch.size(); ++i)
    if (batch[i].inputs.data() != batch[i - 1].inputs.data() + step) return length;
  return step;
}

}  // namespace

template <typename T>
CudaScorer<T>::CudaScorer(const CudaModel<T>& model, int64_t context, int64_t windows)
    : model_(model),
      context_(context),
      windows_(windows),
      forward_(model, context, windows_ * context, windows_ * context, /*stepping=*/false),
      cache_(model, windows_, context, 1),
      zero_(1) {
  zero_.fill_zero();
  for (Slot& slot : slots_) {
    int64_t rows = windows_ * context;
    slot.host_tokens.reserve(rows);
    slot.host_targets.reserve(rows);
    slot.host_nll.reserve(rows);
    slot.tokens.reserve(rows);
    slot.targets.reserve(rows);
    slot.nll.reserve(rows);
    check_cuda(cudaEventCreateWithFlags(&slot.done, cudaEventDisableTiming));
  }
}

template <typename T>
CudaScorer<T>::~CudaScorer() {
  cudaStreamSynchronize(stream_);
  for (Slot& slot : slots_) cudaEventDestroy(slot.done);
}

template <typename T>
void CudaScorer<T>::finish(Slot& slot) {
  if (slot.destination.empty()) return;
  check_cuda(cudaEventSynchronize(slot.done));
  std::copy_n(slot.host_nll.data(), slot.destination.size(), slot.destination.begin());
  slot.destination = {};
}

template <typename T>
void CudaScorer<T>::start(Slot& slot, std::span<const ScoreWindow> batch, std::span<float> nll) {
  size_t length = batch[0].inputs.size(), needed = batch[0].targets.size();
  uint16_t *tokens = slot.host_tokens.data(), *targets = slot.host_targets.data();
  size_t step = common_step(batch);
  for (const ScoreWindow& window : batch) {
    // Of overlapping windows, only what the one before did not have.
    size_t known = &window == &batch[0] ? 0 : length - step;
    tokens = std::ranges::copy(window.inputs.subspan(known), tokens).out;
    targets = std::ranges::copy(window.targets, targets).out;
  }
  size_t token_bytes = static_cast<size_t>(tokens - slot.host_tokens.data()) * sizeof(uint16_t),
         target_bytes = nll.size() * sizeof(uint16_t);
  check_cuda(
      cudaMemcpyAsync(slot.tokens.data(), slot.host_tokens.data(), token_bytes, cudaMemcpyHostToDevice, stream_));
  check_cuda(
      cudaMemcpyAsync(slot.targets.data(), slot.host_targets.data(), target_bytes, cudaMemcpyHostToDevice, stream_));
  CudaBatch shape{{slot.tokens.data(), static_cast<int64_t>(step)},
                  static_cast<int>(batch.size()),
                  static_cast<int>(length),
                  static_cast<int>(needed),
                  zero_.data()};
  forward_.run(shape, cache_, stream_);
  forward_.loss(slot.targets.data(), slot.nll.data(), stream_);
  check_cuda(cudaMemcpyAsync(slot.host_nll.data(), slot.nll.data(), nll.size_bytes(), cudaMemcpyDeviceToHost, stream_));
  check_cuda(cudaEventRecord(slot.done, stream_));
  slot.destination = nll;
}

template <typename T>
void CudaScorer<T>::score(std::span<const ScoreWindow> windows, std::span<float> nll) {
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
void CudaScorer<T>::log_probabilities(std::span<const uint16_t> inputs, MatrixView out) {
  DeviceArray<uint16_t> tokens(inputs);
  CudaBatch shape{{tokens.data(), 0}, 1, static_cast<int>(inputs.size()), static_cast<int>(out.rows), zero_.data()};
  forward_.run(shape, cache_, stream_);
  DeviceArray<float> rows(out.rows * forward_.logits_stride());
  forward_.log_probabilities(rows.data(), stream_);
  check_cuda(cudaMemcpy2DAsync(out.data, static_cast<size_t>(out.stride) * sizeof(float), rows.data(),
                               static_cast<size_t>(forward_.logits_stride()) * sizeof(float),
                               static_cast<size_t>(out.cols) * sizeof(float), static_cast<size_t>(out.rows),
                               cudaMemcpyDeviceToHost, stream_));
  stream_.wait();
}

template <typename T>
void CudaScorer<T>::observe(std::span<const uint16_t> tokens, int64_t sequences, int64_t length, int64_t stride,
                            CudaInputObserver<T>& observer) {
  DeviceArray<uint16_t> all(tokens);
  for (int64_t first = 0; first < sequences; first += windows_) {
    CudaBatch shape{{all.data() + first * stride, stride},
                    static_cast<int>(std::min(windows_, sequences - first)),
                    static_cast<int>(length),
                    static_cast<int>(length),
                    zero_.data()};
    forward_.run(shape, cache_, stream_, &observer);
  }
  stream_.wait();
}

template class CudaScorer<float>;
template class CudaScorer<__nv_bfloat16>;

}  // namespace thimble
