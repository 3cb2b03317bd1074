// finite_cli_test.cpp: --check-finite of `eval` and `quantize`: the first tensor or activation that is NaN or infinite.
#include <functional>
#include <limits>

#include "eval/text/token_shard.h"
#include "quantizer/formats/safetensors.h"
#include "tests/cli/cli_fixture.h"

namespace thimble::testing::finite_cli_test {
namespace {

class FiniteTest : public CliTest {
 protected:
  // Writes bad.safetensors: tiny_weights() with the values of one tensor changed.
  void write_checkpoint(const std::string& name, const std::function<void(std::vector<float>&)>& change) const {
    Tensors weights = tiny_weights();
    std::vector<float> values = to_float32(weights.at(name).view());
    change(values);
    weights[name].bytes = from_float32(DType::kF32, values);
    write_safetensors(path("bad.safetensors"), views_of(weights));
  }
  static Arguments checked(const Arguments& arguments) { return arguments + Arguments{"--check-finite"}; }
};

TEST_F(FiniteTest, FiniteModelsScoreTheSame) {
  quantize("model.thmb");
  for (const char* model : {"model.safetensors", "model.thmb"}) {
    Arguments eval = Arguments{"eval", model} + scoring();
    EXPECT_EQ(without_times(succeed_json(checked(eval)).at("evaluations").at(0)),
              without_times(succeed_json(eval).at("evaluations").at(0)));
  }
  ByteVector before = contents("model.thmb");
  succeed(checked(quantize_arguments("again.thmb")));
  EXPECT_EQ(contents("again.thmb"), before);
}

TEST_F(FiniteTest, TheFirstTensorOfACheckpointIsNamedWithItsPlace) {
  int64_t columns = tiny_weights().at("blocks.1.attn.c_k.weight").shape[1];
  write_checkpoint("blocks.1.attn.c_k.weight", [&](std::vector<float>& values) {
    values[static_cast<size_t>(2 * columns + 5)] = std::numeric_limits<float>::quiet_NaN();
  });
  Arguments words = {"bad.safetensors", "blocks.1.attn.c_k.weight", "nan at [2, 5]"};
  expect_failure(4, checked(Arguments{"eval", "bad.safetensors"} + scoring()), words);
  expect_failure(4, checked(quantize_arguments("out.thmb", {}, "bad.safetensors")), words);
  EXPECT_FALSE(exists("out.thmb"));
}

// All weights are finite; the MLP of layer 0 overflows.
TEST_F(FiniteTest, TheFirstActivationIsNamedWithItsLayer) {
  write_checkpoint("blocks.0.mlp.fc.weight", [](std::vector<float>& values) {
    for (float& value : values) value *= 1e25f;
  });
  Arguments words = {"the input of blocks.0.mlp.proj.weight is inf at [0, ", "--check-finite"};
  expect_failure(4, checked(Arguments{"eval", "bad.safetensors"} + scoring()), words);
  std::vector<Token> tokens = parse_shard(Bytes(contents("val.bin")), "val.bin");
  tokens.resize(64);
  write_shard(path("calibration.bin"), tokens, kShard16Vocabulary);
  expect_failure(4,
                 {"quantize", "bad.safetensors", "-o", "out.thmb", "--calibration-tokens", "calibration.bin",
                  "--calibration-length", "32", "--check-finite", "--quiet"},
                 words);
  EXPECT_FALSE(exists("out.thmb"));
}

}  // namespace
}  // namespace thimble::testing::finite_cli_test
