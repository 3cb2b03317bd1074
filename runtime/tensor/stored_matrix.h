// stored_matrix.h: matrices of weights in the type that they are stored in, whose values are float32: F32, F16, BF16,
// or integer codes with factors of rows and columns. Whoever reads a value widens it, which is exact, so that a model
// takes no more memory than its file. Of R rows and K columns:
//   value(r, k) = stored(r, k)                                            F32, F16, BF16
//   value(r, k) = ((code(r, k) * row[r]) * column[k]) * gain[r]           I8, I16; each product rounded to float32
#pragma once

#include <memory>
#include <vector>

#include "runtime/tensor/matrix.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

// Part of one that another keeps. `data` need not be aligned, but for F32.
struct StoredMatrixView {
  DType dtype = DType::kF32;
  const std::byte* data = nullptr;  // row r begins at element r * stride
  int64_t rows = 0, cols = 0, stride = 0;
  const float *row_factors = nullptr, *column_factors = nullptr, *gains = nullptr;  // of I8 and I16

  StoredMatrixView() = default;
  template <typename View>
  requires std::is_convertible_v<const View&, ConstMatrixView> StoredMatrixView(const View& values)
      : StoredMatrixView(ConstMatrixView(values), nullptr) {}

  bool is_float32() const { return dtype == DType::kF32; }
  ConstMatrixView float32() const {
    assert(is_float32());
    return {reinterpret_cast<const float*>(data), rows, cols, stride};
  }
  StoredMatrixView block_rows(int64_t first, int64_t count) const;
  StoredMatrixView block_cols(int64_t first, int64_t count) const;
  // All values of a row; or of the whole.
  void read_row(int64_t r, float* out) const;
  void read(MatrixView out) const;

 private:
  StoredMatrixView(ConstMatrixView values, std::nullptr_t)
      : data(reinterpret_cast<const std::byte*>(values.data)),
        rows(values.rows),
        cols(values.cols),
        stride(values.stride) {}
};

// The whole. Never changes; copies share what they hold.
class StoredMatrix {
 public:
  StoredMatrix() = default;
  StoredMatrix(Matrix values);
  // The elements of a tensor of two dimensions, or of more with the last ones taken together. F32, F16 and BF16 stay
  // where they lie, for as long as anybody holds `owner`; others are converted.
  StoredMatrix(const TensorView& tensor, int64_t rows, int64_t cols, std::shared_ptr<const void> owner);
  // The same, of a tensor of its own.
  StoredMatrix(std::shared_ptr<const Tensor> tensor, int64_t rows, int64_t cols);
  // Codes (R, K) with factors of rows (R) and columns (K).
  StoredMatrix(std::vector<int8_t> codes, std::vector<float> row_factors, std::vector<float> column_factors);
  StoredMatrix(std::vector<int16_t> codes, std::vector<float> row_factors, std::vector<float> column_factors);

  int64_t rows() const { return view_.rows; }
  int64_t cols() const { return view_.cols; }
  DType dtype() const { return view_.dtype; }
  const StoredMatrixView& view() const { return view_; }
  operator const StoredMatrixView&() const { return view_; }
  // Bytes in memory of its own: none where the elements lie in a tensor that another owns.
  uint64_t owned_bytes() const { return owned_bytes_; }
  // The values.
  Matrix widened() const;

  // The rows of a matrix without gains times `gains` (R), each value rounded to float32. Codes are shared.
  StoredMatrix with_gains(std::vector<float> gains) const;

 private:
  template <typename Code>
  void hold_codes(std::vector<Code> codes, std::vector<float> row_factors, std::vector<float> column_factors);

  StoredMatrixView view_;
  uint64_t owned_bytes_ = 0;
  std::shared_ptr<const void> values_, factors_;
  std::shared_ptr<const std::vector<float>> gains_;
};

}  // namespace thimble
