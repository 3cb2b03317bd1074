// gguf_blocks_test.cpp: quantized blocks against the Python package of llama.cpp, bit for bit
// (golden/make_gguf_blocks.py).
#include "quantizer/formats/gguf_blocks.h"

#include <gtest/gtest.h>

#include <bit>
#include <charconv>

#include "runtime/base/file.h"
#include "runtime/base/json.h"
#include "tests/support/test_files.h"

namespace thimble::gguf_blocks_test {
namespace {

ByteVector from_hex(const Json& json) {
  const auto& text = json.get_ref<const std::string&>();
  ByteVector bytes(text.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) {
    uint8_t value = 0;
    std::from_chars(text.data() + 2 * i, text.data() + 2 * i + 2, value, 16);
    bytes[i] = std::byte{value};
  }
  return bytes;
}

Json golden() {
  const std::string path = source_file("tests/quantizer/formats/golden/gguf_blocks.json");
  const std::string text = read_text_file(path, 1 << 20);
  return parse_json(as_bytes_of(text), path);
}

TEST(GgufBlocks, StandForWhatLlamaCppMakesOfThem) {
  const Json all = golden();
  for (const char* name : {"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"}) {
    const GgufBlocks* type = gguf_blocks(std::string_view(name));
    ASSERT_NE(type, nullptr) << name;
    const ByteVector blocks = from_hex(all.at(name).at("blocks")), expected = from_hex(all.at(name).at("values"));
    ASSERT_EQ(blocks.size() % type->bytes, 0U) << name;
    std::vector<float> values(blocks.size() / type->bytes * static_cast<size_t>(type->elements));
    ASSERT_EQ(values.size() * sizeof(float), expected.size()) << name;
    dequantize_gguf(*type, blocks, values);
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), load_little_endian<uint32_t>(expected.data() + 4 * i))
          << name << " " << i;
  }
}

TEST(GgufBlocks, ElementsThatAreNotQuantizedAreThoseOfTheirType) {
  const std::vector<float> values = {1, -0.5, 0, 3};
  for (const char* name : {"F32", "F16", "BF16"}) {
    const GgufBlocks* type = gguf_blocks(std::string_view(name));
    std::vector<float> found(values.size());
    dequantize_gguf(*type, from_float32(*type->dtype, values), found);
    EXPECT_EQ(found, values) << name;
    EXPECT_EQ(type->bytes, dtype_bytes(*type->dtype));
  }
}

TEST(GgufBlocks, QuantizesToQ8AsLlamaCppDoes) {
  const Json quantized = golden().at("quantized");
  const std::vector<float> values = to_float32(DType::kF32, from_hex(quantized.at("values")));
  EXPECT_EQ(quantize_gguf_q8_0(values), from_hex(quantized.at("Q8_0")));
}

TEST(GgufBlocks, TypesAreToldByIdAndName) {
  EXPECT_EQ(gguf_blocks(12)->name, "Q4_K");
  EXPECT_EQ(gguf_blocks(39)->name, "MXFP4");
  EXPECT_FALSE(gguf_blocks(39)->is_read());
  EXPECT_EQ(gguf_blocks(4), nullptr);  // of 2023, gone
  EXPECT_EQ(gguf_blocks(1000), nullptr);
  EXPECT_EQ(gguf_types_read(), "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K");
}

}  // namespace
}  // namespace thimble::gguf_blocks_test
