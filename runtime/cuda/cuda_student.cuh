// cuda_student.cuh: the student of a DivergencePass on a CUDA device, for who changes its matrices there.
#pragma once

#include <string>

#include "runtime/cuda/kernels/cuda_float_matrix.cuh"

namespace thimble {

class CudaStudent {
 public:
  virtual ~CudaStudent() = default;
  virtual int ordinal() const = 0;
  // The matrix (R, K) that the student had at first, or as it was changed since: without gains. Between two calls of
  // the pass nobody reads it; the next DivergencePass::set() makes the student of it.
  virtual CudaView matrix(const std::string& name) = 0;
  // By a matrix (R, K), as gradients() has summed it last: until it does again.
  virtual ConstCudaView gradient(const std::string& name) const = 0;
};

}  // namespace thimble
