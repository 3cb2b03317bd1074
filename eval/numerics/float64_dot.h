// float64_dot.h: the reference of a product's element, with what bounds are made of.
#pragma once

#include <cmath>
#include <cstdint>

namespace thimble {

struct Float64Dot {
  double sum = 0;        // of a(i) b(i), in index order
  double magnitude = 0;  // of |a(i) b(i)|
};

// Elements of float or double; products of floats are exact.
template <typename A, typename B>
Float64Dot float64_dot(const A* a, const B* b, int64_t count) {
  Float64Dot dot;
  for (int64_t i = 0; i < count; ++i) {
    const double product = double{a[i]} * double{b[i]};
    dot.sum += product;
    dot.magnitude += std::abs(product);
  }
  return dot;
}

}  // namespace thimble
