// safetensors_test.cpp: writer and reader agree; crafted headers for every error; damage at every byte.
#include "quantizer/formats/safetensors.h"

#include <gtest/gtest.h>

#include "runtime/base/file.h"
#include "tests/quantizer/formats/reader_asserts.h"
#include "tests/support/allocation_probe.h"

namespace thimble::safetensors_test {
namespace {

// The bytes of a file with this header and `data_bytes` bytes 0, 1, 2, ...
ByteVector file_with(const std::string& header, size_t data_bytes) {
  ByteVector file;
  append_little_endian(file, uint64_t{header.size()});
  append_bytes(file, as_bytes_of(header));
  for (size_t i = 0; i < data_bytes; ++i) file.push_back(static_cast<std::byte>(i));
  return file;
}

CheckpointContents read(const std::string& header, size_t data_bytes) {
  static ByteVector file;  // the views must outlive the call
  file = file_with(header, data_bytes);
  return read_safetensors(file, "m.safetensors");
}

void expect_error(const std::string& part, const std::string& header, size_t data_bytes = 0) {
  expect_format_error(part, [&] { read(header, data_bytes); });
}

// A header with the one tensor "w".
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"w":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

Tensor counting(DType dtype, Shape shape) {
  Tensor tensor{dtype, std::move(shape), {}};
  tensor.bytes.resize(static_cast<size_t>(element_count(tensor.shape)) * dtype_bytes(dtype));
  for (size_t i = 0; i < tensor.bytes.size(); ++i) tensor.bytes[i] = static_cast<std::byte>(i * 7 + 1);
  return tensor;
}

void expect_equal(const TensorMap& found, const TensorMap& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_EQ(found.at(name).dtype, tensor.dtype) << name;
    EXPECT_EQ(found.at(name).shape, tensor.shape) << name;
    EXPECT_EQ(as_text(found.at(name).bytes), as_text(tensor.bytes)) << name;
  }
}

TEST(Safetensors, RoundTripOfEveryDtypeAndOddShapes) {
  std::map<std::string, Tensor> owned;
  for (DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64, DType::kI32, DType::kI16,
                      DType::kI8, DType::kU16, DType::kU8, DType::kBool}) {
    std::string name(dtype_name(dtype));
    owned[name] = counting(dtype, {3, 5});
    owned[name + ".scalar"] = counting(dtype, {});
    owned[name + ".empty"] = counting(dtype, {0, 4});
  }
  owned["weight \"\\ \n\xc3\xa9"] = counting(DType::kU8, {1, 1, 7});
  TensorMap tensors;
  for (const auto& [name, tensor] : owned) tensors[name] = tensor.view();
  std::map<std::string, std::string> metadata = {{"format", "pt"}, {"config", "{\"a\":1}"}, {"", "\xe2\x82\xac"}};

  ScratchFile first("round_trip_1"), second("round_trip_2");
  write_safetensors(first.path(), tensors, metadata);
  write_safetensors(second.path(), tensors, metadata);
  MappedFile file(first.path());
  EXPECT_EQ(as_text(file.bytes()), as_text(MappedFile(second.path()).bytes()));
  CheckpointContents contents = read_safetensors(file.bytes(), first.path());
  expect_equal(contents.tensors, tensors);
  EXPECT_EQ(contents.metadata, metadata);

  const std::byte* start = file.bytes().data();
  for (const auto& [name, tensor] : contents.tensors)
    EXPECT_EQ(static_cast<size_t>(tensor.bytes.data() - start) % dtype_bytes(tensor.dtype), 0u) << name;
}

TEST(Safetensors, NoTensorsAndNoMetadata) {
  ScratchFile path("nothing");
  write_safetensors(path.path(), {});
  MappedFile file(path.path());
  EXPECT_EQ(as_text(file.bytes()), std::string_view("\x08\0\0\0\0\0\0\0{}      ", 16));
  EXPECT_TRUE(read_safetensors(file.bytes(), "m").tensors.empty());
}

TEST(Safetensors, WrittenBytesArePinned) {
  Tensor byte_tensor = counting(DType::kU8, {1}), half = counting(DType::kBF16, {1, 2});
  ScratchFile path("pinned");
  write_safetensors(path.path(), {{"a", byte_tensor.view()}, {"b", half.view()}});
  std::string header = R"({"a":{"data_offsets":[4,5],"dtype":"U8","shape":[1]},)"
                       R"("b":{"data_offsets":[0,4],"dtype":"BF16","shape":[1,2]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  ByteVector expected = file_with(header, 0);
  append_bytes(expected, half.bytes);
  append_bytes(expected, byte_tensor.bytes);
  EXPECT_EQ(as_text(MappedFile(path.path()).bytes()), as_text(expected));
}

