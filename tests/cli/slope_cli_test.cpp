// slope_cli_test.cpp: `thimble quantize --method slope`: targets, equal bytes, what the artifact holds, refused
// options.
#include "eval/text/token_shard.h"
#include "quantizer/methods/effort.h"
#include "tests/cli/cli_fixture.h"

namespace thimble::testing::slope_cli_test {
namespace {

using SlopeTest = CliTest;

TEST_F(SlopeTest, IsTheDefault) {
  Json report = succeed_json({"quantize", "model.safetensors", "-o", "out.thmb", "--calibration-sequences", "2",
                              "--calibration-length", "32"});
  EXPECT_EQ(report.at("method"), "slope");
  EXPECT_EQ(succeed_json({"inspect", "out.thmb"}).at("provenance").at("method"), "slope");
}

TEST_F(SlopeTest, FillsABudgetAndNeverExceedsIt) {
  for (uint64_t budget : {20'000, 30'000}) {
    Json report =
        succeed_json(quantize_arguments("out.thmb", {"--budget", std::to_string(budget), "--code", "text.txt"}));
    uint64_t total = size("out.thmb") + size("text.txt");
    EXPECT_EQ(report.at("total_bytes"), total);
    EXPECT_LE(total, budget);
    EXPECT_GE(static_cast<double>(total), 0.999 * static_cast<double>(budget) - static_cast<double>(size("text.txt")));
    EXPECT_LE(report.at("encodes"), 12);
  }
}

TEST_F(SlopeTest, BitsPerWeightAreOfAllParameters) {
  Json report = succeed_json(quantize_arguments("out.thmb", {"--bits-per-weight", "5"}));
  EXPECT_LE(report.at("bits_per_parameter"), 5);
  EXPECT_GE(report.at("bits_per_parameter"), 4.9);
}

// On text that the model wrote: there it cannot but lose.
TEST_F(SlopeTest, AGapIsMetAndASmallerOneTakesMoreBytes) {
  succeed({"quantize", "model.safetensors", "-o", "out.thmb", "--calibration-sequences", "64", "--calibration-length",
           "32", "--temperature", "1", "--distill-steps", "0", "--save-calibration", "own.bin"});
  std::map<std::string, uint64_t> bytes;
  for (std::string gap : {"0.02", "0.2"}) {
    Json report = succeed_json(quantize_arguments("out.thmb", Arguments{"--target-bpb-gap", gap} + scoring("own.bin")));
    double before = report.at("evaluation").at("before").at("bits_per_byte");
    double after = report.at("evaluation").at("after").at("bits_per_byte");
    EXPECT_LE(after - before, std::stod(gap));
    EXPECT_GE(after - before, 0.5 * std::stod(gap));  // that of so small a model moves in leaps
    EXPECT_LE(report.at("encodes"), 12 + 1);          // where the gap leaps, the smallest of all too
    bytes[gap] = size("out.thmb");
  }
  EXPECT_GT(bytes["0.02"], bytes["0.2"]);
}

TEST_F(SlopeTest, ThreadsAndRunsDoNotMatter) {
  for (std::string bits : {"0", "5"}) {
    for (std::string threads : {"1", "2", "5"})
      succeed(
          quantize_arguments(threads + ".thmb", {"--budget", "20000", "--trellis-bits", bits, "--threads", threads}));
    EXPECT_EQ(contents("1.thmb"), contents("2.thmb"));
    EXPECT_EQ(contents("1.thmb"), contents("5.thmb"));
  }
}

TEST_F(SlopeTest, TemperaturesTakeTurns) {
  auto text_at = [&](const std::string& temperatures) {
    succeed(quantize_arguments("out.thmb", {"--temperature", temperatures, "--save-calibration", "text.bin"}));
    const std::vector<Token> tokens = parse_shard(Bytes(contents("text.bin")), "text.bin");
    std::vector<std::vector<Token>> sequences;
    for (auto first = tokens.begin(); first != tokens.end(); first += 32) sequences.emplace_back(first, first + 32);
    return sequences;
  };
  const auto cold = text_at("0.5"), hot = text_at("2"), both = text_at("0.5,2");
  ASSERT_EQ(both.size(), 3);
  EXPECT_EQ(both[0], cold[0]);
  EXPECT_EQ(both[2], cold[1]);
  EXPECT_NE(both[1], cold[1]);
  EXPECT_NE(both[1], hot[0]);  // another seed
  EXPECT_NE(both[1][0], both[0][0]);
  const Json calibration = succeed_json({"inspect", "out.thmb"}).at("provenance").at("calibration");
  EXPECT_EQ(calibration.at("temperature"), Json({0.5, 2}));
}

// Of a model as small as this one, unless somebody asks how gains are to be tuned, or how many steps to take.
TEST_F(SlopeTest, EffortDecidesWhetherCodesAreLearned) {
  const auto learned_steps = [&](const Arguments& arguments) -> int64_t {
    const Arguments small = {
        "quantize", "model.safetensors",    "-o", "out.thmb",   "--log2-step", "-5", "--calibration-sequences",
        "3",        "--calibration-length", "32", "--no-resume"};
    const Json report = succeed_json(small + arguments);
    return report.contains("learn") ? report.at("learn").at("steps").get<int64_t>() : 0;
  };
  EXPECT_EQ(learned_steps({"--effort", "fast"}), 0);
  EXPECT_EQ(learned_steps({"--effort", "default"}), level_of(Effort::kDefault).learn_steps);
  EXPECT_EQ(learned_steps({"--effort", "default", "--distill-steps", "1"}), 0);
  EXPECT_EQ(learned_steps({"--effort", "default", "--distill-steps", "1", "--learn-steps", "2"}), 2);
  EXPECT_EQ(learned_steps({"--effort", "best", "--learn-steps", "0"}), 0);
}

TEST_F(SlopeTest, OrdersOfColumnsGiveOtherCodes) {
  for (const std::string order : {"descending", "ascending", "natural"}) {
    succeed(quantize_arguments(order + ".thmb", {"--log2-step", "-8", "--column-order", order}));
    EXPECT_EQ(succeed_json({"inspect", order + ".thmb"}).at("provenance").at("column_order"), order);
    succeed({"export", order + ".thmb", "-o", order + ".safetensors"});
  }
  EXPECT_NE(contents("descending.safetensors"), contents("ascending.safetensors"));
  EXPECT_NE(contents("descending.safetensors"), contents("natural.safetensors"));
}

TEST_F(SlopeTest, CrossTermsChangeCodesOfLaterLayersOnly) {
  succeed(quantize_arguments("out.thmb", {"--log2-step", "-6"}));
  EXPECT_EQ(succeed_json({"inspect", "out.thmb"}).at("provenance").at("cross_term"), 1.0) << "the default";
  for (const std::string strength : {"0", "0.5", "1"}) {
    Json report = succeed_json(quantize_arguments(strength + ".thmb", {"--log2-step", "-6", "--cross-term", strength}));
    EXPECT_EQ(succeed_json({"inspect", strength + ".thmb"}).at("provenance").at("cross_term"), std::stod(strength));
    succeed({"verify", strength + ".thmb"});
  }
  auto codes = [&](const std::string& file, const std::string& tensor) {
    const QuantizedModel model = decoded(file);
    return std::get<SteppedCodes>(std::ranges::find(model.tensors, tensor, &QuantizedTensor::name)->data).codes;
  };
  EXPECT_EQ(codes("0.thmb", "tok_emb.weight"), codes("1.thmb", "tok_emb.weight"));
  EXPECT_NE(codes("0.thmb", "blocks.1.mlp.proj.weight"), codes("1.thmb", "blocks.1.mlp.proj.weight"));
  EXPECT_NE(codes("0.5.thmb", "blocks.1.mlp.proj.weight"), codes("1.thmb", "blocks.1.mlp.proj.weight"));
  succeed(quantize_arguments("budget.thmb", {"--budget", "20000", "--cross-term", "1"}));
  EXPECT_LE(size("budget.thmb"), 20'000);
}

// Where gains are tuned, and a codec makes less of coarse values.
TEST_F(SlopeTest, SmallTensorsHaveFewBits) {
  const Arguments several = {"--log2-step", "-6", "--calibration-sequences", "8"};
  const auto bytes_and_bits = [&](const Arguments& more) {
    succeed(quantize_arguments("out.thmb", several + more));
    succeed({"verify", "out.thmb"});
    const Json shown = succeed_json({"inspect", "out.thmb"});
    int64_t most_bits = 0;
    for (const Json& tensor : shown.at("tensors"))
      if (tensor.at("precision") == "F16" && tensor.at("elements") >= 8 && tensor.contains("significant_bits"))
        most_bits = std::max<int64_t>(most_bits, tensor.at("significant_bits"));
    return std::pair<uint64_t, int64_t>(shown.at("bytes_by_kind").at("raw"), most_bits);
  };
  const auto [bytes, bits] = bytes_and_bits({});
  const auto [plain_bytes, plain_bits] = bytes_and_bits({"--distill-steps", "0"});
  EXPECT_LT(bytes, 0.9 * static_cast<double>(plain_bytes));
  EXPECT_LT(bits, 12);
  EXPECT_GT(plain_bits, 11);
  EXPECT_GT(bytes_and_bits({"--portable"}).second, 11) << "nothing would be saved";
  EXPECT_GT(bytes_and_bits({"--codec", "none"}).second, 11);
  EXPECT_THAT(succeed({"inspect", "out.thmb"}).out, HasSubstr("tensors without codes"));
}

TEST_F(SlopeTest, RoundedSmallTensorsAreTheSameAgain) {
  const Arguments several = {"--budget", "20000", "--calibration-sequences", "8"};
  succeed(quantize_arguments("one.thmb", several + Arguments{"--threads", "1", "--keep-work"}));
  succeed(quantize_arguments("three.thmb", several + Arguments{"--threads", "3"}));
  EXPECT_EQ(contents("one.thmb"), contents("three.thmb"));
  succeed(quantize_arguments("one.thmb", several));
  EXPECT_EQ(contents("one.thmb"), contents("three.thmb"));
  EXPECT_GE(size("one.thmb"), 19'980);
}

TEST_F(SlopeTest, KeptResultsGiveTheSameBytes) {
  succeed(quantize_arguments("a.thmb", {"--budget", "20000", "--keep-work"}));
  ByteVector first = contents("a.thmb");
  succeed(quantize_arguments("a.thmb", {"--budget", "20000"}));
  EXPECT_EQ(contents("a.thmb"), first);
}

TEST_F(SlopeTest, TheArtifactIsWhatItWasMadeFrom) {
  succeed(quantize_arguments("out.thmb", {"--bits-per-weight", "6", "--trellis-bits", "3"}));
  succeed({"verify", "out.thmb"});
  const QuantizedModel model = decoded("out.thmb");
  for (const QuantizedTensor& tensor : model.tensors)
    if (const auto* stepped = std::get_if<SteppedCodes>(&tensor.data)) {
      EXPECT_EQ(stepped->trellis_bits, 3) << tensor.name;
    }
  const Json shown = succeed_json({"inspect", "out.thmb"});
  for (const Json& tensor : shown.at("tensors"))
    if (tensor.at("shape").size() == 2 && tensor.at("elements") > 100) {
      EXPECT_EQ(tensor.at("precision"), "trellis8") << tensor.at("name");
    }
  // Six bits are enough for this model to stay much as it was.
  Json scored = succeed_json(Arguments{"eval", "model.safetensors", "out.thmb"} + scoring());
  EXPECT_LT(std::abs(scored.at("evaluations")[1].at("gap_bits_per_byte").get<double>()), 0.1);
}

TEST_F(SlopeTest, SavedStatisticsGiveTheSameArtifact) {
  const Arguments saved = {"--hessians", "h.safetensors", "--log2-step", "-6"};
  succeed(quantize_arguments(
      "a.thmb", {"--log2-step", "-6", "--save-hessians", "h.safetensors", "--save-calibration", "text.bin"}));
  succeed(quantize_arguments("b.thmb", saved + Arguments{"--calibration-tokens", "text.bin"}));
  EXPECT_TRUE(decoded("a.thmb").tensors == decoded("b.thmb").tensors);
  // Without the text there are no cross terms, and nothing to distil on.
  succeed(quantize_arguments("a.thmb", {"--log2-step", "-6", "--cross-term", "0", "--distill-steps", "0"}));
  succeed(quantize_arguments("b.thmb", saved));
  EXPECT_TRUE(decoded("a.thmb").tensors == decoded("b.thmb").tensors);
  EXPECT_EQ(succeed_json({"inspect", "b.thmb"}).at("provenance").at("cross_term"), 0.0);
}

TEST_F(SlopeTest, HessiansWithoutAFisherWillDo) {
  trace("t.thmb", {"--save-hessians", "h.safetensors"});
  succeed(quantize_arguments("out.thmb", {"--bits-per-weight", "5", "--hessians", "h.safetensors"}));
  succeed({"verify", "out.thmb"});
}

// Before it begins: here it ends at the budget.
TEST_F(SlopeTest, ALongRunSaysFirstWhatItWillTake) {
  const Arguments arguments =
      quantize_arguments("out.thmb", {"--budget", "100", "--learn-steps", "1048576", "--learn-batch", "1024"});
  const RunResult result = thimble(arguments);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, ::testing::StartsWith("expected to take about "));
  for (const char* word : {" thread", ": text ", ", statistics ", ", search "})
    EXPECT_THAT(result.err, HasSubstr(word));
  EXPECT_THAT(thimble(arguments + Arguments{"--quiet"}).err, ::testing::StartsWith("thimble: the budget"));
}

TEST_F(SlopeTest, ABudgetThatCannotBeMetIsRefused) {
  expect_failure(3, quantize_arguments("out.thmb", {"--budget", "100"}), {"budget cannot be met", "may take 100 B"});
  EXPECT_FALSE(exists("out.thmb.work")) << "calibrated for nothing";
  // The limit that is named is the user's: what code leaves of the budget.
  const uint64_t left = 2000, budget = left + size("text.txt");
  expect_failure(3, quantize_arguments("out.thmb", {"--budget", std::to_string(budget), "--code", "text.txt"}),
                 {"budget cannot be met", "may take 2,000 B"});
  EXPECT_FALSE(exists("out.thmb"));
}

// In the text and in the JSON.
TEST_F(SlopeTest, TheFillIsToldAndWhyItIsLess) {
  const std::string text = succeed(quantize_arguments("out.thmb", {"--budget", "20000"})).out;
  EXPECT_NE(text.find("(fill 99.9"), std::string::npos) << text;
  EXPECT_EQ(text.find("warning:"), std::string::npos) << text;
  Json report = succeed_json(quantize_arguments("out.thmb", {"--budget", "20000", "--code", "text.txt"}));
  EXPECT_DOUBLE_EQ(report.at("fill"), report.at("total_bytes").get<double>() / 20'000);
  EXPECT_FALSE(report.contains("fill_reason"));
  EXPECT_TRUE(report.at("warnings").empty());

  report = succeed_json(quantize_arguments("out.thmb", {"--budget", "5000000", "--distill-steps", "0"}));
  EXPECT_LT(report.at("fill"), 0.999);
  EXPECT_NE(report.at("fill_reason").get<std::string>().find("finest codes"), std::string::npos);
  EXPECT_EQ(report.at("warnings").size(), 1);

  report = succeed_json(quantize_arguments("out.thmb", {"--budget", "5000000", "--log2-step", "-6"}));
  EXPECT_NE(report.at("fill_reason").get<std::string>().find("was asked for"), std::string::npos);
}

TEST_F(SlopeTest, MethodsWithoutAKnobSayThatTheyDoNotFill) {
  for (const std::string method : {"trace", "nvfp4"}) {
    const Arguments arguments = {"quantize",
                                 "model.safetensors",
                                 "-o",
                                 "out.thmb",
                                 "--method",
                                 method,
                                 "--budget",
                                 "5000000",
                                 "--calibration-sequences",
                                 "2",
                                 "--calibration-length",
                                 "32"};
    const Json report = succeed_json(arguments);
    EXPECT_LT(report.at("fill"), 0.999);
    EXPECT_NE(report.at("fill_reason").get<std::string>().find("method " + method), std::string::npos);
    EXPECT_NE(succeed(arguments).out.find("warning: "), std::string::npos);
  }
}

// What a refusal names works, and a byte less does not.
TEST_F(SlopeTest, TheSmallestArtifactIsTheOneNamed) {
  const RunResult refused = thimble(quantize_arguments("out.thmb", {"--budget", "100"}));
  EXPECT_EQ(refused.exit_code, 3);
  const std::string before = "the smallest artifact takes ";
  std::string bytes = refused.err.substr(refused.err.find(before) + before.size());
  bytes = bytes.substr(0, bytes.find(" B"));
  std::erase(bytes, ',');
  succeed(quantize_arguments("out.thmb", {"--budget", bytes}));
  EXPECT_EQ(std::to_string(size("out.thmb")), bytes);
  expect_failure(3, quantize_arguments("out.thmb", {"--budget", std::to_string(std::stoul(bytes) - 1)}),
                 {"budget cannot be met", before});
}

TEST_F(SlopeTest, AnArtifactLargerThanItsCheckpointIsWarnedOf) {
  const Arguments arguments =
      quantize_arguments("out.thmb", {"--log2-step", "-9", "--distill-steps", "0", "--codec", "none"});
  const Json report = succeed_json(arguments);
  ASSERT_GT(report.at("artifact_bytes"), report.at("original_bytes"));
  ASSERT_EQ(report.at("warnings").size(), 1);
  EXPECT_NE(report.at("warnings")[0].get<std::string>().find("larger than its checkpoint"), std::string::npos);
  EXPECT_NE(succeed(arguments).out.find("warning: the artifact is larger than its checkpoint"), std::string::npos);
}

TEST_F(SlopeTest, AHugeGapIsMetByTheSmallestArtifact) {
  const Arguments huge = Arguments{"--target-bpb-gap", "100"} + scoring();
  succeed(quantize_arguments("out.thmb", huge));
  const uint64_t smallest = size("out.thmb");
  expect_failure(3, quantize_arguments("other.thmb", {"--budget", std::to_string(smallest - 1)}),
                 {"smallest artifact"});
}

TEST_F(SlopeTest, OptionsAreChecked) {
  expect_failure(2, quantize_arguments("out.thmb", {"--log2-step", "-8", "--target-bpb-gap", "1"}),
                 {"--log2-step", "--target-bpb-gap"});
  expect_failure(2, quantize_arguments("out.thmb", {"--trellis-bits", "1"}), {"--trellis-bits", "0 and 2 to 8"});
  expect_failure(2, quantize_arguments("out.thmb", {"--trellis-bits", "9"}), {"--trellis-bits"});
  expect_failure(2, quantize_arguments("out.thmb", {"--column-order", "sideways"}), {"--column-order", "sideways"});
  expect_failure(2, quantize_arguments("out.thmb", {"--cross-term", "1.5"}), {"--cross-term", "1.5"});
  expect_failure(2, quantize_arguments("out.thmb", {"--temperature", "0.5,-1"}), {"--temperature", "-1"});
  expect_failure(2, quantize_arguments("out.thmb", {"--target-bpb-gap", "0.01"}), {"--target-bpb-gap", "--tokenizer"});
  expect_failure(2, {"quantize", "model.safetensors", "-o", "out.thmb", "--method", "magic"},
                 {"magic", "slope, trace"});
  expect_failure(2, trace_arguments("out.thmb", {"--bits-per-weight", "3"}), {"--method slope"});
  EXPECT_FALSE(exists("out.thmb"));
}

}  // namespace
}  // namespace thimble::testing::slope_cli_test
