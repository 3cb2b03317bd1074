// tensor_test.cpp: shapes as text and numbers; owned tensors as views.
#include "runtime/tensor/tensor.h"

#include <gtest/gtest.h>

namespace thimble::tensor_test {
namespace {

TEST(Tensor, ShapesPrintAsLists) {
  EXPECT_EQ(shape_text({}), "[]");
  EXPECT_EQ(shape_text({5}), "[5]");
  EXPECT_EQ(shape_text({512, 0, 1792}), "[512, 0, 1792]");
}

TEST(Tensor, CountsElements) {
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count({3, 4, 5}), 60);
  EXPECT_EQ(element_count({3, 0}), 0);
}

TEST(Tensor, ViewsShareTheOwnersBytes) {
  Tensor tensor{DType::kF32, {2}, from_float32(DType::kF32, std::vector<float>{1.5f, -2.0f})};
  TensorView view = tensor.view();
  EXPECT_EQ(view.dtype, DType::kF32);
  EXPECT_EQ(view.shape, Shape{2});
  EXPECT_EQ(view.bytes.data(), tensor.bytes.data());
  EXPECT_EQ(to_float32(view), (std::vector<float>{1.5f, -2.0f}));
}

}  // namespace
}  // namespace thimble::tensor_test
