// hessian_file_test.cpp: files of Hessians written and read again, and every rule that one can break.
#include "quantizer/formats/hessian_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "quantizer/formats/safetensors.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/file.h"
#include "tests/gptq/statistics/loaded_hessians.h"
#include "tests/quantizer/formats/reader_asserts.h"

namespace thimble::hessian_file_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Metadata = std::map<std::string, std::string>;

class HessianFile : public ::testing::Test {
 protected:
  // Writes one tensor "w" of these elements, row by row, as another program would: without a checksum.
  void write(const std::vector<float>& elements, const Shape& shape, DType dtype = DType::kF32,
             const Metadata& metadata = {}) {
    ByteVector bytes = from_float32(dtype, elements);
    write_safetensors(scratch_.path(), {{"w", {dtype, shape, bytes}}}, metadata);
  }
  void expect_error(const std::string& part, const std::vector<float>& elements, const Shape& shape = {2, 2},
                    DType dtype = DType::kF32) {
    write(elements, shape, dtype);
    expect_format_error(part, [&] { read(); });
  }
  void expect_metadata_error(const std::string& part, const Metadata& metadata) {
    write({1}, {1, 1}, DType::kF32, metadata);
    expect_format_error(part, [&] { read(); });
  }
  HessianSet read() const { return load_all(read_hessian_file(scratch_.path()).hessians); }

  ScratchFile scratch_{"hessians.safetensors"};
};

std::shared_ptr<const Hessian> hessian(const std::vector<double>& lower_triangle, int64_t size) {
  Hessian result{SymmetricMatrix(size), 640, 10};
  std::ranges::copy(lower_triangle, result.matrix.values().begin());
  return std::make_shared<const Hessian>(std::move(result));
}

TEST_F(HessianFile, WhatIsWrittenIsReadAgain) {
  auto shared = hessian({1, 0.1, 2}, 2);
  const HessianSet set{{"a", shared}, {"b", shared}, {"c", hessian({0}, 1)}};
  write_hessian_file(scratch_.path(), store_in_memory(CalibrationStatistics{set, {}}));

  HessianSet again = read();
  EXPECT_EQ(again.size(), 3u);
  const double rounded = static_cast<double>(0.1f);
  EXPECT_EQ(again.at("a")->matrix, hessian({1, rounded, 2}, 2)->matrix);
  EXPECT_EQ(again.at("c")->matrix, set.at("c")->matrix);
  for (const auto& [layer, found] : again) {
    EXPECT_EQ(found->token_count, 640);
    EXPECT_EQ(found->sequence_count, 10);
  }
  EXPECT_EQ(again.at("a"), again.at("b"));
  EXPECT_THAT(hessian_file_layers(scratch_.path()), ::testing::UnorderedElementsAre("a", "b", "c"));
}

TEST_F(HessianFile, LossStatisticsAreReadAgain) {
  CalibrationStatistics statistics{{{"a.weight", hessian({1, 0.5, 2}, 2)}}, {}};
  statistics.loss.head = {{"tok_emb.weight", hessian({3}, 1)}};
  statistics.loss.output_fisher = {{"a.weight", {{0.1, 0}, 640}}, {"tok_emb.weight", {{1e-20, 7, 8}, 640}}};
  statistics.loss.lookup_fisher = {{"tok_emb.weight", {{0.25}, 640}}};
  statistics.loss.row_counts = {{"tok_emb.weight", {0, 600, 40}}};
  round_to_float32(statistics.loss);
  EXPECT_EQ(statistics.loss.output_fisher.at("a.weight").mean_square[0], static_cast<double>(0.1f));
  write_hessian_file(scratch_.path(), store_in_memory(statistics));
  LossStatistics again = read_hessian_file(scratch_.path()).loss;
  EXPECT_EQ(again.output_fisher, statistics.loss.output_fisher);
  EXPECT_EQ(again.lookup_fisher, statistics.loss.lookup_fisher);
  EXPECT_EQ(again.row_counts, statistics.loss.row_counts);
  ASSERT_EQ(again.head.size(), 1u);
  EXPECT_EQ(again.head.at("tok_emb.weight")->matrix, statistics.loss.head.at("tok_emb.weight")->matrix);
  EXPECT_EQ(again.head.at("tok_emb.weight")->token_count, 640);
  EXPECT_EQ(read().size(), 1u);
  EXPECT_THAT(hessian_file_layers(scratch_.path()), ::testing::ElementsAre("a.weight"));
}

