// prune_test.cpp: pruning against sorting every code.
#include "gptq/trace/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>

#include "runtime/tensor/dtype.h"

namespace thimble::prune_test {
namespace {
using ::testing::ElementsAre;

const Precision kGptq = Precision::row_scaled(2, RoundingMethod::kGptq);

QuantizedTensor coded(std::string name, std::vector<int8_t> codes, std::vector<float> scales) {
  RowScaledCodes data{2, std::move(codes), {}};
  for (float scale : scales) data.row_scales.push_back(fp16_from_float(scale));
  auto rows = static_cast<int64_t>(scales.size()), columns = static_cast<int64_t>(data.codes.size()) / rows;
  return {std::move(name), {rows, columns}, std::move(data)};
}

const std::vector<int8_t>& codes_of(const QuantizedModel& model, size_t tensor) {
  return std::get<RowScaledCodes>(model.tensors[tensor].data).codes;
}

TEST(Prune, TakesTheSmallestScaleThenTheNameThenThePosition) {
  QuantizedModel model;
  model.tensors = {coded("a", {1, -1, 2, 0, 1, 1}, {2, 1}), coded("b", {-1, 1, -2, 1}, {1, 0.5})};
  Plan plan = {{"a", kGptq}, {"b", kGptq}};
  EXPECT_EQ(count_prunable(model, plan), 7);
  EXPECT_EQ(prune_smallest(model, plan, 4), 4);
  EXPECT_THAT(codes_of(model, 0), ElementsAre(1, -1, 2, 0, 0, 0));  // its row of scale 1 goes before that of "b"
  EXPECT_THAT(codes_of(model, 1), ElementsAre(0, 1, -2, 0));        // scale 0.5 first of all, then one of scale 1
  EXPECT_EQ(prune_smallest(model, plan, 100), 3);
  EXPECT_EQ(count_prunable(model, plan), 0);
  EXPECT_THAT(codes_of(model, 0), ElementsAre(0, 0, 2, 0, 0, 0));
}

TEST(Prune, TouchesNothingElse) {
  QuantizedModel model;
  model.tensors = {coded("embedding", {1, 1}, {0.5}),
                   coded("solved", {1, 1}, {1}),
                   coded("unplanned", {1, 1}, {0.5}),
                   {"vector", {2}, RawTensor{DType::kI8, ByteVector(2, std::byte{1})}}};
  Plan plan = {{"embedding", Precision::row_scaled(127, RoundingMethod::kNearest)},
               {"solved", kGptq},
               {"vector", Precision::raw(DType::kI8)}};
  QuantizedModel before = model;
  EXPECT_EQ(count_prunable(model, plan), 2);
  EXPECT_EQ(prune_smallest(model, plan, 0), 0);
  EXPECT_EQ(model, before);
  EXPECT_EQ(prune_smallest(model, plan, 9), 2);
  EXPECT_THAT(codes_of(model, 1), ElementsAre(0, 0));
  EXPECT_EQ(model.tensors[0], before.tensors[0]);
  EXPECT_EQ(model.tensors[2], before.tensors[2]);
  EXPECT_EQ(model.tensors[3], before.tensors[3]);
}

TEST(Prune, AgreesWithSortingEveryCode) {
  std::mt19937 random(3);
  QuantizedModel model;
  Plan plan;
  std::vector<std::tuple<float, size_t, size_t>> all;  // squared scale, tensor, position
  for (size_t t = 0; t < 4; ++t) {
    std::vector<int8_t> codes(30 * 17);
    std::vector<float> scales(30);
    for (int8_t& code : codes) code = static_cast<int8_t>(static_cast<int>(random() % 5) - 2);
    for (float& scale : scales) scale = 0.25F * static_cast<float>(1 + random() % 6);
    for (size_t i = 0; i < codes.size(); ++i)
      if (std::abs(codes[i]) == 1) all.emplace_back(scales[i / 17] * scales[i / 17], t, i);
    model.tensors.push_back(coded(std::string(1, static_cast<char>('a' + t)), codes, scales));
    plan[model.tensors.back().name] = kGptq;
  }
  std::ranges::sort(all);
  ASSERT_EQ(count_prunable(model, plan), static_cast<int64_t>(all.size()));
  for (size_t count : {size_t{1}, size_t{100}, all.size() - 1}) {
    QuantizedModel expected = model, found = model;
    for (size_t i = 0; i < count; ++i) {
      auto [squared_scale, tensor, position] = all[i];
      std::get<RowScaledCodes>(expected.tensors[tensor].data).codes[position] = 0;
    }
    EXPECT_EQ(prune_smallest(found, plan, static_cast<int64_t>(count)), static_cast<int64_t>(count));
    EXPECT_EQ(found, expected);
  }
}

}  // namespace
}  // namespace thimble::prune_test
