// factor_batch.cu: see factor_batch.cuh.
#include <numeric>

#include "gptq/factor/factor_batch.cuh"

namespace thimble {

FactorBatch::FactorBatch(std::vector<FactorItem> items, int64_t padded_columns, Arena& arena)
    : items_(std::move(items)), padded_columns_(padded_columns) {
  const auto count = static_cast<int64_t>(items_.size());
  device_jobs_ = arena.take<CholeskyJob>(count);
  failed_ = arena.take<int32_t>(count);
  for (size_t i = 0; i < items_.size(); ++i) {
    const HessianFactor& factor = *items_[i].unfactored;
    const auto columns = static_cast<int64_t>(factor.order.size());
    dampings_.push_back(factor.damping);
    hessians_.push_back(arena.take<double>(columns * (columns + 1) / 2));
    orders_.push_back(arena.take<int32_t>(columns));
    jobs_.push_back({hessians_.back(), orders_.back(), static_cast<int32_t>(columns),
                     static_cast<int32_t>(factor.order.size() - factor.dead_columns.size()), 0,
                     arena.take<double>(padded_columns * padded_columns),
                     arena.take<double>(padded_columns * padded_columns), arena.take<double>(padded_columns),
                     failed_ ? failed_ + i : nullptr});
  }
}

void FactorBatch::factor(cudaStream_t stream, const std::function<void()>& meanwhile) {
  // Everything that these uploads read lives until the end of this function, which waits for the stream.
  std::vector<std::vector<int32_t>> orders;
  for (const FactorItem& item : items_)
    orders.emplace_back(item.unfactored->order.begin(), item.unfactored->order.end());
  for (size_t i = 0; i < items_.size(); ++i) {
    upload(orders_[i], std::span<const int32_t>(orders[i]), stream);
    upload(hessians_[i], items_[i].hessian->values(), stream);
  }
  std::vector<size_t> pending(items_.size());
  std::iota(pending.begin(), pending.end(), size_t{0});
  for (int attempt = 1; !pending.empty(); ++attempt) {
    std::vector<CholeskyJob> batch;
    for (size_t i : pending) {
      jobs_[i].added = dampings_[i] * items_[i].hessian->mean_diagonal();
      batch.push_back(jobs_[i]);
    }
    upload(device_jobs_, std::span<const CholeskyJob>(batch), stream);
    inverse_upper_cholesky(device_jobs_, static_cast<int64_t>(batch.size()), padded_columns_, stream);
    if (attempt == 1) meanwhile();
    std::vector<int32_t> failed(items_.size());
    download(std::span(failed), failed_, stream);
    check_cuda(cudaStreamSynchronize(stream));
    std::erase_if(pending, [&](size_t i) { return failed[i] == 0; });
    for (size_t i : pending) {
      HessianFactor trial;
      trial.damping = dampings_[i];
      raise_damping(trial, attempt, *items_[i].name);
      dampings_[i] = trial.damping;
    }
  }
}

std::vector<double> FactorBatch::diagonal(size_t i, cudaStream_t stream) const {
  std::vector<double> diagonal(static_cast<size_t>(jobs_[i].columns));
  check_cuda(cudaMemcpy2DAsync(diagonal.data(), sizeof(double), jobs_[i].upper,
                               static_cast<size_t>(padded_columns_ + 1) * sizeof(double), sizeof(double),
                               diagonal.size(), cudaMemcpyDeviceToHost, stream));
  check_cuda(cudaStreamSynchronize(stream));
  return diagonal;
}

}  // namespace thimble
