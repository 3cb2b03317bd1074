// gpt2_cli_test.cpp: the commands on a GPT-2: eval, generate, audit, quantize by both methods, export, and its limits.
#include <cmath>
#include <filesystem>

#include "quantizer/formats/safetensors.h"
#include "tests/cli/cli_fixture.h"
#include "tests/quantizer/formats/llmc_file_builder.h"

namespace thimble::testing::gpt2_cli_test {
namespace {

// Beside the folder's golf-gpt: gpt2.safetensors as Hugging Face writes it, with gpt2.json, and gpt2.bin of llm.c,
// which hold the same weights.
class Gpt2Test : public CliTest {
 protected:
  Gpt2Test() {
    Tensors stored = weights_;
    for (auto& [name, tensor] : stored)
      if (is_gpt2_projection(name)) tensor = transposed(tensor.view());
    Json json = to_json(config_);
    json.erase("architecture");
    json["model_type"] = "gpt2";
    write("gpt2.json", json.dump());
    write_safetensors(path("gpt2.safetensors"), views_of(stored), {{"config", json.dump()}});
    write("gpt2.bin", Bytes(llmc_file(3, config_, weights_, 320)));
  }

  static Gpt2Config config_of_test() {
    Gpt2Config config = small_gpt2_config();
    config.vocab_size = tiny_config().vocab_size;
    config.num_layers = 2;
    config.model_dim = 32;
    config.num_heads = 2;
    return llmc_config(config);
  }
  double bits_per_byte(const std::string& model) const {
    return succeed_json(Arguments{"eval", model} + scoring()).at("evaluations").at(0).at("bits_per_byte");
  }
  static Arguments quantize_gpt2(const std::string& output, const Arguments& more) {
    return Arguments{"quantize", "gpt2.safetensors", "-o", output, "--min-elements", "100"} +
           Arguments{"--calibration-sequences", "3"} + more;
  }

