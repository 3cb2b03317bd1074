// cuda_stored_model_test.cpp: a model whose codes the device unpacks computes the very bits of the model dequantized on
// the host: every layout, width, type of raw tensors and option of the model, and widths that need padding.
#include <gtest/gtest.h>

#include <cmath>

#include "packer/artifact.h"
#include "runtime/cuda/cuda_language_model.h"
#include "runtime/cuda/kernels/cuda_devices.h"
#include "tests/packer/reseal.h"
#include "tests/packer/sample_models.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/codes/random_quantized_model.h"
#include "tests/runtime/families/golf/golf_cases.h"

namespace thimble {
namespace {

class CudaStoredModel : public testing::TestWithParam<Numerics> {
 protected:
  void SetUp() override {
    if (cuda_device_names().empty()) GTEST_SKIP() << "no CUDA device is here";
  }

  static Matrix rows_of(LanguageModel& model) {
    std::vector<uint16_t> tokens = random_tokens(model.context(), model.vocab_size(), 4);
    Matrix out(model.context(), model.vocab_size());
    std::ranges::fill(out.values(), NAN);
    model.log_probabilities(tokens, out);
    return out;
  }
  static std::unique_ptr<LanguageModel> from_codes(const ByteVector& file, int64_t context) {
    std::unique_ptr<StoredModel> stored = open_stored_artifact(file, "test.thmb");
    BlockFeed feed(*stored);
    return make_cuda_language_model(*stored, feed, 0, GetParam(), context);
  }
  // Log-probabilities of a window from codes and from floats.
  static void expect_same_bits(const QuantizedModel& quantized, const ByteVector& file, int64_t context) {
    Matrix expected =
        rows_of(*make_cuda_language_model(dequantize_model(quantized, "test.thmb"), 0, GetParam(), context));
    Matrix found = rows_of(*from_codes(file, context));
    for (float value : expected.values()) ASSERT_TRUE(std::isfinite(value));
    EXPECT_TRUE(std::ranges::equal(found.values(), expected.values()));
  }
};

TEST_P(CudaStoredModel, EveryLayoutIsUnpacked) {
  QuantizedModel quantized = random_quantized_model(small_golf_config(), 3);
  for (LayoutId layout :
       {LayoutId::kPlain, LayoutId::kColumns, LayoutId::kBits, LayoutId::kDigits, LayoutId::kDigitColumns}) {
    SCOPED_TRACE(layout_name(layout));
    expect_same_bits(quantized, encode_in(quantized, layout), 23);
  }
}

TEST_P(CudaStoredModel, EveryOptionOfTheModel) {
  for (const GolfCase& golf : kGolfCases) {
    SCOPED_TRACE(golf.name);
    ModelConfig config = small_golf_config();
    golf.change(config);
    QuantizedModel quantized = random_quantized_model(config, 5);
    expect_same_bits(quantized, encode(quantized, encode_options_from("zstd")), golf.context);
  }
}

// Several blocks per tensor, more blocks than buffers, and matrices of more than one copied piece.
TEST_P(CudaStoredModel, LargeMatricesTravelInPieces) {
  ModelConfig config = small_golf_config();
  config.model_dim = 1032;
  config.num_heads = 12;
  config.num_kv_heads = 4;
  config.mlp_mult = 4.5;
  config.num_layers = 2;
  config.vocab_size = 5003;
  config.ve_layers = {1};
  QuantizedModel quantized = random_quantized_model(config, 7);
  for (LayoutId layout : {LayoutId::kColumns, LayoutId::kBits}) {
    ByteVector file = encode_in(quantized, layout, CodecId::kAbsent);
    std::unique_ptr<StoredModel> stored = open_stored_artifact(file, "test.thmb");
    size_t coded = 0;
    for (const QuantizedTensor& tensor : quantized.tensors)
      coded += std::holds_alternative<RowScaledCodes>(tensor.data);
    EXPECT_GT(stored->blocks().size(), coded);
    expect_same_bits(quantized, file, 65);
  }
}

TEST_P(CudaStoredModel, CodesThatAreNotAllowedAreNamed) {
  QuantizedModel quantized = random_quantized_model(small_golf_config(), 3);
  for (LayoutId layout : {LayoutId::kPlain, LayoutId::kBits, LayoutId::kDigitColumns}) {
    SCOPED_TRACE(layout_name(layout));
    ByteVector file = encode_in(quantized, layout, CodecId::kAbsent);
    // -128, and packed bytes with all bits set, are no codes of any width.
    const std::vector<StoredSection> sections = read_container(file, "test.thmb").sections;
    size_t damaged = 0;
    for (size_t i = 1; i < sections.size() && damaged == 0; ++i)
      if (sections[i].entry.kind == SectionKind::kCodes && sections[i].entry.layout == layout &&
          sections[i].stored.size() > 100)
        damaged = i;
    ASSERT_GT(damaged, 0u);
    auto offset = static_cast<size_t>(sections[damaged].stored.data() - file.data());
    const std::byte bad = layout == LayoutId::kPlain ? std::byte{0x80} : std::byte{0xff};
    for (size_t i = 40; i < 60; ++i) file[offset + i] = bad;
    reseal(file);
    expect_error<FormatError>([&] { from_codes(file, 23); },
                              {"test.thmb: section " + std::to_string(damaged) + " (codes)"});
  }
}

INSTANTIATE_TEST_SUITE_P(Numerics, CudaStoredModel, testing::Values(Numerics::kFp32, Numerics::kBf16),
                         [](const testing::TestParamInfo<Numerics>& test) {
                           return test.param == Numerics::kFp32 ? "Fp32" : "Bf16";
                         });

}  // namespace
}  // namespace thimble
