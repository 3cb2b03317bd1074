// stored_artifact_test.cpp: an artifact unpacked code by code, as a device's threads do it, is what decode_artifact()
// makes of it, and both refuse the same files.
#include <gtest/gtest.h>

#include "packer/artifact.h"
#include "runtime/base/parallel.h"
#include "runtime/codes/block_feed.h"
#include "tests/packer/reseal.h"
#include "tests/packer/sample_models.h"
#include "tests/packer/unpack_one_by_one.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble {
namespace {

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const FormatError& error) {
    return error.what();
  }
  return "";
}

constexpr LayoutId kCodeLayouts[] = {LayoutId::kPlain, LayoutId::kColumns, LayoutId::kBits, LayoutId::kDigits,
                                     LayoutId::kDigitColumns};

TEST(StoredArtifact, EveryLayoutAndWidthUnpacksOneByOne) {
  QuantizedModel model;
  for (int max_code : {1, 2, 3, 5, 7, 8, 15, 31, 63, 100, 127})
    for (auto [rows, columns] : {std::pair{1, 1}, {1, 13}, {13, 1}, {5, 7}, {33, 17}, {64, 96}})
      model.tensors.push_back(random_tensor(
          "m" + std::to_string(100 + max_code) + "." + std::to_string(100 + rows) + "." + std::to_string(columns), rows,
          columns, max_code));
  std::ranges::sort(model.tensors, {}, &QuantizedTensor::name);
  for (LayoutId layout : kCodeLayouts) {
    SCOPED_TRACE(layout_name(layout));
    ByteVector file = encode_in(model, layout);
    EXPECT_EQ(decode_artifact(file, "test.thmb"), model);
    EXPECT_EQ(unpack_one_by_one(file), model);
  }
}

// Blocks of whole rows, and pieces of one row.
TEST(StoredArtifact, LargeTensorsHaveSeveralBlocks) {
  QuantizedModel model;
  model.tensors = {random_tensor("rows", 1100, 5000, 15), random_tensor("wide", 2, (4 << 20) + 77, 3)};
  for (LayoutId layout : {LayoutId::kColumns, LayoutId::kBits, LayoutId::kDigitColumns}) {
    SCOPED_TRACE(layout_name(layout));
    ByteVector file = encode_in(model, layout, CodecId::kNone);
    EXPECT_EQ(open_stored_artifact(file, "test.thmb")->blocks().size(), 2u + 2 * 2);
    EXPECT_EQ(unpack_one_by_one(file), model);
  }
}

TEST(StoredArtifact, HoldsWhatIsNotCodes) {
  ByteVector file = encode(sample_model());
  std::unique_ptr<StoredModel> stored = open_stored_artifact(file, "test.thmb");
  EXPECT_EQ(stored->path(), "test.thmb");
  QuantizedModel expected = sample_model();
  for (QuantizedTensor& tensor : expected.tensors)
    if (auto* coded = std::get_if<RowScaledCodes>(&tensor.data)) coded->codes.clear();
  EXPECT_EQ(stored->model(), expected);
}

// Whatever decode_artifact() refuses is refused, and nothing else.
TEST(StoredArtifact, EveryResealedFlipIsTreatedAsInDecoding) {
  for (LayoutId layout : kCodeLayouts) {
    SCOPED_TRACE(layout_name(layout));
    const ByteVector artifact = encode_in(sample_model(), layout);
    int refused = 0, changed = 0;
    for (size_t i = 0; i < artifact.size(); ++i)
      for (int bit : {0, 4, 7}) {
        ByteVector damaged = artifact;
        damaged[i] ^= static_cast<std::byte>(1 << bit);
        reseal(damaged);
        QuantizedModel expected, found;  // stay equal when both refuse
        std::string error = error_of([&] { expected = decode_artifact(damaged, "test.thmb"); });
        std::string found_error = error_of([&] { found = unpack_one_by_one(damaged); });
        ASSERT_EQ(error.empty(), found_error.empty()) << "byte " << i << ": " << error << " / " << found_error;
        ASSERT_TRUE(found == expected) << "byte " << i;
        refused += !error.empty();
        changed += error.empty() && found != sample_model();
      }
    EXPECT_GT(refused, 0);
    EXPECT_GT(changed, 0);
  }
}

TEST(StoredArtifact, ACodeOutOfRangeIsNamed) {
  ByteVector plain = encode_in(sample_model(), LayoutId::kPlain);
  std::unique_ptr<StoredModel> stored = open_stored_artifact(plain, "test.thmb");
  BlockFeed feed(*stored);
  ByteVector bytes(feed.take(0).begin(), feed.take(0).end());
  bytes[0] = std::byte{0x80};
  std::string error = error_of([&] { stored->unpack(0, bytes); });
  EXPECT_NE(error.find("test.thmb: section 1 (codes): code 0 is -128, -15 to 15 allowed"), std::string::npos) << error;
}