  const Gpt2Config config_ = config_of_test();  // 40 positions
  const Tensors weights_ = random_gpt2_tensors(config_, 8);
};

TEST_F(Gpt2Test, EveryFormatScoresTheSame) {
  const double expected = bits_per_byte("gpt2.safetensors");
  EXPECT_GT(expected, 0);
  EXPECT_EQ(bits_per_byte("gpt2.bin"), expected);
}

TEST_F(Gpt2Test, TheContextIsThePositionsOfTheModel) {
  const Arguments eval = {"eval", "gpt2.safetensors", "--tokens", "val.bin", "--tokenizer", "sp.model", "--stride"};
  EXPECT_EQ(succeed_json(eval + Arguments{"40"}).at("evaluations").at(0).at("context"), 40);
  expect_failure(2, eval + Arguments{"41"}, {"--stride is 41", "--context, 40"});
  for (const char* command : {"eval", "audit"})
    expect_failure(
        2, {command, "gpt2.bin", "--tokens", "val.bin", "--tokenizer", "sp.model", "--context", "41", "--stride", "8"},
        {"gpt2.bin", "a context of 41 tokens", "at most 40"});
  expect_failure(2, {"generate", "gpt2.bin", "--tokenizer", "sp.model", "--length", "40"},
                 {"gpt2.bin", "a context of 41 tokens", "at most 40"});
  expect_failure(2, quantize_gpt2("out.thmb", {"--calibration-length", "41"}),
                 {"gpt2.safetensors", "a context of 41 tokens", "at most 40"});
}

// Of several models the first decides the context.
TEST_F(Gpt2Test, ModelsAreComparedAtOneContext) {
  const Arguments options = {"--tokens", "val.bin", "--tokenizer", "sp.model", "--stride", "32"};
  Json found = succeed_json(Arguments{"eval", "gpt2.bin", "model.safetensors"} + options).at("evaluations");
  EXPECT_EQ(found.at(1).at("context"), 40);
  expect_failure(2, Arguments{"eval", "model.safetensors", "gpt2.bin"} + options, {"gpt2.bin", "2048 tokens"});
}

TEST_F(Gpt2Test, GeneratesForASeed) {
  const Arguments arguments = {"generate", "gpt2.bin", "--tokenizer", "sp.model",
                               "--length", "20",       "--prompt",    "the sea"};
  const Json first = succeed_json(arguments + Arguments{"--seed", "5"});
  EXPECT_EQ(succeed_json(arguments + Arguments{"--seed", "5", "--threads", "1"}), first);
  EXPECT_NE(succeed_json(arguments + Arguments{"--seed", "6"}).at("tokens"), first.at("tokens"));
}

TEST_F(Gpt2Test, AuditPasses) {
  Json report = succeed_json(Arguments{"audit", "gpt2.bin"} + scoring() + Arguments{"--source-text", "text.txt"});
  EXPECT_EQ(report.at("passed"), true) << report;
}

TEST_F(Gpt2Test, QuantizesByEitherMethod) {
  const double before = bits_per_byte("gpt2.safetensors");
  const std::pair<Arguments, size_t> methods[] = {{{"--method", "trace", "--bits", "8"}, 8},
                                                  {{"--bits-per-weight", "9"}, 10}};  // slope solves both tables too
  for (const auto& [method, layers] : methods) {
    SCOPED_TRACE(::testing::PrintToString(method));
    Json report = succeed_json(quantize_gpt2("out.thmb", method + scoring()));
    EXPECT_EQ(report.at("layers").size(), layers);
    EXPECT_EQ(report.at("evaluation").at("before").at("bits_per_byte"), before);
    const double after = report.at("evaluation").at("after").at("bits_per_byte");
    EXPECT_NE(after, before);
    EXPECT_NEAR(after, before, 0.1);
    EXPECT_EQ(bits_per_byte("out.thmb"), after);
    succeed({"verify", "out.thmb"});
    const Json inspected = succeed_json({"inspect", "out.thmb"});
    EXPECT_EQ(inspected.at("config"), to_json(config_));
    EXPECT_EQ(inspected.at("provenance").at("calibration").at("length"), 40);
  }
}

TEST_F(Gpt2Test, AnLlmcFileGivesTheSameWeights) {
  const Arguments more = {"--method", "trace", "--bits", "8", "--budget", "200000", "--high", "0"};
  succeed(quantize_gpt2("one.thmb", more));
  Arguments other = quantize_gpt2("two.thmb", more);
  other[1] = "gpt2.bin";
  succeed(other);
  EXPECT_EQ(decoded("one.thmb").tensors, decoded("two.thmb").tensors);
}

// As Hugging Face stores them, so that its library can load the file.
TEST_F(Gpt2Test, ExportTurnsTheProjectionsBack) {
  succeed(quantize_gpt2("out.thmb", {"--method", "trace", "--bits", "8"}));
  succeed({"export", "out.thmb", "-o", "back.safetensors"});
  EXPECT_EQ(bits_per_byte("back.safetensors"), bits_per_byte("out.thmb"));
  MappedFile before(path("gpt2.safetensors")), after(path("back.safetensors"));
  const TensorMap expected = read_safetensors(before.bytes(), "before").tensors;
  const TensorMap found = read_safetensors(after.bytes(), "after").tensors;
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    EXPECT_EQ(found.at(name).shape, tensor.shape) << name;
    const std::vector<float> old_values = to_float32(tensor), new_values = to_float32(found.at(name));
    double error = 0, energy = 0;
    for (size_t i = 0; i < old_values.size(); ++i) {
      error += std::pow(old_values[i] - new_values[i], 2);
      energy += std::pow(old_values[i], 2);
    }
    EXPECT_LT(error, 0.01 * energy) << name;
  }
}

TEST_F(Gpt2Test, ACrossOfHessiansAndMethodsWorks) {
  succeed(quantize_gpt2("out.thmb", {"--method", "trace", "--save-hessians", "h.safetensors"}));
  succeed(without_option(quantize_gpt2("two.thmb", {"--hessians", "h.safetensors", "--bits-per-weight", "8"}),
                         "--calibration-sequences"));
  EXPECT_NEAR(bits_per_byte("two.thmb"), bits_per_byte("gpt2.safetensors"), 0.1);
}

TEST_F(Gpt2Test, SlopeUsesGradientsCrossTermsAndDistillation) {
  const Json report = succeed_json(quantize_gpt2("out.thmb", {"--bits-per-weight", "5", "--distill-steps", "3"}));
  const Json& statistics = report.at("loss_statistics");
  EXPECT_EQ(statistics.at("tables").size(), 2u) << "tokens and positions";
  EXPECT_EQ(statistics.at("head").at("name"), "transformer.wte.weight");
  EXPECT_EQ(report.at("distill").at("steps"), 3);
  EXPECT_TRUE(report.at("seconds").contains("cross terms: solve"));
}

TEST_F(Gpt2Test, BadFilesAreNamed) {
  const Arguments eval = scoring();
  write("cut.bin", Bytes(without_end(contents("gpt2.bin"), 4)));
  expect_failure(4, Arguments{"eval", "cut.bin"} + eval, {"cut.bin", "its header asks for"});
  expect_failure(2, Arguments{"eval", "gpt2.bin", "--config", "gpt2.json"} + eval, {"--config", "gpt2.bin"});
  Json config = Json::parse(as_text(contents("gpt2.json")));
  config["activation_function"] = "relu";
  write("relu.json", config.dump());
  expect_failure(4, Arguments{"eval", "gpt2.safetensors", "--config", "relu.json"} + eval,
                 {"relu.json", "'activation_function' is \"relu\"", "'gelu_new'"});
}

}  // namespace
}  // namespace thimble::testing::gpt2_cli_test
