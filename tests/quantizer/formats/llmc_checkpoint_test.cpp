// llmc_checkpoint_test.cpp: both versions come back; every field of the header out of range; damage and truncation.
#include "quantizer/formats/llmc_checkpoint.h"

#include <gtest/gtest.h>

#include "tests/quantizer/formats/llmc_file_builder.h"
#include "tests/quantizer/formats/reader_asserts.h"
#include "tests/support/allocation_probe.h"

#include "runtime/families/gpt2/gpt2_family.h"

namespace thimble::llmc_checkpoint_test {
namespace {

constexpr int64_t kPadded = 32;

class LlmcCheckpoint : public ::testing::TestWithParam<int> {
 protected:
  static DType dtype() { return GetParam() == 3 ? DType::kF32 : DType::kBF16; }

  const Gpt2Config config_ = llmc_config();
  const OwnedTensors tensors_ = random_gpt2_tensors(config_, 5, dtype());
  const ByteVector file_ = llmc_file(GetParam(), config_, tensors_, kPadded);
};
INSTANTIATE_TEST_SUITE_P(Versions, LlmcCheckpoint, ::testing::Values(3, 5));

TEST_P(LlmcCheckpoint, GivesTheTensorsAndTheConfig) {
  EXPECT_TRUE(looks_like_llmc(file_));
  const CheckpointContents found = read_llmc_checkpoint(file_, "m.bin");
  ASSERT_EQ(found.tensors.size(), tensors_.size());
  for (const auto& [name, tensor] : tensors_) {
    ASSERT_TRUE(found.tensors.contains(name)) << name;
    const TensorView& view = found.tensors.at(name);
    EXPECT_EQ(view.dtype, dtype()) << name;
    EXPECT_EQ(view.shape, tensor.shape) << name;
    EXPECT_TRUE(as_text(view.bytes) == as_text(tensor.bytes)) << name;
  }
  EXPECT_EQ(canonical_json(*found.config), canonical_json(to_json(config_)));
  Gpt2Family().resolve(*found.config, found.tensors, {"m.bin", "m.bin"});
}

TEST_P(LlmcCheckpoint, AVocabularyWithoutPaddingIsTheSame) {
  const ByteVector bare = llmc_file(GetParam(), config_, tensors_, config_.vocab_size);
  EXPECT_LT(bare.size(), file_.size());
  const CheckpointContents found = read_llmc_checkpoint(bare, "m.bin");
  for (const auto& [name, tensor] : tensors_)
    EXPECT_TRUE(as_text(found.tensors.at(name).bytes) == as_text(tensor.bytes)) << name;
}

TEST_P(LlmcCheckpoint, AnotherLengthIsRefused) {
  for (size_t length : {size_t{4}, size_t{8}, size_t{1023}, size_t{1024}, file_.size() - 1})
    format_error_of([&] { read_llmc_checkpoint(Bytes(file_).first(length), "m.bin"); });
  ByteVector longer = file_;
  longer.push_back(std::byte{0});
  expect_format_error(
      "m.bin: " + std::to_string(longer.size()) + " B, its header asks for " + std::to_string(file_.size()) + " B",
      [&] { read_llmc_checkpoint(longer, "m.bin"); });
}

TEST_P(LlmcCheckpoint, HeadersOutOfRangeAreRefused) {
  const std::tuple<size_t, int32_t, const char*> cases[] = {
      {0, 20240325, "magic number 20240325, expected 20240326"},
      {1, 1, "version 1, read are 3 (float32) and 5 (bfloat16)"},
      {1, 4, "version 4"},
      {2, 0, "max_seq_len is 0, allowed are 1 to 16777216"},
      {3, (1 << 20) + 1, "vocab_size is 1048577, allowed are 1 to 1048576"},
      {3, 33, "padded_vocab_size is 32, allowed is at least vocab_size, 33"},
      {4, 1025, "num_layers is 1025, allowed are 1 to 1024"},
      {4, -1, "num_layers is -1"},
      {5, 3, "num_heads is 3, allowed is a divisor of 20 channels"},
      {5, 0, "num_heads is 0"},
      {6, 1 << 23, "channels is 8388608, allowed are 1 to 4194304"},
      {7, INT32_MAX, "padded_vocab_size is 2147483647"},
      {4, 2, "B, its header asks for "},
      {7, 31, "B, its header asks for "},
  };
  for (const auto& [field, value, part] : cases) {
    ByteVector damaged = file_;
    poke(damaged, 4 * field, value);
    expect_format_error(part, [&] { read_llmc_checkpoint(damaged, "m.bin"); });
  }
}

// The largest header there is asks for 2^59 bytes: refused by the length, before anything is allocated.
TEST_P(LlmcCheckpoint, NothingIsAllocatedForSizesThatTheFileDoesNotHave) {
  ByteVector damaged = file_;
  for (auto [field, value] : {std::pair{2, 1 << 24}, {4, 1024}, {6, 1 << 22}, {7, 1 << 24}})
    poke(damaged, 4 * static_cast<size_t>(field), static_cast<int32_t>(value));
  AllocationProbe probe;
  expect_format_error("its header asks for ", [&] { read_llmc_checkpoint(damaged, "m.bin"); });
  EXPECT_LT(probe.largest_bytes(), 4096u);
}

TEST(LooksLikeLlmc, ByTheMagicNumberAlone) {
  EXPECT_FALSE(looks_like_llmc({}));
  EXPECT_FALSE(looks_like_llmc(as_bytes_of("PK\3\4")));
  EXPECT_FALSE(looks_like_llmc(as_bytes_of("abc")));
  EXPECT_TRUE(looks_like_llmc(Bytes(llmc_header(3, llmc_config(), kPadded)).first(4)));
}

}  // namespace
}  // namespace thimble::llmc_checkpoint_test
