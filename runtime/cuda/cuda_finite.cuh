// cuda_finite.cuh: finds the first NaN or infinity among the inputs of linear layers, in device memory.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_batch.cuh"
#include "runtime/ops/finite_check.h"

namespace thimble {

// Looks at every input of one pass over one sequence.
template <typename T>
class CudaFiniteObserver final : public CudaInputObserver<T> {
 public:
  // `inputs`: the most that a pass may show.
  explicit CudaFiniteObserver(int64_t inputs);
  void on_linear_input(std::span<const std::string> weights, const T* x, int sequences, int positions, int columns,
                       cudaStream_t stream) override;
  // Of the first input that has any, the first element. After the pass has ended.
  std::optional<NonFinite> found() const;

 private:
  struct Input {
    std::string name;
    int64_t columns;
  };
  std::vector<Input> inputs_;
  DeviceArray<unsigned long long> first_;  // (inputs): index of the first element that is not finite; all ones: none
  DeviceArray<float> value_;               // (inputs): of that element
};

}  // namespace thimble
