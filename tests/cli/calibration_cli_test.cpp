// calibration_cli_test.cpp: calibration tokens and Hessians from files instead of the model: what was saved gives
// the weights of the run that saved it, and models that this program cannot run are quantized from Hessians alone.
#include <array>

#include "eval/text/token_shard.h"
#include "quantizer/formats/hessian_file.h"
#include "quantizer/formats/safetensors.h"
#include "tests/cli/cli_fixture.h"
#include "tests/gptq/statistics/loaded_hessians.h"

namespace thimble::testing::calibration_cli_test {
namespace {

using CalibrationTest = CliTest;

Json provenance_of(const QuantizedModel& model) { return parse_json(as_bytes_of(model.provenance_json), "provenance"); }

TEST_F(CalibrationTest, SavedHessiansGiveTheSameWeights) {
  quantize("first.thmb", {"--save-hessians", "h.safetensors", "--distill-steps", "0", "--cross-term", "0"});
  Json report = succeed_json(quantize_arguments("second.thmb", {"--hessians", "h.safetensors"}));
  EXPECT_FALSE(report.contains("distill"));  // without tokens to distill on
  EXPECT_FALSE(report.at("seconds").contains("calibration"));
  QuantizedModel first = decoded("first.thmb"), second = decoded("second.thmb");
  EXPECT_EQ(first.tensors, second.tensors);
  EXPECT_EQ(first.config_json, second.config_json);
  // The second run does not know what text the Hessians come from, and does not claim to.
  EXPECT_EQ(provenance_of(first).at("calibration").at("sequences"), 3);
  EXPECT_EQ(provenance_of(second).at("calibration"), "hessians");
}

TEST_F(CalibrationTest, SavingHessiansAgainGivesTheSameFile) {
  trace("first.thmb", {"--save-hessians", "h.safetensors"});
  trace("second.thmb", {"--hessians", "h.safetensors", "--save-hessians", "again.safetensors"});
  EXPECT_EQ(contents("h.safetensors"), contents("again.safetensors"));
}

TEST_F(CalibrationTest, FisherIsReportedAndChangesNoWeight) {
  trace("plain.thmb", {"--save-hessians", "plain.safetensors"});
  Json report = succeed_json(trace_arguments("out.thmb", {"--fisher", "--save-hessians", "h.safetensors"}));
  EXPECT_EQ(contents("out.thmb"), contents("plain.thmb"));
  for (const Json& layer : report.at("layers")) EXPECT_GT(layer.at("output_fisher"), 0) << layer;
  const Json& loss = report.at("loss_statistics");
  EXPECT_EQ(loss.at("tokens"), 3 * 31);
  EXPECT_EQ(loss.at("head").at("name"), "tok_emb.weight");
  EXPECT_GT(loss.at("head").at("output_fisher"), 0);
  EXPECT_EQ(loss.at("tables").at("tok_emb.weight").at("rows"), 264);
  EXPECT_GT(loss.at("tables").at("bigram.embed.weight").at("lookup_fisher"), 0);

  StoredStatistics saved = read_hessian_file(path("h.safetensors"));
  StoredStatistics plain = read_hessian_file(path("plain.safetensors"));
  EXPECT_TRUE(plain.loss.empty());
  ASSERT_EQ(saved.hessians.size(), plain.hessians.size());
  for (const auto& [layer, hessian] : plain.hessians) EXPECT_EQ(*saved.hessians.at(layer)->load(), *hessian->load());
  EXPECT_EQ(saved.loss.output_fisher.size(), saved.hessians.size() + 1);  // and the head
}

TEST_F(CalibrationTest, SavedFisherIsTakenAgain) {
  trace("first.thmb", {"--fisher", "--save-hessians", "h.safetensors"});
  Json report = succeed_json(trace_arguments(
      "second.thmb", {"--fisher", "--hessians", "h.safetensors", "--save-hessians", "again.safetensors"}));
  EXPECT_TRUE(report.contains("loss_statistics"));
  EXPECT_EQ(contents("h.safetensors"), contents("again.safetensors"));
  EXPECT_EQ(decoded("first.thmb").tensors, decoded("second.thmb").tensors);
}

TEST_F(CalibrationTest, KeptFisherIsTakenAgain) {
  Arguments kept = {"--work-dir", "work", "--keep-work"};
  trace("plain.thmb", kept);
  trace("first.thmb", kept + Arguments{"--fisher", "--save-hessians", "h.safetensors"});
  trace("second.thmb", kept + Arguments{"--fisher", "--save-hessians", "again.safetensors"});
  EXPECT_EQ(contents("h.safetensors"), contents("again.safetensors"));
  EXPECT_EQ(contents("plain.thmb"), contents("second.thmb"));
}

TEST_F(CalibrationTest, FisherOfAnotherModelIsNamed) {
  trace("first.thmb", {"--fisher", "--save-hessians", "h.safetensors"});
  auto expect_refusal = [&](const std::function<void(StoredStatistics&)>& change, const std::string& words) {
    StoredStatistics statistics = read_hessian_file(path("h.safetensors"));
    change(statistics);
    write_hessian_file(path("bad"), statistics);
    expect_failure(4, trace_arguments("out.thmb", {"--fisher", "--hessians", "bad"}), {"bad: ", words});
  };
  const std::string layer = "blocks.0.mlp.fc.weight", table = "tok_emb.weight";
  expect_refusal([&](auto& s) { s.loss.output_fisher.erase(layer); }, "no output Fisher of '" + layer + "'");
  expect_refusal([&](auto& s) { s.loss.output_fisher.at(layer).mean_square.pop_back(); },
                 "output Fisher '" + layer + "' has 63 values");
  expect_refusal([&](auto& s) { s.loss.output_fisher["v"] = s.loss.output_fisher.at(layer); },
                 "output Fisher 'v' names no tensor");
  expect_refusal([&](auto& s) { s.loss.lookup_fisher.at(table).mean_square.push_back(1); },
                 "lookup Fisher '" + table + "' has 33 values");
  expect_refusal([&](auto& s) { s.loss.row_counts.at(table).pop_back(); }, "row counts '" + table + "' has 263 values");
  expect_refusal([&](auto& s) { s.loss.head.at(table) = load_all(s.hessians).at("bigram.proj.weight"); },
                 "Hessian '" + table + "' has 8 columns");
  trace("plain.thmb", {"--save-hessians", "plain.safetensors"});
  expect_failure(4, trace_arguments("out.thmb", {"--fisher", "--hessians", "plain.safetensors"}),
                 {"plain.safetensors", "no output Fisher"});
}

TEST_F(CalibrationTest, SavedTokensGiveTheSameWeights) {
  quantize("first.thmb", {"--save-calibration", "text.bin", "--save-hessians", "h1.safetensors"});
  quantize("second.thmb", {"--calibration-tokens", "text.bin", "--save-hessians", "h2.safetensors"});
  EXPECT_EQ(contents("h1.safetensors"), contents("h2.safetensors"));
  EXPECT_EQ(decoded("first.thmb").tensors, decoded("second.thmb").tensors);
  EXPECT_EQ(provenance_of(decoded("second.thmb")).at("calibration"), "tokens");
}

// What is drawn from a text is what --save-calibration keeps of it, whoever reads it.
TEST_F(CalibrationTest, TextIsDrawnFrom) {
  const Arguments text = {"--calibration-text", "text.txt", "--tokenizer", "sp.model"};
  quantize("first.thmb", text + Arguments{"--save-calibration", "drawn.bin"});
  quantize("again.thmb", text);
  quantize("second.thmb", {"--calibration-tokens", "drawn.bin"});
  EXPECT_EQ(contents("first.thmb"), contents("again.thmb"));
  EXPECT_EQ(decoded("first.thmb").tensors, decoded("second.thmb").tensors);
  EXPECT_EQ(read_shards(std::array{path("drawn.bin")}).size(), 3U * 32);
  EXPECT_EQ(provenance_of(decoded("first.thmb")).at("calibration"),
            (Json{{"from", "text"}, {"length", 32}, {"seed", 0}, {"sequences", 3}}));
  quantize("other.thmb", text + Arguments{"--seed", "1"});
  EXPECT_NE(decoded("first.thmb").tensors, decoded("other.thmb").tensors);
}

// What follows counts where text is given: as much as the temperature says, or somebody.
TEST_F(CalibrationTest, DataShareIsRecorded) {
  const Arguments text = {"--calibration-text", "text.txt", "--tokenizer", "sp.model"};
  auto recorded = [&](const Arguments& arguments) {
    quantize("out.thmb", arguments);
    return provenance_of(decoded("out.thmb")).value("data_share", Json(0));
  };
  EXPECT_EQ(recorded({}), 0);
  EXPECT_EQ(recorded({"--data-share", "auto"}), 0);
  EXPECT_EQ(recorded(text), "auto");
  EXPECT_EQ(recorded(text + Arguments{"--data-share", "0"}), 0);
  EXPECT_EQ(recorded(text + Arguments{"--data-share", "0.5"}), 0.5);
  auto counted = [&](const char* temperature) {
    const Arguments tuned = {"--distill-steps", "2", "--target-temperature", temperature};
    return succeed_json(quantize_arguments("out.thmb", text + tuned)).at("distill").at("data_share");
  };
  EXPECT_EQ(counted("0.96"), 0.04);
  EXPECT_EQ(counted("0.8"), 0.1);
  EXPECT_EQ(counted("1.1"), 0);
  for (const char* value : {"1", "nan", "some"})
    expect_failure(2, quantize_arguments("other.thmb", text + Arguments{"--data-share", value}), {"--data-share"});
  expect_failure(2, quantize_arguments("other.thmb", {"--data-share", "0.1"}), {"--data-share", "--calibration-text"});
}

// Text that is given says at which temperature the original predicts it; what the model writes does where its rotary
// embeddings are not what they were in training: beyond 64 tokens.
TEST_F(CalibrationTest, TargetTemperatureIsRecorded) {
  const Arguments text = {"--calibration-text", "text.txt", "--tokenizer", "sp.model"};
  auto recorded = [&](const Arguments& arguments) {
    quantize("out.thmb", arguments);
    return provenance_of(decoded("out.thmb")).value("target_temperature", Json(1));
  };
  EXPECT_EQ(recorded({}), 1);
  EXPECT_EQ(recorded(text), "auto");
  EXPECT_EQ(recorded(text + Arguments{"--target-temperature", "1"}), 1);
  EXPECT_EQ(recorded({"--target-temperature", "0.9"}), 0.9);
  EXPECT_EQ(recorded({"--target-temperature", "auto"}), 1);
  for (const char* value : {"0.4", "nan", "warm"})
    expect_failure(2, quantize_arguments("other.thmb", {"--target-temperature", value}), {"--target-temperature"});
}

TEST_F(CalibrationTest, BeyondTheTrainedLengthTheModelTellsATemperature) {
  const Arguments length = {"--calibration-length", "96", "--distill-steps", "2"};
  const Json report = succeed_json(quantize_arguments("out.thmb", length));
  EXPECT_EQ(provenance_of(decoded("out.thmb")).at("target_temperature"), "auto");
  const double temperature = report.at("distill").at("target_temperature");
  EXPECT_NEAR(temperature, 1, 0.15);
  EXPECT_NE(temperature, 1);
  EXPECT_EQ(succeed_json(quantize_arguments("again.thmb", length)).at("distill").at("target_temperature"), temperature);
  quantize("none.thmb", {"--calibration-length", "96", "--distill-steps", "0"});  // nothing that it would be for
  EXPECT_FALSE(provenance_of(decoded("none.thmb")).contains("target_temperature"));
}

TEST_F(CalibrationTest, SeveralShardsAreDrawnFrom) {
  std::vector<Token> tokens = read_shards(std::array{path("val.bin")});
  const auto cut = tokens.begin() + static_cast<ptrdiff_t>(tokens.size() / 3);
  write_shard(path("part1.bin"), std::vector<Token>(tokens.begin(), cut), kShard16Vocabulary);
  write_shard(path("part2.bin"), std::vector<Token>(cut, tokens.end()), kShard16Vocabulary);
  const Arguments sequences = {"--calibration-sequences", "3"};
  quantize("whole.thmb", sequences + Arguments{"--calibration-tokens", "val.bin"});
  quantize("parts.thmb", sequences + Arguments{"--calibration-tokens", "part*.bin"});
  EXPECT_EQ(contents("whole.thmb"), contents("parts.thmb"));
  EXPECT_EQ(provenance_of(decoded("parts.thmb")).at("calibration").at("from"), "tokens");
}

TEST_F(CalibrationTest, TextBesideHessiansIsDistilledOn) {
  const Arguments text = {"--calibration-text", "text.txt", "--tokenizer", "sp.model"};
  quantize("first.thmb", text + Arguments{"--save-hessians", "h.safetensors"});
  Json report = succeed_json(quantize_arguments(
      "second.thmb", text + Arguments{"--hessians", "h.safetensors"} + Arguments{"--calibration-sequences", "3"}));
  EXPECT_TRUE(report.contains("distill"));
  EXPECT_EQ(decoded("first.thmb").tensors, decoded("second.thmb").tensors);
}

TEST_F(CalibrationTest, OtherTokensGiveOtherWeights) {
  std::vector<Token> tokens;
  for (Token i = 0; i < 3 * 32; ++i) tokens.push_back(i * 7 % 264);
  write_shard(path("other.bin"), tokens, kShard16Vocabulary);
  quantize("first.thmb");
  quantize("second.thmb", {"--calibration-tokens", "other.bin"});
  EXPECT_NE(decoded("first.thmb").tensors, decoded("second.thmb").tensors);
}

TEST_F(CalibrationTest, DamagedHessiansAreRefused) {
  quantize("first.thmb", {"--save-hessians", "h.safetensors"});
  ByteVector whole = contents("h.safetensors");
  for (size_t at : {size_t{0}, size_t{12}, whole.size() / 2, whole.size() - 1, whole.size() - 4}) {
    write("bad", with_flipped_bit(whole, at));
    expect_failure(4, quantize_arguments("out.thmb", {"--hessians", "bad"}), {"bad"});
  }
  for (size_t cut : {size_t{1}, whole.size() / 2, whole.size()}) {
    write("bad", without_end(whole, cut));
    expect_failure(4, quantize_arguments("out.thmb", {"--hessians", "bad"}), {"bad"});
  }
  EXPECT_FALSE(exists("out.thmb"));
  EXPECT_FALSE(exists("out.thmb.work"));
}

TEST_F(CalibrationTest, HessiansOfAnotherModelAreNamed) {
  auto identity = [](int64_t size) {
    std::vector<float> values(static_cast<size_t>(size * size));
    for (int64_t i = 0; i < size; ++i) values[static_cast<size_t>(i * size + i)] = 1;
    return Tensor{DType::kF32, {size, size}, from_float32(DType::kF32, values)};
  };
  write_safetensors(path("h"), views_of({{"blocks.9.mlp.fc.weight", identity(32)}}));
  expect_failure(4, quantize_arguments("out.thmb", {"--hessians", "h"}),
                 {"h: ", "blocks.9.mlp.fc.weight", "model.safetensors"});
  write_safetensors(path("h"), views_of({{"blocks.0.mlp.fc.weight", identity(33)}}));
  expect_failure(4, quantize_arguments("out.thmb", {"--hessians", "h"}),
                 {"blocks.0.mlp.fc.weight", "33 columns", "[64, 32]"});
  Tensor lopsided = identity(32);
  lopsided.bytes[7] = std::byte{0x40};
  write_safetensors(path("h"), views_of({{"blocks.0.mlp.fc.weight", lopsided}}));
  expect_failure(4, quantize_arguments("out.thmb", {"--hessians", "h"}), {"blocks.0.mlp.fc.weight", "symmetric"});
}

// A family this program knows nothing about: weights, a config, and Hessians collected elsewhere.
class OtherFamilyTest : public CliTest {
 protected:
  OtherFamilyTest() {
    weights_ = {{"first.weight", random_tensor({24, 16}, 1, 1)},
                {"second.weight", random_tensor({8, 24}, 1, 2)},
                {"second.bias", random_tensor({8}, 1, 3)},
                {"table", random_tensor({20, 20}, 1, 4)}};
    write_safetensors(path("other.safetensors"), views_of(weights_));
    write("other.json", R"({"architecture":"two-matrices","width":16})");
    HessianSet hessians;
    hessians["first.weight"] = hessian_of(random_tensor({40, 16}, 1, 5), 16);
    hessians["second.weight"] = hessian_of(random_tensor({40, 24}, 1, 6), 24);
    write_hessian_file(path("h.safetensors"), store_in_memory(CalibrationStatistics{hessians, {}}));
  }

