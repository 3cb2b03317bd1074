// backend_matrix.h: a matrix of activations in memory that its backend allocated. What a host may read after
// Backend::finish().
#pragma once

#include <algorithm>
#include <memory>
#include <span>

#include "runtime/cpu/backend.h"

namespace thimble {

class BackendMatrix {
 public:
  // Contents become zero when the element count changes; otherwise they are kept.
  void resize(Backend& backend, int64_t rows, int64_t cols) {
    if (!memory_ || rows * cols != rows_ * cols_) memory_ = backend.allocate(rows * cols);
    rows_ = rows;
    cols_ = cols;
  }

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  std::span<float> values() { return {memory_.get(), static_cast<size_t>(rows_ * cols_)}; }
  MatrixView view() { return {memory_.get(), rows_, cols_}; }
  ConstMatrixView view() const { return {memory_.get(), rows_, cols_}; }
  operator MatrixView() { return view(); }
  operator ConstMatrixView() const { return view(); }

 private:
  int64_t rows_ = 0, cols_ = 0;
  std::shared_ptr<float> memory_;
};

}  // namespace thimble
