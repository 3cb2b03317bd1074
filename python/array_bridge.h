// array_bridge.h: arrays that Python and the libraries share without a copy, by DLPack and the buffer protocol.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <span>

#include "runtime/tensor/tensor.h"

namespace thimble {

// CPU memory that Python's arrays share and free.
using Array = nanobind::ndarray<nanobind::array_api, nanobind::device::cpu>;

// Elements in pages of their own. Memory of the heap would be slower to come back to the system: what is decoded stays,
// and lies between what decoding needs for a moment.
class PagedTensor {
 public:
  PagedTensor(DType dtype, Shape shape);
  ~PagedTensor();
  PagedTensor(PagedTensor&& other) noexcept;
  PagedTensor(const PagedTensor&) = delete;
  PagedTensor& operator=(const PagedTensor&) = delete;

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  DType dtype_;
  Shape shape_;
  std::span<std::byte> bytes_;
};

// These take the elements over; the interpreter must be held.
Array array_of(PagedTensor tensor);
Array array_of(Tensor tensor);

}  // namespace thimble
