// fisher.cu: see fisher.cuh.
#include <algorithm>

#include "gptq/statistics/fisher.cuh"
#include "runtime/base/error.h"

namespace thimble {

CudaFisherCollector::CudaFisherCollector(const Network& network, int64_t first_sequence, CudaColumnDots& dots)
    : network_(network), sequence_(first_sequence), dots_(dots) {}

void CudaFisherCollector::add_squares(const std::string& name, bool is_lookup, ConstCudaView gradient,
                                      const BatchShape& batch, cudaStream_t stream) {
  auto found = std::ranges::find_if(sums_, [&](const Sum& s) { return s.name == name && s.is_lookup == is_lookup; });
  if (found == sums_.end()) {
    found = sums_.insert(sums_.end(), {name, is_lookup, gradient.columns, batch.positions, 0,
                                       DeviceArray<double>(gradient.columns), DeviceArray<unsigned long long>(1)});
    check_cuda(cudaMemsetAsync(found->squares.data(), 0, found->squares.bytes(), stream));
    check_cuda(cudaMemsetAsync(found->first_bad.data(), 0xff, found->first_bad.bytes(), stream));
  }
  if (found->columns != gradient.columns || found->positions != batch.positions)
    throw Error(ExitCode::kInternal, "layer '" + name + "': the shape of its gradients changed");
  dots_.add(gradient, gradient, batch, found->squares.data(), {found->first_bad.data(), sequence_}, stream);
  found->token_count += gradient.rows;
}

void CudaFisherCollector::on_output_gradient(const std::string& weight, ConstCudaView gradient, ConstCudaView,
                                             const BatchShape& batch, cudaStream_t stream) {
  add_squares(weight, /*is_lookup=*/false, gradient, batch, stream);
}

void CudaFisherCollector::on_lookup_gradient(const std::string& table, std::span<const int32_t> rows,
                                             ConstCudaView gradient, const BatchShape& batch, cudaStream_t stream) {
  add_squares(table, /*is_lookup=*/true, gradient, batch, stream);
  std::vector<int64_t>& counts = row_counts_[table];
  counts.resize(static_cast<size_t>(std::ranges::find(network_.matrices, table, &MatrixUse::name)->rows));
  for (int32_t row : rows) ++counts[static_cast<size_t>(row)];
}

// Of the matrices with such gradients, the first one that the pass comes to in the first sequence that has any.
void CudaFisherCollector::require_finite(cudaStream_t stream) const {
  struct Place {
    int64_t sequence, column, position;
  };
  const Sum* first = nullptr;
  Place place{};
  for (const Sum& sum : sums_) {
    unsigned long long bad = 0;
    check_cuda(cudaMemcpyAsync(&bad, sum.first_bad.data(), sizeof(bad), cudaMemcpyDeviceToHost, stream));
    check_cuda(cudaStreamSynchronize(stream));
    if (bad == CudaBadTerm::kNone) continue;
    auto number = static_cast<int64_t>(bad);
    Place found{number / sum.positions / sum.columns, number / sum.positions % sum.columns, number % sum.positions};
    if (first && place.sequence <= found.sequence) continue;
    first = &sum;
    place = found;
  }
  if (first)
    throw Error(ExitCode::kBadInput, "layer '" + first->name + "': the gradient is not finite at sequence " +
                                         std::to_string(place.sequence) + ", position " +
                                         std::to_string(place.position) + ", output " + std::to_string(place.column));
}

LossStatistics CudaFisherCollector::finish(cudaStream_t stream) && {
  if (sums_.empty()) throw Error(ExitCode::kBadInput, "no calibration tokens reached the loss");
  require_finite(stream);
  LossStatistics statistics;
  for (const Sum& sum : sums_) {
    Fisher& fisher = (sum.is_lookup ? statistics.lookup_fisher : statistics.output_fisher)[sum.name];
    fisher.token_count = sum.token_count;
    fisher.mean_square.resize(static_cast<size_t>(sum.columns));
    check_cuda(cudaMemcpyAsync(fisher.mean_square.data(), sum.squares.data(), sum.squares.bytes(),
                               cudaMemcpyDeviceToHost, stream));
    check_cuda(cudaStreamSynchronize(stream));
    for (double& value : fisher.mean_square) value /= static_cast<double>(sum.token_count);
  }
  statistics.row_counts = std::move(row_counts_);
  sums_.clear();
  return statistics;
}

}  // namespace thimble