TEST(Safetensors, WriterRefusesWhatItCouldNotReadBack) {
  ScratchFile path("refused");
  Tensor tensor = counting(DType::kF32, {2});
  TensorView view = tensor.view();
  expect_format_error("tensor '__metadata__': the name is reserved", [&] {
    write_safetensors(path.path(), {{"__metadata__", view}});
  });
  expect_format_error("cannot write the safetensors header", [&] { write_safetensors(path.path(), {{"\xff", view}}); });
  view.shape = {3};
  expect_format_error("shape [3] of F32 needs 12 B, 8 B given", [&] { write_safetensors(path.path(), {{"w", view}}); });
  view.shape = {-1};
  expect_format_error("dimension -1", [&] { write_safetensors(path.path(), {{"w", view}}); });
  std::map<std::string, std::string> huge = {{"text", std::string(kMaxSafetensorsHeaderBytes, 'x')}};
  expect_format_error("at most 16000000 B allowed", [&] { write_safetensors(path.path(), {}, huge); });
  EXPECT_FALSE(file_exists(path.path()));
}

TEST(Safetensors, AnyOrderOfTheDataIsRead) {
  CheckpointContents contents = read(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[3,5]},)"
                                     R"("b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                                     R"("c":{"dtype":"F64","shape":[0],"data_offsets":[3,3]}}   )",
                                     5);
  EXPECT_EQ(as_text(contents.tensors.at("a").bytes), "\x03\x04");
  EXPECT_EQ(contents.tensors.at("b").bytes.size(), 3u);
  EXPECT_EQ(contents.tensors.at("c").bytes.size(), 0u);
}

TEST(Safetensors, HeaderLengthIsBounded) {
  for (auto [length, part] : {std::pair{uint64_t{16'000'001}, "header of 16000001 B, at most 16000000 B allowed"},
                              {~uint64_t{0}, "header of 18446744073709551615 B"},
                              {uint64_t{3}, "safetensors header needs 3 B, 2 B remain"}}) {
    ByteVector file = file_with("{}", 0);
    poke(file, 0, length);
    expect_format_error(part, [&] { read_safetensors(file, "m"); });
  }
  expect_format_error("m: truncated at byte 0: header length needs 8 B, 0 B remain",
                      [&] { read_safetensors(Bytes(), "m"); });
}

TEST(Safetensors, HeaderIsAJsonObject) {
  expect_error("does not start with '{'", "");
  expect_error("does not start with '{'", " {}");
  expect_error("does not start with '{'", "[]");
  expect_error("m.safetensors: safetensors header: not valid JSON", "{");
  expect_error("not valid JSON", std::string("{}\0", 3));
  expect_error("not valid JSON", "{\"\xff\":1}");
  expect_error("JSON nested deeper than 64", "{\"w\":" + std::string(100, '['));
  expect_error("JSON key 'w' appears twice", R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"w":{}})");
}

TEST(Safetensors, MetadataIsTexts) {
  expect_error("__metadata__: is not a JSON object of texts", R"({"__metadata__":[]})");
  expect_error("__metadata__: value of 'a' is not a text", R"({"__metadata__":{"a":1}})");
  EXPECT_EQ(read(R"({"__metadata__":{"a":"b"}})", 0).metadata.at("a"), "b");
}

TEST(Safetensors, TensorEntriesAreComplete) {
  expect_error("m.safetensors: tensor 'w': is not a JSON object", R"({"w":1})");
  expect_error("tensor 'w': has no 'dtype'", R"({"w":{"shape":[0],"data_offsets":[0,0]}})");
  expect_error("tensor 'w': has no 'shape'", R"({"w":{"dtype":"U8","data_offsets":[0,0]}})");
  expect_error("tensor 'w': has no 'data_offsets'", R"({"w":{"dtype":"U8","shape":[0]}})");
  expect_error("tensor 'w': 4 keys, allowed are",
               R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"strides":[1]}})");
  expect_error("'dtype' is not a text", one("1", "[0]", "[0,0]"));
  expect_error("tensor 'w': dtype 'C64', allowed are F64, F32", one("\"C64\"", "[0]", "[0,0]"));
}

