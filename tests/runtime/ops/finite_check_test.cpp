// finite_check_test.cpp: the first NaN or infinity is found, with its name and place, and nothing else is.
#include "runtime/ops/finite_check.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "tests/runtime/tensor/owned_tensors.h"

namespace thimble::finite_check_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

Tensor tensor_of(DType dtype, const Shape& shape, const std::vector<float>& values) {
  return {dtype, shape, from_float32(dtype, values)};
}

TEST(FiniteCheck, TensorsInTheOrderOfNamesAndElements) {
  for (DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    OwnedTensors tensors;
    tensors["b"] = tensor_of(dtype, {2, 3}, {0, 1, 2, 3, -kInfinity, kNaN});
    tensors["a"] = tensor_of(dtype, {3}, {0, 1, 2});
    tensors["c"] = tensor_of(dtype, {}, {kNaN});
    auto found = find_non_finite(views_of(tensors));
    ASSERT_TRUE(found) << dtype_name(dtype);
    EXPECT_EQ(found->tensor, "tensor 'b'");
    EXPECT_EQ(found->index, (Shape{1, 1}));
    EXPECT_EQ(found->value, -kInfinity);
    EXPECT_EQ(found->text(), "tensor 'b' is -inf at [1, 1]");
    tensors.erase("b");
    EXPECT_EQ(find_non_finite(views_of(tensors))->text(), "tensor 'c' is nan at []");
    tensors.erase("c");
    EXPECT_FALSE(find_non_finite(views_of(tensors)));
  }
}

TEST(FiniteCheck, AtTheEndOfALongTensor) {
  std::vector<float> values(200'000, 1);
  values.back() = kNaN;
  OwnedTensors tensors;
  tensors["x"] = tensor_of(DType::kF32, {2, 100'000}, values);
  EXPECT_EQ(find_non_finite(views_of(tensors))->index, (Shape{1, 99'999}));
}

TEST(FiniteCheck, LargeFloat64AndIntegersAreFinite) {
  OwnedTensors tensors;
  tensors["double"] = {DType::kF64, {1}, {}};
  append_little_endian(tensors["double"].bytes, std::bit_cast<uint64_t>(1e300));
  tensors["codes"] = {DType::kI16, {1}, ByteVector(2, std::byte{0xff})};
  EXPECT_FALSE(find_non_finite(views_of(tensors)));
}

TEST(FiniteCheck, TheFirstInputOfALinearLayerThatIsNotFinite) {
  FiniteObserver observer;
  Matrix input(3, 4);
  const std::vector<std::string> first = {"a.weight", "b.weight"}, second = {"c.weight"};
  observer.on_linear_input(first, input);
  EXPECT_FALSE(observer.found());
  input(2, 1) = kNaN;
  input(1, 3) = -kInfinity;
  observer.on_linear_input(first, input);
  observer.on_linear_input(second, input);
  ASSERT_TRUE(observer.found());
  EXPECT_EQ(observer.found()->text(), "the input of a.weight, b.weight is -inf at [1, 3]");
}

}  // namespace
}  // namespace thimble::finite_check_test
