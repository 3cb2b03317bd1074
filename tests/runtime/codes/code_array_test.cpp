// code_array_test.cpp: codes of any size come back, in no more bytes than they need.
#include "runtime/codes/code_array.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>

namespace thimble::code_array_test {
namespace {

std::vector<int32_t> codes_of(const CodeArray& array) {
  std::vector<int32_t> codes(array.size());
  array.load(0, codes);
  return codes;
}

// At both ends of what one, two and four bytes hold.
TEST(CodeArray, BytesFollowTheLargestCode) {
  const std::vector<std::pair<std::vector<int32_t>, size_t>> cases = {
      {{}, 1},          {{0, -128, 127}, 1},           {{128, 0, -1}, 2},
      {{0, -129}, 2},   {{-32768, 32767}, 2},          {{0, 32768}, 4},
      {{-32769, 1}, 4}, {{INT32_MIN, INT32_MAX, 0}, 4}};
  for (const auto& [codes, bytes] : cases) {
    const CodeArray array(codes);
    EXPECT_EQ(array.code_bytes(), bytes);
    EXPECT_EQ(codes_of(array), codes);
    EXPECT_EQ(array.visit([](auto own) { return own.size_bytes(); }), bytes * codes.size());
    for (size_t i = 0; i < codes.size(); ++i) EXPECT_EQ(array[i], codes[i]);
  }
}

TEST(CodeArray, StoringWidensAndKeepsTheOthers) {
  std::vector<int32_t> codes(300);
  std::iota(codes.begin(), codes.end(), -150);
  CodeArray array;
  array.resize(300);
  EXPECT_TRUE(array.is_zero());
  for (size_t i = 0; i < codes.size(); i += 10) array.store(i, std::span(codes).subspan(i, 10));
  EXPECT_EQ(array.code_bytes(), 2U);
  EXPECT_EQ(codes_of(array), codes);
  codes[299] = 70000;
  array.store(299, std::array{70000});
  EXPECT_EQ(array.code_bytes(), 4U);
  EXPECT_EQ(codes_of(array), codes);
  array.append(std::array{-7, 7});
  EXPECT_EQ(array.size(), 302U);
  EXPECT_EQ(array[300], -7);
  EXPECT_EQ(array[299], 70000);
}

TEST(CodeArray, TakesOverCodesOfFewBytes) {
  const std::vector<int8_t> narrow = {-128, 0, 127};
  const std::vector<int16_t> wider = {-129, 128};
  EXPECT_EQ(CodeArray(narrow), (CodeArray{-128, 0, 127}));
  EXPECT_EQ(CodeArray(narrow).code_bytes(), 1U);
  EXPECT_EQ(CodeArray(wider), (CodeArray{-129, 128}));
  EXPECT_EQ(CodeArray(wider).code_bytes(), 2U);
}

TEST(CodeArray, WidensBeforeCodesAreStored) {
  CodeArray array = {1, 2};
  EXPECT_EQ(CodeArray::widest_bytes(std::array{-128, 127}), 1U);
  EXPECT_EQ(CodeArray::widest_bytes(std::array{5, -129}), 2U);
  array.widen(2);
  array.widen(1);
  EXPECT_EQ(array.code_bytes(), 2U);
  EXPECT_EQ(codes_of(array), (std::vector<int32_t>{1, 2}));
}

TEST(CodeArray, CopiesShareCodesUntilOneChanges) {
  const auto place = [](const CodeArray& array) {
    return array.visit([](auto codes) { return static_cast<const void*>(codes.data()); });
  };
  const CodeArray first = {1, 2, 3};
  CodeArray second = first, third = first;
  EXPECT_EQ(place(second), place(first));
  second.store(1, std::array{-5});
  third.store(2, std::array{1000});  // in wider codes
  EXPECT_EQ(codes_of(first), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(codes_of(second), (std::vector<int32_t>{1, -5, 3}));
  EXPECT_EQ(codes_of(third), (std::vector<int32_t>{1, 2, 1000}));
  EXPECT_NE(place(second), place(first));
  third = second;
  third.resize(2);
  EXPECT_EQ(second.size(), 3U);
  const void* own = place(second);
  const CodeArray moved = std::move(second);
  EXPECT_EQ(place(moved), own);
  EXPECT_TRUE(second.empty());  // NOLINT(bugprone-use-after-move)
  second.append(std::array{4});
  EXPECT_EQ(codes_of(second), std::vector<int32_t>{4});
}

TEST(CodeArray, EqualityIsOfCodes) {
  CodeArray wide = {1, 2, 1000}, narrow = {1, 2, 3};
  EXPECT_NE(wide, narrow);
  wide.store(2, std::array{3});
  EXPECT_NE(wide.code_bytes(), narrow.code_bytes());
  EXPECT_EQ(wide, narrow);
  EXPECT_NE(narrow, (CodeArray{1, 2}));
  EXPECT_EQ(CodeArray(), CodeArray{});
  EXPECT_FALSE(narrow.is_zero());
  EXPECT_TRUE((CodeArray{0, 0}).is_zero());
}

}  // namespace
}  // namespace thimble::code_array_test
