// guarded_matrix.h: matrices for kernel tests: rows apart from each other, with NaN around and between them, so that a
// read outside a view poisons the result and a write outside it is found.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

template <typename T>
class BasicGuardedMatrix {
 public:
  // All elements NaN, the view's own too: an operation must write every element of its output.
  BasicGuardedMatrix(int64_t rows, int64_t cols)
      : rows_(rows),
        cols_(cols),
        values_(static_cast<size_t>((rows + 2) * (cols + kGap)), std::numeric_limits<T>::quiet_NaN()) {}

  BasicMatrixView<T> view() { return {values_.data() + cols_ + kGap, rows_, cols_, cols_ + kGap}; }
  BasicMatrixView<const T> view() const { return {values_.data() + cols_ + kGap, rows_, cols_, cols_ + kGap}; }
  operator BasicMatrixView<T>() { return view(); }
  operator BasicMatrixView<const T>() const { return view(); }
  T& operator()(int64_t r, int64_t c) { return view().row(r)[c]; }
  const T& operator()(int64_t r, int64_t c) const { return view().row(r)[c]; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

  // Sets element (r, c) to value(r, c).
  BasicGuardedMatrix& fill(const std::function<double(int64_t, int64_t)>& value) {
    for (int64_t r = 0; r < rows_; ++r)
      for (int64_t c = 0; c < cols_; ++c) (*this)(r, c) = static_cast<T>(value(r, c));
    return *this;
  }
  // Uniform in [-scale, scale), the same for the same seed.
  BasicGuardedMatrix& fill_random(uint64_t seed, double scale = 1) {
    return fill([&](int64_t r, int64_t c) {
      return scale * (2 * uniform_at(seed, static_cast<uint64_t>(r), static_cast<uint64_t>(c)) - 1);
    });
  }

  // Are all elements outside the view still NaN?
  bool guards_intact() const {
    for (size_t i = 0; i < values_.size(); ++i) {
      auto row = static_cast<int64_t>(i) / (cols_ + kGap) - 1, col = static_cast<int64_t>(i) % (cols_ + kGap);
      bool inside = row >= 0 && row < rows_ && col < cols_;
      if (!inside && !std::isnan(values_[i])) return false;
    }
    return true;
  }

  bool operator==(const BasicGuardedMatrix& other) const {
    for (int64_t r = 0; r < rows_; ++r)
      for (int64_t c = 0; c < cols_; ++c)
        if ((*this)(r, c) != other(r, c)) return false;
    return rows_ == other.rows_ && cols_ == other.cols_;
  }

 private:
  static constexpr int64_t kGap = 3;  // odd, so that rows are not aligned
  int64_t rows_, cols_;
  std::vector<T> values_;
};

using GuardedMatrix = BasicGuardedMatrix<float>;
using GuardedMatrixF64 = BasicGuardedMatrix<double>;

// Half a unit in the last place of 1.
constexpr double kFloatRounding = 0x1p-24;
constexpr double kDoubleRounding = 0x1p-53;

// Every element within tolerance(r, c) of expected(r, c), and nothing written outside.
template <typename T>
void expect_close(const BasicGuardedMatrix<T>& found, const std::function<double(int64_t, int64_t)>& expected,
                  const std::function<double(int64_t, int64_t)>& tolerance) {
  EXPECT_TRUE(found.guards_intact());
  for (int64_t r = 0; r < found.rows(); ++r)
    for (int64_t c = 0; c < found.cols(); ++c) {
      double want = expected(r, c), got = static_cast<double>(found(r, c));
      ASSERT_LE(std::abs(got - want), tolerance(r, c)) << "row " << r << " column " << c << ": " << got << ", " << want;
    }
}

}  // namespace thimble
