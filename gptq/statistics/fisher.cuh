// fisher.cuh: FisherCollector for gradients in device memory. Squares are summed in float64 over pieces of sequences,
// these in order: the same bits however the sequences are grouped into batches.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "gptq/statistics/fisher.h"
#include "runtime/cuda/cuda_gradient_pass.cuh"

namespace thimble {

class CudaFisherCollector final : public CudaGradientObserver {
 public:
  // `first_sequence`: the number in errors of the first sequence. `dots` lends its memory; both must
  // outlive the object.
  CudaFisherCollector(const Network& network, int64_t first_sequence, CudaColumnDots& dots);

  void on_output_gradient(const std::string& weight, ConstCudaView gradient, ConstCudaView output,
                          const BatchShape& batch, cudaStream_t stream) override;
  void on_lookup_gradient(const std::string& table, std::span<const int32_t> rows, ConstCudaView gradient,
                          const BatchShape& batch, cudaStream_t stream) override;
  // After each batch.
  void end_batch(const BatchShape& batch) { sequence_ += batch.sequences; }

  // Waits for the stream. All but the head's Hessian. No tokens at all is an Error; so is a gradient that was not
  // finite, which names matrix, sequence, position and output. The collector is spent afterwards.
  LossStatistics finish(cudaStream_t stream) &&;

 private:
  struct Sum {
    std::string name;
    bool is_lookup = false;
    int64_t columns = 0, positions = 0, token_count = 0;
    DeviceArray<double> squares;
    DeviceArray<unsigned long long> first_bad;
  };
  void add_squares(const std::string& name, bool is_lookup, ConstCudaView gradient, const BatchShape& batch,
                   cudaStream_t stream);
  void require_finite(cudaStream_t stream) const;

  const Network& network_;
  int64_t sequence_;
  CudaColumnDots& dots_;
  std::vector<Sum> sums_;  // in the order of the pass
  RowCounts row_counts_;
};

}  // namespace thimble
