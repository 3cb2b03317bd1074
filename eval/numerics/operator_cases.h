// operator_cases.h: the inputs on which operators are checked: sizes and ranges that have broken such kernels before.
#pragma once

#include <string>
#include <vector>

#include "runtime/operators/operators.h"

namespace thimble {

enum class OperatorFill : uint8_t {
  kUniform,    // in [-range, range)
  kSubnormal,  // below the storage type's smallest normal number; codes with a tiny scale
  kOffset,     // range + uniform in [-1, 1): the mean is far larger than the deviation
  kOutlier,    // uniform in [-0.01, 0.01), and one element of each row is range
  kConstant,   // range everywhere
};

struct OperatorCase {
  int64_t rows = 0, cols = 0;
  OperatorFill fill = OperatorFill::kUniform;
  double range = 0;
  std::string shape_text() const;  // "4096 x 4096"
  std::string fill_text() const;   // "+-10", "subnormal", ...
};

// All cases, the one that speed is judged by (4096 x 4096) first.
std::vector<OperatorCase> operator_cases();

// Storage types an operator is checked with, and output types of each.
std::vector<DType> operator_inputs(Operator op);
std::vector<DType> operator_outputs(Operator op, DType in);

// Host memory that the pointers of call() lead into.
class OperatorInput {
 public:
  // Every element is a function of the seed and its index alone.
  OperatorInput(Operator op, DType in, const OperatorCase& shape, uint64_t seed);

  // A call that writes (rows, cols) of `out`, or (rows), to y.
  OperatorCall call(DType out, void* y) const;

 private:
  Operator op_;
  DType in_;
  int64_t rows_, cols_;
  ByteVector x_;
  std::vector<float> weight_, bias_, scale_;
  std::vector<int32_t> targets_;
};

// Bytes that a call has to read and to write, each once.
uint64_t operator_bytes(const OperatorCall& call);

}  // namespace thimble