// What a tensor of another program may be called and hold.
TEST_F(HessianFile, LossStatisticsAreChecked) {
  auto expect_refusal = [&](const std::string& part, const std::string& name, const Shape& shape,
                            const std::vector<float>& values, DType dtype = DType::kF32) {
    ByteVector bytes = from_float32(dtype, values);
    write_safetensors(scratch_.path(), {{name, {dtype, shape, bytes}}});
    expect_format_error(part, [&] { read(); });
  };
  for (std::string kind : {"output_fisher/", "lookup_fisher/"}) {
    std::string where = "tensor '" + kind + "w': ";
    expect_refusal(where + "shape [2, 1], expected a vector", kind + "w", {2, 1}, {1, 1});
    expect_refusal(where + "shape [0], expected a vector", kind + "w", {0}, {});
    expect_refusal(where + "element 1 is -1", kind + "w", {2}, {1, -1});
    expect_refusal(where + "element 0 is inf", kind + "w", {2}, {kInfinity, 1});
    expect_refusal(where + "element 1 is nan", kind + "w", {2}, {1, kNan});
    expect_refusal(where + "dtype F16, allowed are F32 and F64", kind + "w", {1}, {1}, DType::kF16);
  }
  expect_refusal("tensor 'row_counts/w': dtype F32, allowed is I64", "row_counts/w", {1}, {1});
  expect_refusal("tensor 'row_counts/w': shape [], expected a vector", "row_counts/w", {}, {1});
  ByteVector minus_one(8, std::byte{0xff}), one = from_float32(DType::kF32, std::vector<float>{1});
  write_safetensors(scratch_.path(), {{"row_counts/w", {DType::kI64, {1}, minus_one}}});
  expect_format_error("element 0 is -1, a count is not negative", [&] { read(); });
  expect_refusal("head_hessian/w': shape [2], expected a square matrix", "head_hessian/w", {2}, {1, 1});
  write_safetensors(scratch_.path(),
                    {{"head_hessian/v", {DType::kF32, {1, 1}, one}}, {"head_hessian/w", {DType::kF32, {1, 1}, one}}});
  expect_format_error("'head_hessian/w': a second one", [&] { read(); });
  write_safetensors(scratch_.path(), {{"head_hessian/w", {DType::kF32, {1, 1}, one}}},
                    {{"shared", "{\"v\":\"head_hessian/w\"}"}});
  expect_format_error("layer 'v' uses 'head_hessian/w'", [&] { read(); });
}

TEST_F(HessianFile, OfAnotherProgramNeedsNoMetadata) {
  write({4, 1, 1, 9}, {2, 2}, DType::kF64);
  HessianSet set = read();
  EXPECT_EQ(set.at("w")->matrix(0, 1), 1);
  EXPECT_EQ(set.at("w")->token_count, 1);
  EXPECT_EQ(set.at("w")->sequence_count, 1);
}

TEST_F(HessianFile, MatricesAreSquare) {
  expect_error("Hessian 'w': shape [2, 3], expected a square matrix", std::vector<float>(6), {2, 3});
  expect_error("Hessian 'w': shape [4]", std::vector<float>(4), {4});
  expect_error("Hessian 'w': shape [1, 1, 1]", {1}, {1, 1, 1});
  expect_error("Hessian 'w': shape [0, 0]", {}, {0, 0});
}

TEST_F(HessianFile, ElementsAreWide) {
  expect_error("Hessian 'w': dtype F16, allowed are F32 and F64", {1}, {1, 1}, DType::kF16);
}

TEST_F(HessianFile, ElementsAreFinite) {
  expect_error("Hessian 'w': entry (1, 1) is not finite", {1, 0, 0, kInfinity});
  expect_error("entry (1, 0) is not finite", {1, 0, kNan, 1});
  expect_error("entry (1, 0) is not finite", {1, kNan, 0, 1});
}

TEST_F(HessianFile, DiagonalsAreNotNegative) {
  expect_error("Hessian 'w': entry (1, 1) is negative", {1, 0, 0, -1});
  write({0, 0, 0, 0}, {2, 2});
  EXPECT_EQ(read().at("w")->matrix.trace(), 0);
}

TEST_F(HessianFile, TrianglesAgree) {
  expect_error("Hessian 'w': entry (1, 0) and its mirror differ", {1, 0.5f, 0.49f, 1});
  expect_error("entry (1, 0) and its mirror differ", {0, 1e-30f, 0, 1});
  write({1, 0.5f, 0.5001f, 1}, {2, 2});
  EXPECT_EQ(read().at("w")->matrix(0, 1), static_cast<double>(0.5001f));
}

TEST_F(HessianFile, CountsArePositiveDecimals) {
  for (const char* count : {"0", "-1", "", "1x", " 1", "1e3", "99999999999999999999"})
    for (const char* key : {"tokens", "sequences"})
      expect_metadata_error("metadata key '" + std::string(key) + "' is '" + count + "', allowed is a positive integer",
                            {{key, count}});
}

TEST_F(HessianFile, SharingNamesATensor) {
  expect_metadata_error("metadata key 'shared' must be a JSON object", {{"shared", "[]"}});
  expect_metadata_error("not valid JSON", {{"shared", "{"}});
  expect_metadata_error("layer 'v' must name a layer", {{"shared", "{\"v\":1}"}});
  expect_metadata_error("layer 'v' uses 'u', which must be a tensor", {{"shared", "{\"v\":\"u\"}"}});
  expect_metadata_error("layer 'w' uses 'w'", {{"shared", "{\"w\":\"w\"}"}});
  expect_metadata_error("layer 'u' uses 'v'", {{"shared", "{\"u\":\"v\",\"v\":\"w\"}"}});
}

TEST_F(HessianFile, DamageIsNoticed) {
  write_hessian_file(scratch_.path(), store_in_memory(CalibrationStatistics{{{"w", hessian({1, 0.5, 1}, 2)}}, {}}));
  ByteVector whole = bytes_of(read_text_file(scratch_.path(), 1 << 20));
  whole.back() ^= std::byte{1};
  write_file_atomically(scratch_.path(), Bytes(whole));
  expect_format_error("metadata key 'xxh3'", [&] { read(); });
  EXPECT_FALSE(verify_checksum({}, "a file without one"));
}

}  // namespace
}  // namespace thimble::hessian_file_test
