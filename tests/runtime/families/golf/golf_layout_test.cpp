// golf_layout_test.cpp: names and shapes of a model's tensors, and banks taken apart.
#include "runtime/families/golf/golf_layout.h"

#include <gtest/gtest.h>

#include "runtime/families/config_reader.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble::golf_layout_test {
namespace {

TEST(GolfLayout, ShapesOfEveryTensor) {
  GolfConfig config = small_golf_config();
  config.tie_embeddings = false;
  std::map<std::string, Shape> shapes = golf_tensor_shapes(config);
  const std::pair<const char*, Shape> expected[] = {
      {"tok_emb.weight", {29, 24}},
      {"lm_head.weight", {29, 24}},
      {"blocks.0.attn.c_q.weight", {24, 24}},
      {"blocks.4.attn.proj.weight", {24, 24}},
      {"blocks.1.attn.c_k.weight", {12, 24}},
      {"blocks.2.attn.c_v.weight", {12, 24}},
      {"blocks.3.mlp.fc.weight", {60, 24}},
      {"blocks.3.mlp.proj.weight", {24, 60}},
      {"blocks.0.attn.q_gain", {4}},
      {"blocks.0.attn_scale", {24}},
      {"blocks.0.mlp_scale", {24}},
      {"blocks.0.resid_mix", {2, 24}},
      {"skip_weights", {2, 24}},
      {"skip_gates", {2, 24}},
      {"smear.gate", {24}},
      {"bigram.embed.weight", {53, 10}},
      {"bigram.proj.weight", {24, 10}},
      {"bigram.scale", {}},
      {"ve_shared.embed.weight", {29, 7}},
      {"ve_shared.proj.weight", {12, 7}},
      {"ve_shared.scale", {}},
      {"ve_layer_scales.0", {1}},
      {"ve_layer_scales.1", {1}},
  };
  for (const auto& [name, shape] : expected) {
    ASSERT_TRUE(shapes.contains(name)) << name;
    EXPECT_EQ(shapes.at(name), shape) << name;
  }
  EXPECT_EQ(shapes.size(), 5u * 10 + 13);
}

TEST(GolfLayout, OptionsRemoveTheirTensors) {
  GolfConfig config = small_golf_config();
  config.num_layers = 1;
  config.bigram_vocab_size = 0;
  config.smear_gate = false;
  config.ve_layers = {};
  std::map<std::string, Shape> shapes = golf_tensor_shapes(config);
  EXPECT_EQ(shapes.size(), 11u);
  for (const char* name : {"lm_head.weight", "skip_weights", "skip_gates", "smear.gate", "bigram.scale",
                           "ve_shared.scale", "ve_layer_scales.0"})
    EXPECT_FALSE(shapes.contains(name)) << name;
}

void expect_equal(const TensorMap& found, const TensorMap& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_EQ(found.at(name).dtype, tensor.dtype) << name;
    EXPECT_EQ(found.at(name).shape, tensor.shape) << name;
    EXPECT_TRUE(std::ranges::equal(found.at(name).bytes, tensor.bytes)) << name;
  }
}

TEST(GolfLayout, UnbankUndoesBanks) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    GolfConfig config = small_golf_config();
    OwnedTensors plain = random_golf_tensors(config, 2, dtype), banked = with_banks(plain, config.num_layers);
    EXPECT_TRUE(has_banks(views_of(banked)));
    EXPECT_FALSE(has_banks(views_of(plain)));
    EXPECT_EQ(banked.at("qo_bank").shape, (Shape{10, 24, 24}));
    EXPECT_EQ(banked.at("kv_bank").shape, (Shape{10, 12, 24}));
    EXPECT_EQ(banked.at("mlp_up_bank").shape, (Shape{5, 60, 24}));
    EXPECT_EQ(banked.at("mlp_down_bank").shape, (Shape{5, 24, 60}));
    expect_equal(unbank(views_of(banked), "model"), views_of(plain));
    expect_equal(unbank(views_of(plain), "model"), views_of(plain));
  }
}

TEST(GolfLayout, SlicesPointIntoTheBank) {
  OwnedTensors banked = with_banks(random_golf_tensors(small_golf_config()), 5);
  const ByteVector& bank = banked.at("qo_bank").bytes;
  TensorMap tensors = unbank(views_of(banked), "model");
  EXPECT_EQ(tensors.at("blocks.0.attn.c_q.weight").bytes.data(), bank.data());
  EXPECT_EQ(tensors.at("blocks.0.attn.proj.weight").bytes.data(), bank.data() + 5 * 24 * 24 * sizeof(float));
}

