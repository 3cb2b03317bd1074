// gguf_test.cpp: the structure of GGUF files: every type of key, and wrong, damaged and hostile files.
#include "quantizer/formats/gguf.h"

#include <random>

#include "tests/quantizer/formats/gguf_file_builder.h"
#include "tests/quantizer/formats/reader_asserts.h"
#include "tests/support/allocation_probe.h"

namespace thimble::gguf_test {
namespace {

GgufBuilder small_file() {
  GgufBuilder builder;
  builder.text("general.architecture", "some").u32("some.block_count", 2).f32("some.epsilon", 1e-5F);
  builder.tensor({"a.weight", {2, 3}, kGgufTensorF32, ByteVector(24)});
  builder.tensor({"b.weight", {5}, kGgufTensorF16, ByteVector(10)});
  builder.tensor({"c.weight", {2, 64}, kGgufTensorQ8, ByteVector(4 * 34)});
  return builder;
}

void expect_refused(const GgufBuilder& builder, const std::string& part) {
  expect_format_error(part, [&] { read_gguf(builder.build(), "x.gguf"); });
}

TEST(Gguf, TensorsAreViewsOfTheFile) {
  ByteVector file = small_file().build();
  for (size_t i = 0; i < 24; ++i) file[file.size() - 160 - 40 + i] = std::byte{0};
  const GgufFile read = read_gguf(file, "x.gguf");
  ASSERT_EQ(read.tensors.size(), 3U);
  const GgufTensor& tensor = read.tensors.at("c.weight");
  EXPECT_EQ(tensor.shape, (Shape{2, 64}));
  EXPECT_EQ(tensor.type->name, "Q8_0");
  EXPECT_EQ(tensor.bytes.data() + tensor.bytes.size(), file.data() + file.size());
  EXPECT_EQ(read.tensors.at("a.weight").shape, (Shape{2, 3}));
  EXPECT_EQ(read.metadata.at("some.block_count"), 2);
  EXPECT_EQ(read.metadata.at("some.epsilon"), 1e-5);  // and not the double of its float
}

TEST(Gguf, KeysOfEveryType) {
  GgufBuilder builder;
  builder.number("u8", kGgufU8, uint8_t{200})
      .number("i8", kGgufI8, int8_t{-3})
      .number("u16", kGgufU16, uint16_t{60000});
  builder.number("i16", kGgufI16, int16_t{-300}).number("i32", kGgufI32, int32_t{-70000});
  builder.number("u64", kGgufU64, ~uint64_t{0})
      .number("i64", kGgufI64, int64_t{-5})
      .number("yes", kGgufBool, uint8_t{1});
  builder.number("f64", kGgufF64, std::bit_cast<uint64_t>(0.1)).text("empty", "").text("text", "caf\xC3\xA9");
  builder.array("short", kGgufBool, 3, bytes_of(std::string("\1\0\1", 3)));
  builder.array("long", kGgufU8, 5000, ByteVector(5000)).array("texts", kGgufText, 2, ByteVector(16));
  const Json metadata = read_gguf(builder.build(), "x.gguf").metadata;
  const Json expected = {{"u8", 200},
                         {"i8", -3},
                         {"u16", 60000},
                         {"i16", -300},
                         {"i32", -70000},
                         {"u64", ~uint64_t{0}},
                         {"i64", -5},
                         {"yes", true},
                         {"f64", 0.1},
                         {"empty", ""},
                         {"text", "caf\xC3\xA9"},
                         {"short", {true, false, true}}};
  EXPECT_EQ(metadata, expected);
}

TEST(Gguf, WhatIsWrongIsNamed) {
  GgufBuilder builder = small_file();
  for (const uint32_t version : {0U, 1U, 4U, 0x03000000U}) {
    builder.version = version;
    expect_refused(builder, "version " + std::to_string(version) + ", read are 2 and 3");
  }
  builder = small_file();
  builder.version = 2;
  EXPECT_EQ(read_gguf(builder.build(), "x").tensors.size(), 3U);
  expect_refused(small_file().u32("some.block_count", 3), "key 'some.block_count' is there twice");
  expect_refused(small_file().raw("k", 13, {}), "key 'k' is of unknown type 13");
  expect_refused(small_file().number("k", kGgufBool, uint8_t{2}), "key 'k' is 2, a truth value is 0 or 1");
  expect_refused(small_file().text("k", "\xFF"), "key 'k' is not UTF-8");
  expect_refused(small_file().u32("\xFF", 1), "is not UTF-8");
  expect_refused(small_file().u32("", 1), "name of a key of 0 B");
  expect_refused(small_file().array("k", kGgufArray, 1, ByteVector(12)), "key 'k' is an array of arrays");
  expect_refused(small_file().array("k", 77, 1, ByteVector(12)), "key 'k' is of unknown type 77");
  expect_refused(small_file().u32("general.alignment", 0), "'general.alignment' is 0, allowed are multiples of 8");
  expect_refused(small_file().u32("general.alignment", 12), "'general.alignment' is 12");
  expect_refused(small_file().u32("general.alignment", 1 << 20), "'general.alignment' is 1048576");
  expect_refused(small_file().text("general.alignment", "32"), "'general.alignment' is \"32\"");
}

TEST(Gguf, TensorsThatCannotBeAreNamed) {
  auto with = [](GgufTensorSpec spec) { return small_file().tensor(std::move(spec)); };
  expect_refused(with({"a.weight", {1}, 0, ByteVector(4)}), "tensor 'a.weight' is there twice");
  expect_refused(with({"d", {}, 0, ByteVector(4)}), "tensor 'd' has 0 dimensions, allowed are 1 to 4");
  expect_refused(with({"d", {1, 1, 1, 1, 1}, 0, ByteVector(4)}), "tensor 'd' has 5 dimensions");
  expect_refused(with({"d", {2, 0}, 0, {}}), "tensor 'd' has a dimension of 0");
  expect_refused(with({"d", {2, -1}, 0, {}}), "tensor 'd' has a dimension of 18446744073709551615");
  expect_refused(with({"d", {int64_t{1} << 40, int64_t{1} << 40}, 0, {}}), "tensor 'd'");
  expect_refused(with({"d", {int64_t{1} << 62}, 0, {}}), "overflows");
  expect_refused(with({"d", {2, 48}, kGgufTensorQ8, ByteVector(102)}), "rows of type Q8_0 are multiples of 32");
  expect_refused(with({"d", {128}, kGgufTensorQ4K, ByteVector(72)}), "rows of type Q4_K are multiples of 256");
  expect_refused(with({"d", {256}, 16, ByteVector(66)}), "tensor 'd' is of type IQ2_XXS, read are F32, F16");
  expect_refused(with({"d", {32}, 39, ByteVector(17)}), "tensor 'd' is of type MXFP4");
  expect_refused(with({"d", {4}, 24, ByteVector(4)}), "tensor 'd' is of type I8");
  expect_refused(with({"d", {4}, 99, ByteVector(4)}), "tensor 'd' is of type 99");
  expect_refused(with({"d", {4}, 0, ByteVector(16), 8}), "tensor 'd': offset 232, allowed are multiples of 32");
  expect_refused(with({"d", {4}, 0, ByteVector(16), 32}), "tensor 'd': 16 B at offset 256, the data have");
  expect_refused(with({"d", {4}, 0, ByteVector(16), -32}), "tensor 'd' at offset 192 overlaps tensor 'c.weight'");
  expect_refused(with({"d", {4}, 0, ByteVector(16), -512}), "tensor 'd'");
  expect_refused(with({std::string(300, 'n'), {4}, 0, ByteVector(16)}), "name of a tensor of 300 B");
}

TEST(Gguf, CountsAboveWhatIsThereEndWithTheFile) {
  for (const int64_t more : {int64_t{1}, int64_t{1000}, int64_t{1} << 40, -int64_t{1} << 62}) {
    GgufBuilder tensors = small_file(), keys = small_file();
    tensors.extra_tensors = keys.extra_keys = more;
    EXPECT_NE(format_error_of([&] { read_gguf(tensors.build(), "x.gguf"); }), "");
    EXPECT_NE(format_error_of([&] { read_gguf(keys.build(), "x.gguf"); }), "");
  }
  expect_refused(small_file().array("k", kGgufU64, uint64_t{1} << 61, {}), "overflows");
  expect_refused(small_file().array("k", kGgufU8, uint64_t{1} << 40, {}), "key 'k' needs 1099511627776 B");
  expect_refused(small_file().array("k", kGgufText, uint64_t{1} << 40, {}), "key 'k'");
}

TEST(Gguf, ATruncatedFileIsRefusedAtEveryLength) {
  const ByteVector file = small_file().build();
  for (size_t length = 0; length < file.size(); ++length) {
    const ByteVector cut(file.begin(), file.begin() + static_cast<ptrdiff_t>(length));
    EXPECT_THAT(format_error_of([&] { read_gguf(cut, "cut.gguf"); }), ::testing::HasSubstr("cut.gguf")) << length;
  }
}

// Whatever is changed: an error, or tensors that lie in the file, apart from each other, and hold what their shapes ask
// for.
TEST(Gguf, DamagedFilesAreRefusedOrWhole) {
  const ByteVector file = small_file().array("some.list", kGgufU8, 40, ByteVector(40)).build();
  const size_t header = small_file().array("some.list", kGgufU8, 40, ByteVector(40)).header_bytes();
  std::mt19937 random(7);
  size_t refused = 0;
  for (size_t at = 0; at < header; ++at)
    for (const int bit : {0, 3, 7}) {
      ByteVector damaged = file;
      damaged[at] ^= static_cast<std::byte>(1 << bit);
      if (bit == 3) damaged[random() % header] = static_cast<std::byte>(random());
      const AllocationProbe probe;
      try {
        const GgufFile read = read_gguf(damaged, "x.gguf");
        size_t held = 0;
        for (const auto& [name, tensor] : read.tensors) {
          held += tensor.bytes.size();
          EXPECT_EQ(tensor.bytes.size(),
                    static_cast<size_t>(element_count(tensor.shape) / tensor.type->elements) * tensor.type->bytes);
        }
        EXPECT_LE(held, damaged.size());
      } catch (const FormatError&) {
        ++refused;
      }
      EXPECT_LT(probe.largest_bytes(), size_t{1} << 16) << at;
    }
  EXPECT_GT(refused, header);
}

}  // namespace
}  // namespace thimble::gguf_test
