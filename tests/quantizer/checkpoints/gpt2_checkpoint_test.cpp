// gpt2_checkpoint_test.cpp: GPT-2 state dicts of every form open as the same model: with and without prefix, masks and
// a repeated head; Conv1D's layout and llm.c's; and what is refused.
#include <gtest/gtest.h>

#include "quantizer/checkpoints/model_source.h"
#include "quantizer/formats/safetensors.h"
#include "runtime/base/atomic_file.h"
#include "tests/quantizer/formats/llmc_file_builder.h"
#include "tests/quantizer/formats/reader_asserts.h"

namespace thimble::gpt2_checkpoint_test {
namespace {

// As Hugging Face stores them.
OwnedTensors with_turned_projections(OwnedTensors tensors) {
  for (auto& [name, tensor] : tensors)
    if (is_gpt2_projection(name)) tensor = transposed(tensor.view());
  return tensors;
}

OwnedTensors without_prefix(const OwnedTensors& tensors) {
  OwnedTensors out;
  for (const auto& [name, tensor] : tensors) out[name.substr(std::string("transformer.").size())] = tensor;
  return out;
}

class Gpt2Checkpoint : public ::testing::Test {
 protected:
  void write(const OwnedTensors& tensors, const Json& config) const {
    write_safetensors(file_.path(), views_of(tensors), {{"config", canonical_json(config)}});
  }
  void expect_model(const OwnedTensors& expected) const {
    OpenedCheckpoint opened(file_.path(), "");
    ASSERT_TRUE(opened.spec());
    EXPECT_EQ(canonical_json(opened.spec()->config), canonical_json(to_json(config_)));
    for (const auto& [name, tensor] : expected) {
      ASSERT_TRUE(opened.shapes().contains(name)) << name;
      EXPECT_EQ(opened.shapes().at(name).shape, tensor.shape) << name;
    }
    const TensorMap& parameters = opened.parameters();
    ASSERT_EQ(parameters.size(), expected.size());
    for (const auto& [name, tensor] : expected)
      EXPECT_TRUE(as_text(parameters.at(name).bytes) == as_text(tensor.bytes)) << name;
    EXPECT_FALSE(opened.banked());
  }

  const Gpt2Config config_ = llmc_config();
  const OwnedTensors tensors_ = random_gpt2_tensors(config_, 5, DType::kBF16);
  const OwnedTensors stored_ = with_turned_projections(tensors_);
  ScratchFile file_{"gpt2"};
};

TEST_F(Gpt2Checkpoint, OpensWithAndWithoutThePrefix) {
  write(stored_, to_json(config_));
  expect_model(tensors_);
  write(without_prefix(stored_), to_json(config_));
  expect_model(tensors_);
}

// Tables as the file has them, projections turned; neither in float32. The checkpoint may go before the weights do.
TEST_F(Gpt2Checkpoint, WeightsAreNotCopied) {
  write(stored_, to_json(config_));
  const RunnableModel model = load_model(file_.path(), "").model;
  ASSERT_FALSE(model.weights->matrices.empty());
  for (size_t i = 0; i < model.weights->matrices.size(); ++i) {
    const StoredMatrix& matrix = model.weights->matrices[i];
    EXPECT_EQ(matrix.dtype(), DType::kBF16);
    EXPECT_EQ(matrix.owned_bytes(), 0u);
    const Matrix values = matrix.widened();
    EXPECT_TRUE(
        std::ranges::equal(values.values(), to_float32(tensors_.at(model.spec.network->matrices[i].name).view())));
  }
}

TEST_F(Gpt2Checkpoint, TheNamesAloneTellTheFamily) {
  Json config = to_json(config_);
  config.erase("architecture");
  write(without_prefix(stored_), config);
  expect_format_error("config key 'model_type' is missing", [&] { OpenedCheckpoint(file_.path(), ""); });
  config["model_type"] = "gpt_bigcode";
  write(stored_, config);
  EXPECT_FALSE(OpenedCheckpoint(file_.path(), "").spec());
}

TEST_F(Gpt2Checkpoint, MasksAndARepeatedHeadAreLeftOut) {
  OwnedTensors more = stored_;
  more["transformer.h.0.attn.bias"] = {DType::kU8, {1, 1, 40, 40}, ByteVector(1600)};
  more["transformer.h.1.attn.masked_bias"] = {DType::kF32, {}, ByteVector(4)};
  more["lm_head.weight"] = more.at("transformer.wte.weight");
  write(more, to_json(config_));
  expect_model(tensors_);
}

TEST_F(Gpt2Checkpoint, AnotherHeadIsTheModelsOwn) {
  OwnedTensors more = stored_;
  more["lm_head.weight"] = more.at("transformer.wte.weight");
  more["lm_head.weight"].bytes[0] ^= std::byte{1};
  write(more, to_json(config_));
  expect_format_error("'tie_word_embeddings' is true, but tensor 'lm_head.weight' proves false",
                      [&] { OpenedCheckpoint(file_.path(), ""); });
  Json config = to_json(config_);
  config["tie_word_embeddings"] = false;
  write(more, config);
  EXPECT_EQ(OpenedCheckpoint(file_.path(), "").runnable().config.at("tie_word_embeddings"), false);
}

TEST_F(Gpt2Checkpoint, ANameInBothFormsIsRefused) {
  OwnedTensors both = stored_;
  both["wpe.weight"] = both.at("transformer.wpe.weight");
  write(both, to_json(config_));
  expect_format_error("tensors 'wpe.weight' and 'transformer.wpe.weight' are the same",
                      [&] { OpenedCheckpoint(file_.path(), ""); });
}

TEST_F(Gpt2Checkpoint, ProjectionsAsOutByInAreRefused) {
  write(tensors_, to_json(config_));
  expect_format_error("'n_inner' is 80, but tensor 'transformer.h.0.mlp.c_fc.weight' proves 20",
                      [&] { OpenedCheckpoint(file_.path(), ""); });
}

TEST_F(Gpt2Checkpoint, AnLlmcFileIsTheSameModel) {
  write_file_atomically(file_.path(), Bytes(llmc_file(5, config_, tensors_, 48)));
  expect_model(tensors_);
  EXPECT_EQ(OpenedCheckpoint(file_.path(), "").file().format_name(), "llm.c");
  EXPECT_THROW(OpenedCheckpoint(file_.path(), "config.json"), UsageError);
}

}  // namespace
}  // namespace thimble::gpt2_checkpoint_test
