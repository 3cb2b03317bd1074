// symmetric_matrix.h: a symmetric float64 matrix that stores its lower triangle only, row after row.
// Half the memory of a square: every Hessian of a model is alive at once while calibration text runs through it.
#pragma once

#include <cassert>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

namespace thimble {

class SymmetricMatrix {
 public:
  SymmetricMatrix() = default;
  // All zeros.
  explicit SymmetricMatrix(int64_t size) : size_(size), values_(static_cast<size_t>(size * (size + 1) / 2)) {}

  int64_t size() const { return size_; }

  double operator()(int64_t i, int64_t j) const { return i >= j ? lower_row(i)[j] : lower_row(j)[i]; }

  // Columns 0..i of row i.
  double* lower_row(int64_t i) { return values_.data() + offset(i); }
  const double* lower_row(int64_t i) const { return values_.data() + offset(i); }

  // The packed lower triangle: size * (size + 1) / 2 values.
  std::span<double> values() { return values_; }
  std::span<const double> values() const { return values_; }

  std::vector<double> diagonal() const {
    std::vector<double> diagonal;
    for (int64_t i = 0; i < size_; ++i) diagonal.push_back(lower_row(i)[i]);
    return diagonal;
  }
  double trace() const {
    double sum = 0;
    for (int64_t i = 0; i < size_; ++i) sum += lower_row(i)[i];
    return sum;
  }
  double mean_diagonal() const { return size_ == 0 ? 0 : trace() / static_cast<double>(size_); }

  bool operator==(const SymmetricMatrix&) const = default;

  // What it consists of, for who keeps it and reads it back, and whether that belongs together.
  friend auto members(SymmetricMatrix& matrix) { return std::tie(matrix.size_, matrix.values_); }
  friend bool is_consistent(const SymmetricMatrix& matrix) {
    const auto size = static_cast<uint64_t>(matrix.size_);
    return matrix.size_ >= 0 && size < (uint64_t{1} << 31) && matrix.values_.size() == size * (size + 1) / 2;
  }

 private:
  int64_t offset(int64_t i) const {
    assert(i >= 0 && i < size_);
    return i * (i + 1) / 2;
  }

  int64_t size_ = 0;
  std::vector<double> values_;
};

}  // namespace thimble
