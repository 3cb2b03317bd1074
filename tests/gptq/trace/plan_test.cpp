// plan_test.cpp: which precision the methods `trace` and `nvfp4` give to which tensor.
#include "gptq/trace/plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "runtime/base/error.h"

namespace thimble::plan_test {
namespace {

const Precision kInt5 = Precision::row_scaled(15, RoundingMethod::kGptq);
const Precision kInt6 = Precision::row_scaled(31, RoundingMethod::kGptq);
const Precision kInt8 = Precision::row_scaled(127, RoundingMethod::kNearest);

TEST(Plan, SensitiveMatricesGetMoreBitsAndTiesGoByName) {
  std::map<std::string, TensorSummary> tensors;
  for (const char* name : {"a", "b", "c", "d"}) tensors[name] = {DType::kF32, {300, 300}, 1};
  Plan plan = make_trace_plan(tensors, {{"a", 1}, {"b", 5}, {"c", 5}, {"d", 5}}, {.high_count = 2});
  EXPECT_EQ(plan, (Plan{{"a", kInt5}, {"b", kInt6}, {"c", kInt6}, {"d", kInt5}}));
  plan = make_trace_plan(tensors, {{"a", 1}, {"b", 2}, {"c", 3}, {"d", 4}}, {.high_count = 0});
  EXPECT_EQ(plan, (Plan{{"a", kInt5}, {"b", kInt5}, {"c", kInt5}, {"d", kInt5}}));
  plan = make_trace_plan(tensors, {{"a", 1}, {"b", 2}, {"c", 3}, {"d", 4}}, {.low_bits = 3, .high_bits = 4});
  EXPECT_EQ(plan.at("a"), Precision::row_scaled(7, RoundingMethod::kGptq));
}

TEST(Plan, TheLimitItselfIsNotAboveTheLimit) {
  std::map<std::string, TensorSummary> tensors = {{"at", {DType::kBF16, {256, 256}, 1}},
                                                  {"above", {DType::kBF16, {257, 256}, 1}},
                                                  {"embedding_at", {DType::kBF16, {65536, 1}, 1}},
                                                  {"embedding_above", {DType::kBF16, {1, 65537}, 1}}};
  Plan plan = make_trace_plan(tensors, {{"at", 9}, {"above", 1}}, {.high_count = 1});
  EXPECT_EQ(plan, (Plan{{"at", Precision::raw(DType::kF16)},
                        {"above", kInt6},  // what is too small to be coded takes no high place
                        {"embedding_at", Precision::raw(DType::kF16)},
                        {"embedding_above", kInt8}}));
}

TEST(Plan, WhatIsNotAMatrixOrNotFloatingStaysRaw) {
  std::map<std::string, TensorSummary> tensors = {{"vector", {DType::kF32, {100000}, 1}},
                                                  {"cube", {DType::kF32, {50, 50, 50}, 1}},
                                                  {"scalar", {DType::kF64, {}, 1}},
                                                  {"indices", {DType::kI64, {300, 300}, 0}},
                                                  {"mask", {DType::kBool, {7}, 0}}};
  Plan plan = make_trace_plan(tensors, {}, {});
  EXPECT_EQ(plan, (Plan{{"vector", Precision::raw(DType::kF16)},
                        {"cube", Precision::raw(DType::kF16)},
                        {"scalar", Precision::raw(DType::kF16)},
                        {"indices", Precision::raw(DType::kI64)},
                        {"mask", Precision::raw(DType::kBool)}}));
}

TEST(Plan, ValuesOutsideFp16KeepTheirDtype) {
  double infinity = std::numeric_limits<double>::infinity();
  std::map<std::string, TensorSummary> tensors = {{"largest", {DType::kF32, {3}, 65504}},
                                                  {"larger", {DType::kF32, {3}, 65505}},
                                                  {"bfloat", {DType::kBF16, {3}, 1e30}},
                                                  {"infinite", {DType::kF32, {3}, infinity}},
                                                  {"matrix", {DType::kF32, {300, 300}, 65504.0 * 15 + 1e3}}};
  Plan plan = make_trace_plan(tensors, {{"matrix", 1}}, {.high_count = 0});
  EXPECT_EQ(plan, (Plan{{"largest", Precision::raw(DType::kF16)},
                        {"larger", Precision::raw(DType::kF32)},
                        {"bfloat", Precision::raw(DType::kBF16)},
                        {"infinite", Precision::raw(DType::kF32)},
                        {"matrix", Precision::raw(DType::kF32)}}));
}

TEST(Plan, RefusesMatricesWithValuesThatAreNotFinite) {
  std::map<std::string, TensorSummary> tensors = {
      {"broken", {DType::kF32, {300, 300}, std::numeric_limits<double>::infinity()}}};
  EXPECT_THROW(make_trace_plan(tensors, {}, {}), Error);
}

TEST(Plan, RefusesOptionsOutOfRange) {
  for (TracePlanOptions options : {TracePlanOptions{.low_bits = 1}, TracePlanOptions{.high_bits = 9},
                                   TracePlanOptions{.low_bits = 7, .high_bits = 6}, TracePlanOptions{.high_count = -1},
                                   TracePlanOptions{.min_elements = -1}})
    EXPECT_THROW(make_trace_plan({}, {}, options), UsageError);
  EXPECT_TRUE(make_trace_plan({}, {}, {}).empty());
}

TEST(Plan, SummaryFindsTheLargestMagnitude) {
  std::vector<float> values = {1, -7, 3};
  ByteVector stored = from_float32(DType::kF32, values);
  EXPECT_EQ(summarize_tensor({DType::kF32, {3}, stored}).max_magnitude, 7);
  values[2] = std::numeric_limits<float>::quiet_NaN();
  stored = from_float32(DType::kF32, values);
  EXPECT_TRUE(std::isinf(summarize_tensor({DType::kF32, {3}, stored}).max_magnitude));
  values = {std::numeric_limits<float>::infinity(), 1};
  stored = from_float32(DType::kF32, values);
  EXPECT_TRUE(std::isinf(summarize_tensor({DType::kF32, {2}, stored}).max_magnitude));
  EXPECT_EQ(summarize_tensor({DType::kF32, {0}, {}}).max_magnitude, 0);
}

TEST(Plan, Nvfp4IsForAllLargeMatrices) {
  double infinity = std::numeric_limits<double>::infinity();
  std::map<std::string, TensorSummary> tensors = {{"embedding", {DType::kF32, {300, 300}, 1}},
                                                  {"huge", {DType::kF32, {300, 300}, 3e38}},
                                                  {"layer", {DType::kBF16, {300, 300}, 1e20}},
                                                  {"small", {DType::kF32, {10, 10}, 1}},
                                                  {"vector", {DType::kF32, {100000}, 1}}};
  const Precision nearest = Precision::nvfp4(RoundingMethod::kNearest), gptq = Precision::nvfp4(RoundingMethod::kGptq);
  EXPECT_EQ(make_nvfp4_plan(tensors, {"layer", "small"}, 100), (Plan{{"embedding", nearest},
                                                                     {"huge", Precision::raw(DType::kF32)},
                                                                     {"layer", gptq},
                                                                     {"small", Precision::raw(DType::kF16)},
                                                                     {"vector", Precision::raw(DType::kF16)}}));
  EXPECT_TRUE(gptq.needs_hessian());
  EXPECT_FALSE(nearest.needs_hessian());
  tensors["layer"].max_magnitude = infinity;
  EXPECT_THROW(make_nvfp4_plan(tensors, {}, 100), Error);
  EXPECT_THROW(make_nvfp4_plan({}, {}, -1), UsageError);
}

TEST(Plan, PrecisionText) {
  EXPECT_EQ(precision_text(Precision::nvfp4(RoundingMethod::kNearest)), "nvfp4 nearest");
  EXPECT_EQ(precision_text(Precision::nvfp4(RoundingMethod::kGptq)), "nvfp4 gptq");
  EXPECT_EQ(precision_text(kInt5), "int5 gptq");
  EXPECT_EQ(precision_text(kInt8), "int8 nearest");
  EXPECT_EQ(precision_text(Precision::raw(DType::kBF16)), "BF16");
}

// Steps reach any weight, fp16 scales do not.
TEST(SlopePlan, SolvesLayersOfAnyMagnitude) {
  const std::map<std::string, TensorSummary> tensors = {{"layer", {DType::kF32, {300, 300}, 1e10}},
                                                        {"other", {DType::kF32, {300, 300}, 1e10}},
                                                        {"small", {DType::kF32, {3, 3}, 1}}};
  const Plan plan = make_slope_plan(tensors, {"layer", "small", "absent"}, 65536);
  EXPECT_EQ(plan.size(), 3);
  EXPECT_TRUE(plan.at("layer").needs_hessian());
  EXPECT_EQ(plan.at("other"), Precision::raw(DType::kF32));
  EXPECT_EQ(plan.at("small"), Precision::raw(DType::kF16));
}

}  // namespace
}  // namespace thimble::plan_test
