// factor_diagonals.cu: factor_diagonals_cuda(), in waves (device_waves.cuh) in which there is nothing to solve.
#include "gptq/factor/device_waves.cuh"

namespace thimble {
namespace {

using Diagonals = std::vector<std::vector<double>>;  // by job

class WaveDiagonals {
 public:
  WaveDiagonals(Diagonals* diagonals, const Wave& wave, const FactorBatch& factors, int64_t, Arena&)
      : diagonals_(diagonals), jobs_(wave.hessians), factors_(factors) {}

  static int64_t most_slots() { return 1; }
  void upload(cudaStream_t) const {}
  void solve(cudaStream_t) const {
    for (size_t i = 0; i < jobs_.size(); ++i) (*diagonals_)[jobs_[i]] = factors_.upper_diagonal(i);
  }

 private:
  Diagonals* diagonals_;
  std::vector<size_t> jobs_;
  const FactorBatch& factors_;
};

}  // namespace

std::vector<std::vector<double>> factor_diagonals_cuda(std::span<const FactorJob> jobs, const CudaPlace& place) {
  constexpr size_t kWaveBytes = size_t{1} << 30;
  Diagonals diagonals(jobs.size());
  solve_in_waves<WaveDiagonals>(&diagonals, jobs, kWaveBytes, place);
  return diagonals;
}

}  // namespace thimble
