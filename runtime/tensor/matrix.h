// matrix.h: dense row-major float32 matrices in host memory: an owner and two views.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace thimble {

// Memory that begins at a multiple of 64 bytes. Vector kernels treat the ends of a row apart from its middle, and where
// these lie follows from the address: with a fixed alignment, results depend on the values alone. From blocks of plain
// operator new: aligned blocks of the GNU C library (2.36) that come and go leave holes that no other such block of the
// same size finds, a gigabyte in the end.
template <typename T>
struct AlignedAllocator {
  using value_type = T;
  static constexpr size_t kAlignment = 64;
  static_assert(__STDCPP_DEFAULT_NEW_ALIGNMENT__ >= sizeof(void*));

  AlignedAllocator() = default;
  template <typename U>
  AlignedAllocator(const AlignedAllocator<U>&) {}
  T* allocate(size_t count) {
    if (count > (SIZE_MAX - kAlignment) / sizeof(T)) throw std::bad_array_new_length();
    void* const block = ::operator new(count * sizeof(T) + kAlignment);
    const auto address = reinterpret_cast<uintptr_t>(block);
    // Beyond the block's begin, which stands before it.
    void* const aligned = static_cast<std::byte*>(block) + (kAlignment - address % kAlignment);
    std::memcpy(static_cast<std::byte*>(aligned) - sizeof(block), &block, sizeof(block));
    return static_cast<T*>(aligned);
  }
  void deallocate(T* memory, size_t) {
    void* block = nullptr;
    std::memcpy(&block, reinterpret_cast<std::byte*>(memory) - sizeof(block), sizeof(block));
    ::operator delete(block);
  }
  bool operator==(const AlignedAllocator&) const { return true; }
};

template <typename T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

// A view of rows x cols floats, row r starting at data + r * stride.
template <typename T>
struct BasicMatrixView {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  BasicMatrixView() = default;
  BasicMatrixView(T* d, int64_t r, int64_t c) : data(d), rows(r), cols(c), stride(c) {}
  BasicMatrixView(T* d, int64_t r, int64_t c, int64_t s) : data(d), rows(r), cols(c), stride(s) {}
  // A mutable view converts to a const one.
  template <typename U>
  requires std::is_same_v<const U, T> BasicMatrixView(const BasicMatrixView<U>& other)
      : data(other.data), rows(other.rows), cols(other.cols), stride(other.stride) {}

  T* row(int64_t r) const { return data + r * stride; }
  BasicMatrixView block_rows(int64_t first, int64_t count) const {
    assert(first >= 0 && first + count <= rows);
    return {data + first * stride, count, cols, stride};
  }
  BasicMatrixView block_cols(int64_t first, int64_t count) const {
    assert(first >= 0 && first + count <= cols);
    return {data + first, rows, count, stride};
  }
};

using MatrixView = BasicMatrixView<float>;
using ConstMatrixView = BasicMatrixView<const float>;
using MatrixViewF64 = BasicMatrixView<double>;
using ConstMatrixViewF64 = BasicMatrixView<const double>;

// Owns its elements, zero-initialised.
template <typename T>
class BasicMatrix {
 public:
  BasicMatrix() = default;
  BasicMatrix(int64_t rows, int64_t cols) { resize(rows, cols); }
  // Copies rows * cols values.
  BasicMatrix(std::span<const T> values, int64_t rows, int64_t cols)
      : rows_(rows), cols_(cols), values_(values.begin(), values.end()) {
    assert(static_cast<int64_t>(values_.size()) == rows * cols);
  }

  // Contents become zero when the element count changes; otherwise they are kept.
  void resize(int64_t rows, int64_t cols) {
    if (rows * cols != rows_ * cols_) values_.assign(static_cast<size_t>(rows * cols), T(0));
    rows_ = rows;
    cols_ = cols;
  }

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  T* data() { return values_.data(); }
  const T* data() const { return values_.data(); }
  T* row(int64_t r) { return values_.data() + r * cols_; }
  const T* row(int64_t r) const { return values_.data() + r * cols_; }
  T& operator()(int64_t r, int64_t c) { return values_[static_cast<size_t>(r * cols_ + c)]; }
  const T& operator()(int64_t r, int64_t c) const { return values_[static_cast<size_t>(r * cols_ + c)]; }
  std::span<T> values() { return values_; }
  std::span<const T> values() const { return values_; }
  BasicMatrixView<T> view() { return {values_.data(), rows_, cols_}; }
  BasicMatrixView<const T> view() const { return {values_.data(), rows_, cols_}; }
  operator BasicMatrixView<T>() { return view(); }
  operator BasicMatrixView<const T>() const { return view(); }

 private:
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  AlignedVector<T> values_;
};

using Matrix = BasicMatrix<float>;
using MatrixF64 = BasicMatrix<double>;

}  // namespace thimble
