// cuda_loss_statistics.cu: forward and backward passes on CUDA devices, part by part, with CudaFisherCollector
// listening to the gradients and CudaHessianCollector to the input of the head.
#include "gptq/statistics/cuda_loss_statistics.h"

#include <algorithm>
#include <memory>

#include "gptq/statistics/fisher.cuh"
#include "gptq/statistics/hessian.cuh"
#include "gptq/statistics/statistics_sum.h"
#include "runtime/base/memory_plan.h"
#include "runtime/cuda/cuda_gradients.cuh"
#include "runtime/cuda/kernels/cuda_devices.h"
#include "runtime/families/golf/golf_layout.h"

namespace thimble {
namespace {

// One device's share of the parts; on the current device.
class PartCollector {
 public:
  PartCollector(const Model& model, const TokenSequences& sequences, int64_t batch, Progress& progress)
      : model_(model), sequences_(sequences), batch_(batch), progress_(progress) {}

  LossStatistics collect(Share part) {
    LossStatistics collected = with_smaller_batches(batch_, [&](int64_t batch) {
      if (batch != batch_) gradients_.reset();  // with its memory
      batch_ = batch;
      return run_part(part);
    });
    progress_.advance(static_cast<int64_t>(part.size()));
    return collected;
  }

 private:
  LossStatistics run_part(Share part) {
    if (!gradients_) gradients_ = std::make_unique<CudaGradients>(model_, sequences_.length);
    auto first = static_cast<int64_t>(part.begin), end = static_cast<int64_t>(part.end);
    CudaFisherCollector fisher(model_.config, first, gradients_->column_dots());
    CudaHessianCollector head(kMostGramBytes, first);
    for (int64_t sequence = first; sequence < end; sequence += batch_)
      run_batch(sequence, {std::min(batch_, end - sequence), sequences_.length - 1}, fisher, head);
    LossStatistics statistics = std::move(fisher).finish(gradients_->stream());
    statistics.head = std::move(head).finish();
    return statistics;
  }

  void run_batch(int64_t first, const BatchShape& batch, CudaFisherCollector& fisher, CudaHessianCollector& head) {
    int64_t length = sequences_.length;
    auto tokens = std::span(sequences_.tokens)
                      .subspan(static_cast<size_t>(first * length), static_cast<size_t>(batch.sequences * length));
    gradients_->forward(tokens, length, batch);
    const std::string names[] = {head_name(model_.config)};
    head.add(names, gradients_->head_input().data, model_.config.model_dim, batch.sequences, batch.positions,
             model_.config.model_dim, gradients_->stream());
    std::vector<int32_t> next;
    for (int64_t s = 0; s < batch.sequences; ++s) {
      auto of_sequence = tokens.subspan(static_cast<size_t>(s * length + 1), static_cast<size_t>(batch.positions));
      next.insert(next.end(), of_sequence.begin(), of_sequence.end());
    }
    DeviceArray<int32_t> targets{std::span<const int32_t>(next)};
    gradients_->backward(CudaTargets::next_tokens(targets.data()), fisher, nullptr);
    fisher.end_batch(batch);
    check_cuda(cudaStreamSynchronize(gradients_->stream()));  // `targets` goes
  }

  CudaFloatModel model_;
  const TokenSequences& sequences_;
  int64_t batch_;
  Progress& progress_;
  std::unique_ptr<CudaGradients> gradients_;
};

int64_t planned_batch(const ModelConfig& config, const Device& device, const TokenSequences& sequences, int ordinal) {
  uint64_t usable = usable_memory(cuda_free_memory(ordinal), device.memory_limit_bytes);
  Share last = hessian_part(sequences.count, hessian_part_count(sequences.count) - 1);  // none is larger
  return plan_gradients(config, sequences.length, static_cast<int64_t>(last.size()), usable).batch;
}

}  // namespace

LossStatistics collect_loss_statistics_cuda(const Model& model, const Device& device, const TokenSequences& sequences,
                                            Progress& progress) {
  size_t parts = hessian_part_count(sequences.count), devices = device.ordinals.size();
  progress.begin("collecting gradients", sequences.count, "sequences");
  std::vector<CalibrationStatistics> of_parts(parts);
  run_in_threads(devices, [&](size_t d) {
    Share share = share_of(parts, d, devices);
    if (share.size() == 0) return;
    DeviceScope scope(device.ordinals[d]);
    PartCollector collector(model, sequences, planned_batch(model.config, device, sequences, device.ordinals[d]),
                            progress);
    for (size_t part = share.begin; part < share.end; ++part)
      of_parts[part].loss = collector.collect(hessian_part(sequences.count, part));
  });
  StatisticsSum sum;
  for (const CalibrationStatistics& part : of_parts) sum.add(part);
  progress.end();
  return std::move(sum).finish().loss;
}

}  // namespace thimble