TEST(Safetensors, ShapesAndOffsetsAreNonNegativeIntegers) {
  expect_error("'shape' is not an array", one("\"U8\"", "3", "[0,3]"), 3);
  for (const char* bad : {"-1", "1.5", "\"1\"", "null", "[1]", "9223372036854775808", "1e3"}) {
    expect_error("must be an integer from 0 to 2^63 - 1", one("\"U8\"", "[" + std::string(bad) + "]", "[0,0]"));
    expect_error("must be an integer from 0 to 2^63 - 1", one("\"U8\"", "[0]", "[0," + std::string(bad) + "]"));
  }
  for (const char* bad : {"[]", "[0]", "[0,0,0]", "[1,0]", "[0,5]", "[5,6]", "[0,9223372036854775807]"})
    expect_error("must be [begin, end] with begin <= end <= 4", one("\"U8\"", "[4]", bad), 4);
}

TEST(Safetensors, ShapeTimesWidthEqualsTheData) {
  expect_error("tensor 'w': shape [3] of U8 needs 3 B, data_offsets [0, 4] hold 4 B", one("\"U8\"", "[3]", "[0,4]"), 4);
  expect_error("shape [2, 2] of F16 needs 8 B", one("\"F16\"", "[2,2]", "[0,4]"), 4);
  expect_error("overflows 64 bits", one("\"U8\"", "[4294967296,4294967296]", "[0,0]"));
  expect_error("overflows 64 bits", one("\"F64\"", "[2305843009213693952]", "[0,0]"));
}

TEST(Safetensors, TensorsCoverTheDataExactly) {
  auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)" + a +
           R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)" + b + "}}";
  };
  EXPECT_EQ(read(two("[0,2]", "[2,4]"), 4).tensors.size(), 2u);
  expect_error("tensor 'b': data starts at 3, after a hole at 2", two("[0,2]", "[3,5]"), 5);
  expect_error("tensor 'b': data starts at 1, inside the one before that ends at 2", two("[0,2]", "[1,3]"), 4);
  expect_error("tensor 'b': data starts at 0, inside the one before", two("[0,2]", "[0,2]"), 2);
  expect_error("tensor 'a': data starts at 1, after a hole at 0", two("[1,3]", "[3,5]"), 5);
  expect_error("the tensors cover 4 B of data, the file holds 5 B", two("[0,2]", "[2,4]"), 5);
  expect_error("the tensors cover 0 B of data, the file holds 1 B", "{}", 1);
}

ByteVector sample_file() {
  return file_with(R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                   R"("bias":{"dtype":"BF16","shape":[3],"data_offsets":[24,30]}} )",
                   30);
}

TEST(Safetensors, TruncationAtEveryByteIsAnError) {
  ByteVector file = sample_file();
  EXPECT_EQ(read_safetensors(file, "m").tensors.size(), 2u);
  for (size_t size = 0; size < file.size(); ++size)
    EXPECT_THROW(read_safetensors(Bytes(file).first(size), "m"), FormatError) << size;
}

TEST(Safetensors, DamageAtEveryHeaderByteIsAnErrorOrAValidFile) {
  constexpr size_t kSmallestLimitBytes = 4096;  // below it, error messages and map nodes are larger than the file
  const ByteVector file = sample_file();
  size_t errors = 0;
  for (size_t at = 0; at < file.size() - 30; ++at)
    for (int bit = 0; bit < 8; ++bit) {
      ByteVector damaged = file;
      damaged[at] ^= static_cast<std::byte>(1 << bit);
      AllocationProbe probe;
      try {
        CheckpointContents contents = read_safetensors(damaged, "m");
        for (const auto& [name, tensor] : contents.tensors) {
          EXPECT_GE(tensor.bytes.data(), damaged.data());
          EXPECT_LE(tensor.bytes.data() + tensor.bytes.size(), damaged.data() + damaged.size());
          EXPECT_EQ(tensor.bytes.size(), static_cast<size_t>(element_count(tensor.shape)) * dtype_bytes(tensor.dtype));
        }
      } catch (const FormatError&) {
        ++errors;
      }
      EXPECT_LE(probe.largest_bytes(), std::max(kSmallestLimitBytes, 2 * damaged.size())) << at << " " << bit;
    }
  EXPECT_GT(errors, 4 * (file.size() - 30));  // more than half of the damage is found
}

}  // namespace
}  // namespace thimble::safetensors_test
