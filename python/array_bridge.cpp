// array_bridge.cpp: see array_bridge.h.
#include "python/array_bridge.h"

#include <sys/mman.h>

#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "runtime/base/error.h"

namespace thimble {
namespace {

namespace nb = nanobind;

nb::dlpack::dtype dlpack_type(DType dtype) {
  using Code = nb::dlpack::dtype_code;
  const auto type = [&](Code code) {
    return nb::dlpack::dtype{static_cast<uint8_t>(code), static_cast<uint8_t>(8 * dtype_bytes(dtype)), 1};
  };
  switch (dtype) {
    case DType::kF64:
    case DType::kF32:
    case DType::kF16: return type(Code::Float);
    case DType::kBF16: return type(Code::Bfloat);
    case DType::kI64:
    case DType::kI32:
    case DType::kI16:
    case DType::kI8: return type(Code::Int);
    case DType::kU16:
    case DType::kU8: return type(Code::UInt);
    case DType::kBool: return type(Code::Bool);
  }
  throw UsageError("an unknown element type");
}

template <typename Owned>
Array shared(DType dtype, const Shape& shape, void* data, std::unique_ptr<Owned> owned) {
  const std::vector<size_t> sizes(shape.begin(), shape.end());
  nb::capsule owner(owned.get(), [](void* held) noexcept { delete static_cast<Owned*>(held); });
  owned.release();
  return Array(data, sizes.size(), sizes.data(), owner, nullptr, dlpack_type(dtype));
}

}  // namespace

PagedTensor::PagedTensor(DType dtype, Shape shape) : dtype_(dtype), shape_(std::move(shape)) {
  const uint64_t bytes = tensor_bytes_or_throw(dtype_, shape_, "a tensor");
  if (bytes == 0) return;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  bytes_ = {static_cast<std::byte*>(memory), bytes};
}

PagedTensor::~PagedTensor() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

PagedTensor::PagedTensor(PagedTensor&& other) noexcept
    : dtype_(other.dtype_), shape_(std::move(other.shape_)), bytes_(std::exchange(other.bytes_, {})) {}

Array array_of(PagedTensor tensor) {
  auto owned = std::make_unique<PagedTensor>(std::move(tensor));
  const PagedTensor& held = *owned;
  return shared(held.dtype(), held.shape(), held.bytes().data(), std::move(owned));
}

Array array_of(Tensor tensor) {
  auto owned = std::make_unique<Tensor>(std::move(tensor));
  Tensor& held = *owned;
  return shared(held.dtype, held.shape, held.bytes.data(), std::move(owned));
}

}  // namespace thimble
