// quantize_cli_test.cpp: `thimble quantize`: equal bytes for equal requests, the budget, precisions, codecs,
// formats.
#include <set>

#include "packer/artifact.h"
#include "quantizer/formats/safetensors.h"
#include "tests/cli/cli_fixture.h"
#include "tests/support/test_files.h"

namespace thimble::testing::quantize_cli_test {
namespace {

constexpr int kSolvedLayers = 14;  // of the tiny model, with more than 100 elements

class QuantizeTest : public CliTest {
 protected:
  // Artifact bytes with a fixed number of high-precision layers.
  uint64_t bytes_with_high(int64_t high) const {
    Arguments arguments = trace_arguments("probe.thmb", {"--high", std::to_string(high)});
    return succeed_json(arguments).at("artifact_bytes");
  }

  // Precisions of the layers solved with a Hessian, as the report says.
  static std::map<std::string, int> precision_counts(const Json& report) {
    std::map<std::string, int> counts;
    for (const Json& layer : report.at("layers")) ++counts[layer.at("precision")];
    return counts;
  }
};

TEST_F(QuantizeTest, TwiceGivesTheSameBytes) {
  quantize("a.thmb");
  quantize("b.thmb");
  EXPECT_EQ(contents("a.thmb"), contents("b.thmb"));
  EXPECT_EQ(names(),
            (Arguments{"a.thmb", "b.thmb", "config.json", "model.safetensors", "sp.model", "text.txt", "val.bin"}));
}

TEST_F(QuantizeTest, TheNumberOfThreadsDoesNotMatter) {
  quantize("one.thmb", {"--threads", "1"});
  quantize("two.thmb", {"--threads", "2"});
  quantize("five.thmb", {"--threads", "5"});
  EXPECT_EQ(contents("one.thmb"), contents("two.thmb"));
  EXPECT_EQ(contents("one.thmb"), contents("five.thmb"));
}

TEST_F(QuantizeTest, PathsAndTimesLeaveNoTrace) {
  std::filesystem::create_directory(path("sub"));
  quantize("a.thmb");
  succeed(
      quantize_arguments(path("sub/b.thmb"), {"--no-resume", "--config", "config.json"}, path("model.safetensors")));
  EXPECT_EQ(contents("a.thmb"), contents("sub/b.thmb"));
}

TEST_F(QuantizeTest, AnotherSeedOrTemperatureGivesAnotherCalibration) {
  quantize("a.thmb", {"--save-calibration", "a.bin"});
  quantize("b.thmb", {"--save-calibration", "b.bin", "--seed", "1"});
  quantize("c.thmb", {"--save-calibration", "c.bin", "--temperature", "1.5"});
  EXPECT_NE(contents("a.bin"), contents("b.bin"));
  EXPECT_NE(contents("a.bin"), contents("c.bin"));
  EXPECT_NE(contents("a.thmb"), contents("b.thmb"));
  EXPECT_EQ(size("a.bin"), 1024 + 3 * 32 * 2);
}

TEST_F(QuantizeTest, TheReportAgreesWithTheFile) {
  Json report = succeed_json(trace_arguments("out.thmb", {"--code", "text.txt"}));
  EXPECT_EQ(report.at("artifact_bytes"), size("out.thmb"));
  EXPECT_EQ(report.at("original_bytes"), size("model.safetensors"));
  EXPECT_EQ(report.at("code_bytes"), size("text.txt"));
  EXPECT_EQ(report.at("total_bytes"), size("out.thmb") + size("text.txt"));
  EXPECT_EQ(report.at("high_count"), 10);
  EXPECT_EQ(report.at("pruned_codes"), 0);
  EXPECT_EQ(precision_counts(report), (std::map<std::string, int>{{"int5 gptq", 4}, {"int6 gptq", 10}}));
  // Most sensitive first, and these have the higher precision.
  const Json& layers = report.at("layers");
  ASSERT_EQ(layers.size(), kSolvedLayers);
  for (size_t i = 1; i < layers.size(); ++i) EXPECT_GE(layers[i - 1].at("sensitivity"), layers[i].at("sensitivity"));
  EXPECT_EQ(layers[9].at("precision"), "int6 gptq");
  EXPECT_EQ(layers[10].at("precision"), "int5 gptq");

  Json inspected = succeed_json({"inspect", "out.thmb"});
  EXPECT_EQ(inspected.at("parameters"), report.at("parameters"));
  EXPECT_EQ(inspected.at("file_bytes"), size("out.thmb"));
  double stored = inspected.at("container_bytes");
  for (const Json& section : inspected.at("sections")) stored += section.at("stored_bytes").get<double>();
  EXPECT_EQ(stored, size("out.thmb"));
}

TEST_F(QuantizeTest, AutoFillsTheBudgetAndOneMoreLayerWouldNotFit) {
  uint64_t budget = (bytes_with_high(5) + bytes_with_high(6)) / 2 + size("text.txt");
  Json report = succeed_json(
      trace_arguments("out.thmb", {"--budget", std::to_string(budget), "--code", "text.txt", "--high", "auto"}));
  int64_t high = report.at("high_count");
  EXPECT_EQ(high, 5);
  EXPECT_EQ(report.at("pruned_codes"), 0);
  EXPECT_LE(size("out.thmb") + size("text.txt"), budget);
  EXPECT_GT(bytes_with_high(high + 1) + size("text.txt"), budget);
  EXPECT_EQ(succeed_json({"budget", "out.thmb", "--limit", std::to_string(budget), "--code", "text.txt"}).at("fits"),
            true);
  // The very plan that was found, asked for by number.
  trace("same.thmb", {"--high", std::to_string(high)});
  EXPECT_EQ(contents("same.thmb"), contents("out.thmb"));
  // With a budget, auto is the default.
  trace("default.thmb", {"--budget", std::to_string(budget), "--code", "text.txt"});
  EXPECT_EQ(contents("default.thmb"), contents("out.thmb"));
}

TEST_F(QuantizeTest, ABudgetMetToTheByte) {
  std::string exact = std::to_string(bytes_with_high(7)), less = std::to_string(bytes_with_high(7) - 1);
  Json fits = succeed_json(trace_arguments("out.thmb", {"--budget", exact}));
  EXPECT_EQ(fits.at("high_count"), 7);
  EXPECT_EQ(fits.at("artifact_bytes"), bytes_with_high(7));
  EXPECT_EQ(succeed_json(trace_arguments("out.thmb", {"--budget", less})).at("high_count"), 6);
}

TEST_F(QuantizeTest, AMoreThanAmpleBudgetTakesEveryLayer) {
  EXPECT_EQ(succeed_json(trace_arguments("out.thmb", {"--budget", "1000000"})).at("high_count"), kSolvedLayers);
}

TEST_F(QuantizeTest, PruningMeetsABudgetBelowTheLowestPrecision) {
  uint64_t unpruned = bytes_with_high(0), budget = unpruned - 50;
  Json report = succeed_json(trace_arguments("out.thmb", {"--budget", std::to_string(budget)}));
  EXPECT_EQ(report.at("high_count"), 0);
  EXPECT_GT(report.at("pruned_codes"), 0);
  EXPECT_LE(size("out.thmb"), budget);
  // As few codes as needed, within the slack that the search allows itself.
  EXPECT_GT(size("out.thmb"), budget - budget / 50);
  EXPECT_THAT(succeed(trace_arguments("again.thmb", {"--budget", std::to_string(budget)})).out,
              HasSubstr("codes of +-1 set to 0"));
  EXPECT_EQ(contents("again.thmb"), contents("out.thmb"));
  EXPECT_TRUE(succeed_json({"verify", "out.thmb"}).at("identical"));
}

TEST_F(QuantizeTest, AFixedHighCountIsPrunedToo) {
  uint64_t budget = bytes_with_high(4) - 50;
  Json report = succeed_json(trace_arguments("out.thmb", {"--budget", std::to_string(budget), "--high", "4"}));
  EXPECT_EQ(report.at("high_count"), 4);
  EXPECT_GT(report.at("pruned_codes"), 0);
  EXPECT_LE(size("out.thmb"), budget);
}

TEST_F(QuantizeTest, HighNoneAllAndMoreThanThereAre) {
  Json none = succeed_json(trace_arguments("none.thmb", {"--high", "0"}));
  EXPECT_EQ(precision_counts(none), (std::map<std::string, int>{{"int5 gptq", kSolvedLayers}}));
  Json all = succeed_json(trace_arguments("all.thmb", {"--high", std::to_string(kSolvedLayers)}));
  EXPECT_EQ(precision_counts(all), (std::map<std::string, int>{{"int6 gptq", kSolvedLayers}}));
  Json more = succeed_json(trace_arguments("more.thmb", {"--high", "1000"}));
  EXPECT_EQ(more.at("high_count"), kSolvedLayers);
  EXPECT_EQ(contents("more.thmb"), contents("all.thmb"));
  EXPECT_LT(size("none.thmb"), size("all.thmb"));
}

TEST_F(QuantizeTest, Bits) {
  Json report = succeed_json(trace_arguments("out.thmb", {"--bits", "4,6", "--high", "3"}));
  EXPECT_EQ(precision_counts(report), (std::map<std::string, int>{{"int4 gptq", 11}, {"int6 gptq", 3}}));
  std::map<std::string, std::string> precisions;
  Json inspected = succeed_json({"inspect", "out.thmb"});
  for (const Json& tensor : inspected.at("tensors")) precisions[tensor.at("name")] = tensor.at("precision");
  EXPECT_EQ(precisions.at("tok_emb.weight"), "int8");
  EXPECT_EQ(precisions.at("smear.gate"), "F16");
  report = succeed_json(trace_arguments("out.thmb", {"--bits", "3"}));
  EXPECT_EQ(precision_counts(report), (std::map<std::string, int>{{"int3 gptq", kSolvedLayers}}));
  for (const QuantizedTensor& tensor : decoded("out.thmb").tensors) {
    if (const auto* codes = std::get_if<RowScaledCodes>(&tensor.data); codes && tensor.name.starts_with("blocks.")) {
      EXPECT_EQ(codes->max_code, 3) << tensor.name;
    }
  }
}

TEST_F(QuantizeTest, CodecsChangeTheBytesAndNothingElse) {
  auto expect_only_bytes_change = [&](const auto& arguments_of) {
    succeed(arguments_of("zstd.thmb", "zstd"));
    for (const char* codec : {"brotli", "xz", "rans", "none", "auto"}) {
      SCOPED_TRACE(codec);
      succeed(arguments_of("out.thmb", codec));
      EXPECT_NE(contents("out.thmb"), contents("zstd.thmb"));
      EXPECT_EQ(decoded("out.thmb"), decoded("zstd.thmb"));
      EXPECT_TRUE(succeed_json({"verify", "out.thmb"}).at("identical"));
    }
    EXPECT_LE(size("out.thmb"), size("zstd.thmb")) << "auto, the last one";
  };
  expect_only_bytes_change([](const std::string& output, const std::string& codec) {
    return quantize_arguments(output, {"--codec", codec});
  });
  expect_only_bytes_change([](const std::string& output, const std::string& codec) {
    return trace_arguments(output, {"--codec", codec});
  });
}

TEST_F(QuantizeTest, PortableArtifactsNeedNoCompressionLibrary) {
  auto expect_no_library = [&](const auto& arguments_of) {
    succeed(arguments_of("plain.thmb", Arguments{"--codec", "rans"}));
    succeed(arguments_of("portable.thmb", Arguments{"--codec", "rans", "--portable"}));
    EXPECT_EQ(decoded("portable.thmb"), decoded("plain.thmb"));
    EXPECT_TRUE(succeed_json({"verify", "portable.thmb"}).at("identical"));
    std::set<std::string> codecs;
    for (const SectionSummary& section : describe_artifact(contents("portable.thmb"), "portable.thmb").sections)
      codecs.insert(section.codec);
    EXPECT_EQ(codecs, (std::set<std::string>{"none", "rans"}));
  };
  expect_no_library([](const std::string& output, const Arguments& more) { return quantize_arguments(output, more); });
  expect_no_library([](const std::string& output, const Arguments& more) { return trace_arguments(output, more); });
  expect_failure(2, quantize_arguments("out.thmb", {"--portable", "--codec", "xz"}),
                 {"--portable goes with --codec rans, not with xz"});
}

TEST_F(QuantizeTest, MinElementsLeavesSmallMatricesAlone) {
  Json report = succeed_json(Arguments{"quantize", "model.safetensors", "-o", "out.thmb", "--method", "trace"} +
                             Arguments{"--calibration-sequences", "1", "--calibration-length", "8"});
  EXPECT_EQ(report.at("high_count"), 0) << "no matrix is above the default";
  for (const QuantizedTensor& tensor : decoded("out.thmb").tensors)
    EXPECT_TRUE(std::holds_alternative<RawTensor>(tensor.data)) << tensor.name;
}

TEST_F(QuantizeTest, EveryFormOfACheckpointGivesTheSameWeights) {
  quantize("plain.thmb");
  write_torch_file(path("model.pt"), tiny_weights());
  succeed(quantize_arguments("torch.thmb", {}, "model.pt"));
  EXPECT_EQ(contents("torch.thmb"), contents("plain.thmb"));

  write_safetensors(path("banked.safetensors"), views_of(banked(tiny_weights())));
  succeed(quantize_arguments("banked.thmb", {}, "banked.safetensors"));
  QuantizedModel from_banks = decoded("banked.thmb");
  EXPECT_TRUE(from_banks.banked);
  EXPECT_EQ(from_banks.tensors, decoded("plain.thmb").tensors);

  write_torch_file(path("banked.pt"), banked(tiny_weights()));
  succeed(quantize_arguments("banked_torch.thmb", {}, "banked.pt"));
  EXPECT_EQ(contents("banked_torch.thmb"), contents("banked.thmb"));

  // Names as a compiled, distributed model has them; and the config inside the file.
  Tensors wrapped;
  for (auto& [name, tensor] : tiny_weights()) wrapped["module._orig_mod." + name] = tensor;
  write_safetensors(path("wrapped.safetensors"), views_of(wrapped), {{"config", config().dump()}});
  std::filesystem::remove(path("config.json"));
  succeed(quantize_arguments("wrapped.thmb", {}, "wrapped.safetensors"));
  EXPECT_EQ(contents("wrapped.thmb"), contents("plain.thmb"));
}

TEST_F(QuantizeTest, ScoresBeforeAndAfterAgreeWithEval) {
  Json report = succeed_json(quantize_arguments("out.thmb", scoring()));
  Json evaluations = succeed_json(Arguments{"eval", "model.safetensors", "out.thmb"} + scoring()).at("evaluations");
  EXPECT_EQ(report.at("evaluation").at("before").at("bits_per_byte"), evaluations[0].at("bits_per_byte"));
  EXPECT_EQ(report.at("evaluation").at("after").at("bits_per_byte"), evaluations[1].at("bits_per_byte"));
  EXPECT_THAT(succeed(quantize_arguments("out.thmb", scoring())).out,
              AllOf(HasSubstr("BPB before"), HasSubstr("BPB after"), HasSubstr("context 32, stride 16")));
}

TEST_F(QuantizeTest, TheBundledExample) {
  std::string example = source_file("examples/tiny/");
  if (!file_exists(example + "model.safetensors")) GTEST_SKIP() << "no bundled example in this checkout";
  Arguments arguments = {"quantize", example + "model.safetensors", "-o", "out.thmb", "--budget", "600000"};
  Arguments calibration = {"--calibration-sequences", "2", "--calibration-length", "64"};
  Json report = succeed_json(arguments + calibration + Arguments{"--text", example + "text.txt"} +
                             Arguments{"--tokenizer", example + "tokenizer.model", "--context", "128"} +
                             Arguments{"--max-targets", "256"});
  EXPECT_LE(size("out.thmb"), 600'000);
  double before = report.at("evaluation").at("before").at("bits_per_byte");
  double after = report.at("evaluation").at("after").at("bits_per_byte");
  EXPECT_GT(before, 1);
  EXPECT_LT(before, 3);
  EXPECT_NEAR(after, before, 0.5);
}

}  // namespace
}  // namespace thimble::testing::quantize_cli_test