// The host's part of loading a model: its config, and the tensors that are no matrices, coded ones among them.
TEST(StoredArtifact, SmallTensorsAreTheModels) {
  ModelConfig config = small_golf_config();
  QuantizedModel model;
  model.config_json = canonical_json(to_json(config));
  for (const auto& [name, tensor] : random_golf_tensors(config)) {
    QuantizedTensor quantized{name, tensor.shape, RawTensor{tensor.dtype, tensor.bytes}};
    if (name == "skip_gates" || name.ends_with("mlp_scale"))
      quantized = coded_tensor(name, tensor.shape[0], element_count(tensor.shape) / tensor.shape[0], 31,
                               [n = 0]() mutable { return ++n % 31; });
    quantized.shape = tensor.shape;
    model.tensors.push_back(quantized);
  }
  Model expected = dequantize_model(model, "test.thmb");
  ByteVector file = encode(model);
  Model found = bind_small_tensors(*open_stored_artifact(file, "test.thmb"));
  EXPECT_EQ(to_json(found.config), to_json(config));
  EXPECT_EQ(found.smear_gate, expected.smear_gate);
  EXPECT_EQ(found.bigram_scale, expected.bigram_scale);
  ASSERT_EQ(found.layers.size(), expected.layers.size());
  for (size_t i = 0; i < found.layers.size(); ++i) {
    const LayerWeights &a = found.layers[i], &b = expected.layers[i];
    for (auto member :
         {&LayerWeights::q_gain, &LayerWeights::attn_scale, &LayerWeights::mlp_scale, &LayerWeights::mix_x,
          &LayerWeights::mix_x0, &LayerWeights::skip_weight, &LayerWeights::skip_gate})
      EXPECT_EQ(a.*member, b.*member) << i;
    EXPECT_EQ(a.value_embedding_scale, b.value_embedding_scale);
    EXPECT_EQ(a.up.rows(), 0);
  }
  EXPECT_EQ(found.token_embedding.rows(), 0);
}

// A section that does not decompress is found by whoever takes it, not when the file is opened.
TEST(StoredArtifact, DamagedSectionsFailWhenTheyAreTaken) {
  QuantizedModel model;
  model.tensors = {coded_tensor("a", 64, 64, 15, [] { return 3; }), coded_tensor("b", 64, 64, 15, [] { return 4; })};
  ByteVector file = encode(model);
  const std::vector<StoredSection> sections = read_container(file, "test.thmb").sections;
  ASSERT_EQ(sections[1].entry.codec, CodecId::kBrotli);
  auto offset = static_cast<size_t>(sections[1].stored.data() - file.data());
  for (size_t i = 0; i < sections[1].stored.size(); ++i) file[offset + i] = std::byte{0xff};
  reseal(file);
  std::unique_ptr<StoredModel> stored = open_stored_artifact(file, "test.thmb");
  BlockFeed feed(*stored);
  EXPECT_NE(error_of([&] { feed.take(0); }).find("section 1 (codes)"), std::string::npos);
  EXPECT_EQ(error_of([&] { feed.take(1); }), "");
}

TEST(StoredArtifact, AFeedGivesEveryBlockToEveryone) {
  QuantizedModel model;
  for (int i = 100; i < 150; ++i) model.tensors.push_back(random_tensor(std::to_string(i), 40, i, 31));
  ByteVector file = encode(model, encode_options_from("zstd"));
  std::unique_ptr<StoredModel> stored = open_stored_artifact(file, "test.thmb");
  BlockFeed feed(*stored);
  run_in_threads(3, [&](size_t) {
    for (size_t b = 0; b < stored->blocks().size(); ++b) {
      Bytes found = feed.take(b);
      ASSERT_TRUE(std::ranges::equal(found, stored->read(b))) << b;
    }
  });
}

// Whoever gives up need not wait for the rest.
TEST(StoredArtifact, AFeedCanBeLeft) {
  ByteVector file = encode(sample_model());
  std::unique_ptr<StoredModel> stored = open_stored_artifact(file, "test.thmb");
  for (int i = 0; i < 100; ++i) BlockFeed feed(*stored);
}

TEST(StoredArtifact, AModelThatDoesNotFitItsConfigIsRefused) {
  ByteVector file = encode(sample_model());
  std::string error = error_of([&] { bind_small_tensors(*open_stored_artifact(file, "test.thmb")); });
  EXPECT_NE(error.find("test.thmb"), std::string::npos) << error;
}

}  // namespace
}  // namespace thimble
