// finite_check.cpp: see finite_check.h.
#include "runtime/ops/finite_check.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>

namespace thimble {
namespace {

// Row-major coordinates of element `i`.
Shape place_of(const Shape& shape, int64_t i) {
  Shape index(shape.size());
  for (size_t axis = shape.size(); axis-- > 0;) {
    index[axis] = i % shape[axis];
    i /= shape[axis];
  }
  return index;
}

// Converted a piece at a time, so that no tensor is held twice. F64 is looked at as it is: float32 could overflow.
std::optional<std::pair<int64_t, double>> first_in(const TensorView& tensor) {
  constexpr size_t kPiece = 1 << 16;
  const size_t bytes = dtype_bytes(tensor.dtype), count = tensor.bytes.size() / bytes;
  for (size_t first = 0; first < count; first += kPiece) {
    Bytes piece = tensor.bytes.subspan(first * bytes, std::min(kPiece, count - first) * bytes);
    if (tensor.dtype == DType::kF64) {
      ByteCursor cursor(piece, "tensor");
      for (size_t i = first; i < first + piece.size() / bytes; ++i)
        if (double value = std::bit_cast<double>(cursor.read<uint64_t>("element")); !std::isfinite(value))
          return std::pair(static_cast<int64_t>(i), value);
      continue;
    }
    std::vector<float> values = to_float32(tensor.dtype, piece);
    for (size_t i = 0; i < values.size(); ++i)
      if (!std::isfinite(values[i])) return std::pair(static_cast<int64_t>(first + i), double{values[i]});
  }
  return std::nullopt;
}

}  // namespace

std::string NonFinite::text() const { return fmt::format("{} is {} at {}", tensor, value, shape_text(index)); }

std::optional<NonFinite> find_non_finite(const TensorMap& tensors) {
  for (const auto& [name, tensor] : tensors) {
    if (!is_floating(tensor.dtype)) continue;
    if (auto found = first_in(tensor))
      return NonFinite{"tensor '" + name + "'", place_of(tensor.shape, found->first), found->second};
  }
  return std::nullopt;
}

void FiniteObserver::on_linear_input(std::span<const std::string> weights, ConstMatrixView input) {
  if (found_) return;
  for (int64_t r = 0; r < input.rows; ++r)
    for (int64_t c = 0; c < input.cols; ++c)
      if (!std::isfinite(input.row(r)[c])) {
        found_ = NonFinite{linear_input_name(weights), {r, c}, input.row(r)[c]};
        return;
      }
}

std::string linear_input_name(std::span<const std::string> weights) {
  std::string name;
  for (const std::string& weight : weights) name += (name.empty() ? "the input of " : ", ") + weight;
  return name;
}

}  // namespace thimble
