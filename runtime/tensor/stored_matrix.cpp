// stored_matrix.cpp: see stored_matrix.h.
#include "runtime/tensor/stored_matrix.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/parallel.h"

namespace thimble {
namespace {

template <typename Stored>
Stored stored_at(const std::byte* data, int64_t index) {
  Stored stored;
  std::memcpy(&stored, data + index * static_cast<int64_t>(sizeof(Stored)), sizeof(Stored));
  return stored;
}

bool is_code(DType dtype) { return dtype == DType::kI8 || dtype == DType::kI16; }

struct Factors {
  std::vector<float> rows, columns;
};

}  // namespace

StoredMatrixView StoredMatrixView::block_rows(int64_t first, int64_t count) const {
  assert(first >= 0 && first + count <= rows);
  StoredMatrixView block = *this;
  block.data += first * stride * static_cast<int64_t>(dtype_bytes(dtype));
  block.rows = count;
  if (row_factors) block.row_factors += first;
  if (gains) block.gains += first;
  return block;
}

StoredMatrixView StoredMatrixView::block_cols(int64_t first, int64_t count) const {
  assert(first >= 0 && first + count <= cols);
  StoredMatrixView block = *this;
  block.data += first * static_cast<int64_t>(dtype_bytes(dtype));
  block.cols = count;
  if (column_factors) block.column_factors += first;
  return block;
}

void StoredMatrixView::read_row(int64_t r, float* out) const {
  const int64_t first = r * stride;
  auto read_all = [&](auto convert) {
    for (int64_t k = 0; k < cols; ++k) out[k] = convert(first + k, k);
  };
  auto scaled = [&]<typename Code>(Code) {
    return [this, r](int64_t index, int64_t k) {
      return ((static_cast<float>(stored_at<Code>(data, index)) * row_factors[r]) * column_factors[k]) * gains[r];
    };
  };
  switch (dtype) {
    case DType::kF32: return read_all([this](int64_t index, int64_t) { return stored_at<float>(data, index); });
    case DType::kF16:
      return read_all([this](int64_t index, int64_t) { return float_from_fp16(stored_at<uint16_t>(data, index)); });
    case DType::kBF16:
      return read_all([this](int64_t index, int64_t) { return float_from_bf16(stored_at<uint16_t>(data, index)); });
    case DType::kI16: return read_all(scaled(int16_t{}));
    default: assert(dtype == DType::kI8); return read_all(scaled(int8_t{}));
  }
}

void StoredMatrixView::read(MatrixView out) const {
  assert(out.rows == rows && out.cols == cols);
  for_each_row(rows, cols, [&](int64_t r) { read_row(r, out.row(r)); });
}

StoredMatrix::StoredMatrix(Matrix values) {
  owned_bytes_ = values.values().size_bytes();
  const auto owner = std::make_shared<const Matrix>(std::move(values));
  view_ = *owner;
  values_ = owner;
}

StoredMatrix::StoredMatrix(const TensorView& tensor, int64_t rows, int64_t cols, std::shared_ptr<const void> owner) {
  assert(tensor.bytes.size() == static_cast<size_t>(rows * cols) * dtype_bytes(tensor.dtype));
  const bool is_aligned = reinterpret_cast<uintptr_t>(tensor.bytes.data()) % alignof(float) == 0;
  if (tensor.dtype == DType::kF16 || tensor.dtype == DType::kBF16 || (tensor.dtype == DType::kF32 && is_aligned)) {
    view_.dtype = tensor.dtype;
    view_.data = tensor.bytes.data();
    view_.rows = rows;
    view_.cols = view_.stride = cols;
    values_ = std::move(owner);
  } else {
    *this = StoredMatrix(Matrix(to_float32(tensor), rows, cols));
  }
}

StoredMatrix::StoredMatrix(std::shared_ptr<const Tensor> tensor, int64_t rows, int64_t cols)
    : StoredMatrix(tensor->view(), rows, cols, tensor) {
  if (values_ == tensor) owned_bytes_ = tensor->bytes.size();
}

StoredMatrix::StoredMatrix(std::vector<int8_t> codes, std::vector<float> row_factors,
                           std::vector<float> column_factors) {
  view_.dtype = DType::kI8;
  hold_codes(std::move(codes), std::move(row_factors), std::move(column_factors));
}

StoredMatrix::StoredMatrix(std::vector<int16_t> codes, std::vector<float> row_factors,
                           std::vector<float> column_factors) {
  view_.dtype = DType::kI16;
  hold_codes(std::move(codes), std::move(row_factors), std::move(column_factors));
}

template <typename Code>
void StoredMatrix::hold_codes(std::vector<Code> codes, std::vector<float> row_factors,
                              std::vector<float> column_factors) {
  assert(codes.size() == row_factors.size() * column_factors.size());
  const auto owner = std::make_shared<const std::vector<Code>>(std::move(codes));
  const auto factors = std::make_shared<const Factors>(Factors{std::move(row_factors), std::move(column_factors)});
  view_.data = reinterpret_cast<const std::byte*>(owner->data());
  view_.rows = static_cast<int64_t>(factors->rows.size());
  view_.cols = view_.stride = static_cast<int64_t>(factors->columns.size());
  view_.row_factors = factors->rows.data();
  view_.column_factors = factors->columns.data();
  owned_bytes_ = owner->size() * sizeof(Code) + (factors->rows.size() + factors->columns.size()) * sizeof(float);
  values_ = owner;
  factors_ = factors;
  *this = with_gains(std::vector<float>(factors->rows.size(), 1.0f));
}

Matrix StoredMatrix::widened() const {
  Matrix values(rows(), cols());
  view_.read(values);
  return values;
}

StoredMatrix StoredMatrix::with_gains(std::vector<float> gains) const {
  assert(static_cast<int64_t>(gains.size()) == rows());
  if (is_code(dtype())) {
    StoredMatrix scaled = *this;
    scaled.gains_ = std::make_shared<const std::vector<float>>(std::move(gains));
    scaled.view_.gains = scaled.gains_->data();
    return scaled;
  }
  if (std::ranges::all_of(gains, [](float gain) { return gain == 1.0f; })) return *this;
  Matrix values = widened();
  for_each_row(rows(), cols(), [&](int64_t r) {
    for (int64_t k = 0; k < cols(); ++k) values(r, k) *= gains[static_cast<size_t>(r)];
  });
  return values;
}

}  // namespace thimble
