// cuda_loss_statistics.cu: forward and backward passes on CUDA devices, part by part, with CudaFisherCollector
// listening to the gradients and CudaHessianCollector to the input of the head.
#include "gptq/statistics/cuda_loss_statistics.h"

#include <algorithm>
#include <memory>

#include "gptq/statistics/fisher.cuh"
#include "gptq/statistics/hessian.cuh"
#include "gptq/statistics/statistics_sum.h"
#include "runtime/cuda/cuda_gradient_pass.cuh"
#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/kernels/cuda_devices.h"

namespace thimble {
namespace {

// One device's share of the parts; on the current device.
class PartCollector {
 public:
  PartCollector(const Weights& weights, const TokenSequences& sequences, int64_t batch, Progress& progress)
      : weights_(weights, {}, cuda_plain_options(sizeof(float))),
        sequences_(sequences),
        batch_(batch),
        progress_(progress) {}

  LossStatistics collect(Share part) {
    LossStatistics collected = with_smaller_batches(batch_, [&](int64_t batch) {
      if (batch != batch_) pass_.reset();  // with its memory
      batch_ = batch;
      return run_part(part);
    });
    progress_.advance(static_cast<int64_t>(part.size()));
    return collected;
  }

 private:
  LossStatistics run_part(Share part) {
    if (!pass_)
      pass_ = std::make_unique<CudaGradientPass>(weights_, loss_statistics_options(), sequences_.length, batch_,
                                                 sequences_.length - 1);
    auto first = static_cast<int64_t>(part.begin), end = static_cast<int64_t>(part.end);
    CudaFisherCollector fisher(weights_.network(), first, pass_->column_dots());
    CudaHessianCollector head(kMostGramBytes, first);
    for (int64_t sequence = first; sequence < end; sequence += batch_)
      run_batch(sequence, {std::min(batch_, end - sequence), sequences_.length - 1}, fisher, head);
    LossStatistics statistics = std::move(fisher).finish(pass_->stream());
    statistics.head = std::move(head).finish();
    return statistics;
  }

  void run_batch(int64_t first, const BatchShape& batch, CudaFisherCollector& fisher, CudaHessianCollector& head) {
    int64_t length = sequences_.length;
    auto tokens = std::span(sequences_.tokens)
                      .subspan(static_cast<size_t>(first * length), static_cast<size_t>(batch.sequences * length));
    pass_->forward(tokens, length, batch);
    const Network& network = weights_.network();
    const std::string names[] = {network.matrix(network.head.weight).name};
    const ConstCudaView input = pass_->head_input();
    head.add(names, input.data, input.stride, batch.sequences, batch.positions, input.columns, pass_->stream());
    std::vector<int32_t> next;
    for (int64_t s = 0; s < batch.sequences; ++s) {
      auto of_sequence = tokens.subspan(static_cast<size_t>(s * length + 1), static_cast<size_t>(batch.positions));
      next.insert(next.end(), of_sequence.begin(), of_sequence.end());
    }
    DeviceArray<int32_t> targets{std::span<const int32_t>(next)};
    pass_->backward(CudaTargets::next_tokens(targets.data()), fisher, nullptr);
    fisher.end_batch(batch);
    check_cuda(cudaStreamSynchronize(pass_->stream()));  // `targets` goes
  }

  CudaNetworkWeights<float> weights_;
  const TokenSequences& sequences_;
  int64_t batch_;
  Progress& progress_;
  std::unique_ptr<CudaGradientPass> pass_;
};

int64_t planned_batch(const Network& network, const Device& device, const TokenSequences& sequences, int ordinal) {
  uint64_t usable = usable_memory(CudaPlace(ordinal, device.memory_limit_bytes));
  Share last = hessian_part(sequences.count, hessian_part_count(sequences.count) - 1);  // none is larger
  return plan_gradients(network, sequences.length, static_cast<int64_t>(last.size()), usable).batch;
}

}  // namespace

LossStatistics collect_loss_statistics_cuda(const std::shared_ptr<const Weights>& weights, const Device& device,
                                            const TokenSequences& sequences, Progress& progress) {
  size_t parts = hessian_part_count(sequences.count), devices = device.ordinals.size();
  progress.begin("collecting gradients", sequences.count, "sequences");
  std::vector<CalibrationStatistics> of_parts(parts);
  run_in_threads(devices, [&](size_t d) {
    Share share = share_of(parts, d, devices);
    if (share.size() == 0) return;
    DeviceScope scope(device.ordinals[d]);
    PartCollector collector(*weights, sequences,
                            planned_batch(*weights->network, device, sequences, device.ordinals[d]), progress);
    for (size_t part = share.begin; part < share.end; ++part)
      of_parts[part].loss = collector.collect(hessian_part(sequences.count, part));
  });
  StatisticsSum sum;
  for (const CalibrationStatistics& part : of_parts) sum.add(part);
  progress.end();
  return std::move(sum).finish().loss;
}

}  // namespace thimble