// A mixture of both forms: one bank, the other matrices on their own.
TEST(GolfLayout, BanksMayBeMixedWithSingleMatrices) {
  OwnedTensors plain = random_golf_tensors(small_golf_config()), banked = with_banks(plain, 5), mixed = plain;
  for (int64_t layer = 0; layer < 5; ++layer) mixed.erase(LayerNames(layer).up);
  mixed["mlp_up_bank"] = banked.at("mlp_up_bank");
  expect_equal(unbank(views_of(mixed), "model"), views_of(plain));
}

TEST(GolfLayout, BrokenBanksAreErrors) {
  const ByteVector bytes(240);
  auto unbank_shape = [&](const std::string& name, const Shape& shape, uint64_t count) {
    return [&bytes, name, shape, count] { unbank({{name, {DType::kU8, shape, Bytes(bytes).first(count)}}}, "a.pt"); };
  };
  expect_error<FormatError>(unbank_shape("qo_bank", {4, 6}, 24), {"a.pt", "'qo_bank'", "[4, 6]", "3 dimensions"});
  expect_error<FormatError>(unbank_shape("kv_bank", {2, 2, 2, 2}, 16), {"'kv_bank'", "3 dimensions"});
  expect_error<FormatError>(unbank_shape("kv_bank", {3, 4, 5}, 60), {"'kv_bank'", "[3, 4, 5]", "twice the layers"});
  EXPECT_NO_THROW(unbank_shape("mlp_up_bank", {3, 4, 5}, 60)());
  EXPECT_NO_THROW(unbank_shape("kv_bank", {2 * kMaxLayers, 1, 1}, 0)());
  expect_error<FormatError>(unbank_shape("kv_bank", {2 * kMaxLayers + 2, 1, 1}, 0),
                            {"'kv_bank'", "[2050, 1, 1]", "at most 1024 layers"});
}

// Asked for shapes alone.
TEST(GolfLayout, SlicesOfABankWithoutBytesHaveNone) {
  constexpr int64_t kHuge = int64_t{1} << 30;
  const TensorMap slices = unbank({{"kv_bank", {DType::kF32, {2, kHuge, 3}, {}}}}, "a.pt");
  ASSERT_EQ(slices.size(), 2);
  for (const auto& [name, slice] : slices) {
    EXPECT_EQ(slice.shape, (Shape{kHuge, 3})) << name;
    EXPECT_TRUE(slice.bytes.empty()) << name;
  }
}

// Without elements the sizes are not bounded by the file's size.
TEST(GolfLayout, BanksWithoutElementsAreErrors) {
  constexpr int64_t kHuge = int64_t{1} << 40;
  for (const Shape& shape : {Shape{kHuge, 0, 8}, Shape{kHuge, 8, 0}, Shape{0, kHuge, kHuge}, Shape{0, 0, 0}})
    expect_error<FormatError>(
        [&] {
          unbank({{"mlp_up_bank", {DType::kF32, shape, {}}}}, "a.pt");
        },
        {"a.pt", "'mlp_up_bank'", shape_text(shape)});
}

TEST(GolfLayout, ASliceMayNotExistTwice) {
  OwnedTensors banked = with_banks(random_golf_tensors(small_golf_config()), 5);
  banked["blocks.3.attn.proj.weight"] = {DType::kF32, {1}, ByteVector(4)};
  expect_error<FormatError>([&] { unbank(views_of(banked), "a.pt"); },
                            {"a.pt", "'qo_bank'", "'blocks.3.attn.proj.weight' also exists on its own"});
}

TEST(GolfLayout, BankSlotsInvertUnbank) {
  EXPECT_EQ(bank_slot("blocks.2.attn.c_q.weight", 5).bank, "qo_bank");
  EXPECT_EQ(bank_slot("blocks.2.attn.c_q.weight", 5).index, 2);
  EXPECT_EQ(bank_slot("blocks.2.attn.proj.weight", 5).index, 7);
  EXPECT_EQ(bank_slot("blocks.0.attn.c_v.weight", 5).bank, "kv_bank");
  EXPECT_EQ(bank_slot("blocks.0.attn.c_v.weight", 5).index, 5);
  EXPECT_EQ(bank_slot("blocks.4.mlp.fc.weight", 5).bank, "mlp_up_bank");
  EXPECT_EQ(bank_slot("blocks.4.mlp.proj.weight", 5).bank, "mlp_down_bank");
  EXPECT_EQ(bank_slot("blocks.4.mlp.proj.weight", 5).index, 4);
  for (const char* name : {"tok_emb.weight", "blocks.5.mlp.fc.weight", "blocks.0.attn.q_gain",
                           "blocks.00.mlp.fc.weight", "bigram.proj.weight", ""})
    EXPECT_EQ(bank_slot(name, 5).bank, "") << name;
}

}  // namespace
}  // namespace thimble::golf_layout_test