  static std::shared_ptr<const Hessian> hessian_of(const Tensor& inputs, int64_t columns) {
    HessianCollector collector;
    std::vector<float> values = to_float32(inputs.view());
    collector.on_linear_input(std::array{std::string("layer")}, {values.data(), inputs.shape[0], columns});
    return std::move(collector).finish().at("layer");
  }

  Arguments arguments(const std::string& output, const Arguments& more = {}) const {
    return Arguments{"quantize", "other.safetensors", "-o", output, "--method", "trace", "--config", "other.json"} +
           Arguments{"--hessians", "h.safetensors", "--min-elements", "100"} + more;
  }

  Tensors weights_;
};

TEST_F(OtherFamilyTest, IsQuantizedFromHessians) {
  Json report = succeed_json(arguments("out.thmb", {"--bits", "6"}));
  EXPECT_EQ(report.at("layers").size(), 2);
  Json inspected = succeed_json({"inspect", "out.thmb"});
  EXPECT_EQ(inspected.at("config").at("architecture"), "two-matrices");
  std::map<std::string, std::string> precisions;
  for (const Json& tensor : inspected.at("tensors")) precisions[tensor.at("name")] = tensor.at("precision");
  EXPECT_EQ(precisions,
            (std::map<std::string, std::string>{
                {"first.weight", "int6"}, {"second.bias", "F16"}, {"second.weight", "int6"}, {"table", "int8"}}));
  EXPECT_TRUE(succeed_json({"verify", "out.thmb"}).at("identical"));
}

TEST_F(OtherFamilyTest, IsExportedUnderItsOwnNames) {
  succeed(arguments("out.thmb", {"--bits", "6"}));
  succeed({"export", "out.thmb", "-o", "back.safetensors"});
  MappedFile file(path("back.safetensors"));
  CheckpointContents back = read_safetensors(file.bytes(), "back.safetensors");
  ASSERT_EQ(back.tensors.size(), weights_.size());
  for (const auto& [name, tensor] : weights_) {
    ASSERT_TRUE(back.tensors.contains(name)) << name;
    EXPECT_EQ(back.tensors.at(name).shape, tensor.shape) << name;
    std::vector<float> before = to_float32(tensor.view()), after = to_float32(back.tensors.at(name));
    // int6 of values up to about 3: steps of a tenth.
    for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(before[i], after[i], 0.5) << name;
  }
  EXPECT_EQ(Json::parse(back.metadata.at("config")), Json::parse(R"({"architecture":"two-matrices","width":16})"));
}

TEST_F(OtherFamilyTest, IsRefusedByWhatMustRunIt) {
  succeed(arguments("out.thmb"));
  expect_failure(4, Arguments{"eval", "out.thmb"} + scoring(), {"out.thmb", "two-matrices", "golf-gpt"});
  expect_failure(4, Arguments{"audit", "out.thmb"} + scoring(), {"out.thmb", "two-matrices"});
  expect_failure(4, {"generate", "out.thmb", "--tokenizer", "sp.model"}, {"out.thmb", "two-matrices"});
  expect_failure(4, arguments("scored.thmb", scoring()), {"other.safetensors", "two-matrices"});
  EXPECT_FALSE(exists("scored.thmb"));
}

TEST_F(OtherFamilyTest, FitsABudgetAndResumes) {
  succeed(arguments("out.thmb", {"--bits", "4,6", "--high", "1"}));
  std::string budget = std::to_string(size("out.thmb"));
  Json report = succeed_json(arguments("fit.thmb", {"--bits", "4,6", "--budget", budget, "--keep-work"}));
  EXPECT_EQ(report.at("high_count"), 1);
  EXPECT_EQ(contents("fit.thmb"), contents("out.thmb"));
  ByteVector before = contents("fit.thmb");
  succeed(arguments("fit.thmb", {"--bits", "4,6", "--budget", budget}));
  EXPECT_EQ(contents("fit.thmb"), before);
}

TEST_F(OtherFamilyTest, WithoutAConfig) {
  std::filesystem::remove(path("config.json"));
  Arguments without = {"quantize", "other.safetensors", "-o", "out.thmb", "--hessians", "h.safetensors"};
  succeed(without + Arguments{"--min-elements", "100"});
  EXPECT_EQ(succeed_json({"inspect", "out.thmb"}).at("config"), Json::object());
  write("list.json", "[1]");
  expect_failure(4, without + Arguments{"--config", "list.json"}, {"list.json"});
}

TEST_F(OtherFamilyTest, ValuesBeyondFp16KeepTheirTypeAndAreNotExportedAsInfinity) {
  weights_["second.bias"] = random_tensor({8}, 1e6f, 3);
  write_safetensors(path("other.safetensors"), views_of(weights_));
  succeed(arguments("out.thmb"));
  succeed({"export", "out.thmb", "-o", "back.safetensors"});
  MappedFile file(path("back.safetensors"));
  EXPECT_EQ(to_float32(read_safetensors(file.bytes(), "back").tensors.at("second.bias")),
            to_float32(weights_["second.bias"].view()));
  expect_failure(4, {"export", "out.thmb", "-o", "small.safetensors", "--dtype", "F16"}, {"second.bias", "F16"});
  EXPECT_FALSE(exists("small.safetensors"));
}

}  // namespace
}  // namespace thimble::testing::calibration_cli_test
