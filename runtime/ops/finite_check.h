// finite_check.h: where the first NaN or infinity is: in a file's tensors, or in what flows through a model.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "runtime/ops/observers.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

struct NonFinite {
  std::string tensor;  // its name; of activations, the matrices that they are the input of
  Shape index;         // row-major position
  double value = 0;

  std::string text() const;  // "tensor 'tok_emb.weight' is nan at [3, 17]"
};

// The first in the order of names, then of elements. Integers are always finite.
std::optional<NonFinite> find_non_finite(const TensorMap& tensors);

// Keeps the first that a forward pass shows it.
class FiniteObserver final : public LinearObserver {
 public:
  void on_linear_input(std::span<const std::string> weights, ConstMatrixView input) override;
  const std::optional<NonFinite>& found() const { return found_; }

 private:
  std::optional<NonFinite> found_;
};

// "input of a.weight, b.weight"
std::string linear_input_name(std::span<const std::string> weights);

}  // namespace thimble
