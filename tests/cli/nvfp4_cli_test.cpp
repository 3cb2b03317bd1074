// nvfp4_cli_test.cpp: `quantize --method nvfp4` and what takes its artifacts: eval, inspect, verify, export, resume,
// the budget; `thimble numerics --stage`.
#include <cmath>

#include "quantizer/formats/safetensors.h"
#include "runtime/codes/nvfp4_scale_layout.h"
#include "tests/cli/cli_fixture.h"

namespace thimble::testing::nvfp4_cli_test {
namespace {

class Nvfp4Test : public CliTest {
 protected:
  static Arguments arguments_of(const std::string& method, const std::string& output) {
    return {"quantize",
            "model.safetensors",
            "-o",
            output,
            "--method",
            method,
            "--min-elements",
            "100",
            "--calibration-sequences",
            "3",
            "--calibration-length",
            "32",
            "--codec",
            "zstd"};
  }
  static Arguments nvfp4_arguments(const std::string& output, const Arguments& more = {}) {
    return arguments_of("nvfp4", output) + more;
  }
};

TEST_F(Nvfp4Test, EveryMatrixIsInNvfp4AndTwiceGivesTheSameBytes) {
  const Json report = succeed_json(nvfp4_arguments("a.thmb"));
  EXPECT_EQ(report.at("method"), "nvfp4");
  succeed(nvfp4_arguments("b.thmb", {"--threads", "1"}));
  EXPECT_EQ(contents("a.thmb"), contents("b.thmb"));
  for (const Json& layer : report.at("layers")) EXPECT_EQ(layer.at("precision"), "nvfp4 gptq");
  int in_nvfp4 = 0;
  for (const QuantizedTensor& tensor : decoded("a.thmb").tensors) {
    const bool is_large = tensor.shape.size() == 2 && element_count(tensor.shape) > 100;
    EXPECT_EQ(std::holds_alternative<Nvfp4Codes>(tensor.data), is_large) << tensor.name;
    in_nvfp4 += is_large;
  }
  EXPECT_GT(in_nvfp4, 14) << "embeddings too";
}

TEST_F(Nvfp4Test, TheReportSaysWhatWasMade) {
  const RunResult result = succeed(nvfp4_arguments("a.thmb"));
  int64_t in_nvfp4 = 0, others = 0;
  for (const QuantizedTensor& tensor : decoded("a.thmb").tensors)
    ++(std::holds_alternative<Nvfp4Codes>(tensor.data) ? in_nvfp4 : others);
  EXPECT_THAT(result.out, HasSubstr("NVFP4 for " + std::to_string(in_nvfp4) + " matrices, F16 for " +
                                    std::to_string(others) + " tensors"));
  EXPECT_THAT(result.out, Not(HasSubstr("most sensitive")));
  EXPECT_EQ(succeed_json(nvfp4_arguments("a.thmb")).at("precisions"), Json({{"F16", others}, {"nvfp4", in_nvfp4}}));
}

TEST_F(Nvfp4Test, EvalInspectVerifyAndGenerateTakeIt) {
  succeed(nvfp4_arguments("a.thmb"));
  EXPECT_TRUE(succeed_json(Arguments{"verify", "a.thmb"}).at("identical").get<bool>());
  EXPECT_THAT(succeed({"inspect", "a.thmb"}).out, HasSubstr("nvfp4"));
  const double quantized =
      succeed_json(Arguments{"eval", "a.thmb"} + scoring()).at("evaluations").at(0).at("bits_per_byte");
  const double original =
      succeed_json(Arguments{"eval", "model.safetensors"} + scoring()).at("evaluations").at(0).at("bits_per_byte");
  EXPECT_NEAR(quantized, original, 0.2 * original);
  // What export writes is the very model that eval scores.
  succeed({"export", "a.thmb", "-o", "out.safetensors"});
  EXPECT_EQ(succeed_json(Arguments{"eval", "out.safetensors", "--config", "config.json"} + scoring())
                .at("evaluations")
                .at(0)
                .at("bits_per_byte"),
            quantized);
}

TEST_F(Nvfp4Test, ABudgetIsMetOrNot) {
  const uint64_t bytes = succeed_json(nvfp4_arguments("a.thmb")).at("artifact_bytes");
  succeed(nvfp4_arguments("b.thmb", {"--budget", std::to_string(bytes)}));
  EXPECT_EQ(contents("a.thmb"), contents("b.thmb"));
  expect_failure(3, nvfp4_arguments("c.thmb", {"--budget", std::to_string(bytes - 1)}), {"the budget cannot be met"});
  expect_failure(3, nvfp4_arguments("c.thmb", {"--budget", "1000"}), {"not solved by GPTQ"});
  EXPECT_FALSE(exists("c.thmb"));
}

TEST_F(Nvfp4Test, OptionsOfSlopeAreRefused) {
  expect_failure(2, nvfp4_arguments("a.thmb", {"--bits-per-weight", "3"}), {"--method slope"});
  expect_failure(2, arguments_of("fp4", "a.thmb"), {"slope, trace, nvfp4"});
}

TEST_F(Nvfp4Test, KeptSolutionsGiveTheSameBytes) {
  succeed(nvfp4_arguments("a.thmb", {"--work-dir", "work", "--keep-work"}));
  succeed(nvfp4_arguments("b.thmb", {"--work-dir", "work"}));
  EXPECT_EQ(contents("a.thmb"), contents("b.thmb"));
}

TEST_F(Nvfp4Test, ExportsCodesAndArrangedScales) {
  succeed(nvfp4_arguments("a.thmb"));
  const Json result = succeed_json({"export", "a.thmb", "-o", "fp4.safetensors", "--layout", "nvfp4"});
  MappedFile file(path("fp4.safetensors"));
  const CheckpointContents stored = read_safetensors(file.bytes(), "fp4.safetensors");
  size_t found = 0;
  for (const QuantizedTensor& tensor : decoded("a.thmb").tensors) {
    const auto* coded = std::get_if<Nvfp4Codes>(&tensor.data);
    if (!coded) {
      EXPECT_EQ(stored.tensors.at(tensor.name).shape, tensor.shape);
      continue;
    }
    ++found;
    const int64_t rows = tensor.shape[0], blocks = nvfp4_blocks(tensor.shape[1]);
    auto bytes_of = [&](const std::string& name) {
      Bytes bytes = stored.tensors.at(name).bytes;
      const auto* first = reinterpret_cast<const uint8_t*>(bytes.data());
      return std::vector<uint8_t>(first, first + bytes.size());
    };
    EXPECT_EQ(bytes_of(tensor.name), coded->codes);
    EXPECT_EQ(restore_scales(bytes_of(tensor.name + "_scale"), rows, blocks), coded->block_scales);
    EXPECT_EQ(to_float32(DType::kF32, stored.tensors.at(tensor.name + "_scale_2").bytes),
              std::vector<float>{coded->tensor_scale});
  }
  EXPECT_EQ(result.at("nvfp4_tensors"), found);
  trace("trace.thmb");
  expect_failure(2, {"export", "trace.thmb", "-o", "x.safetensors", "--layout", "nvfp4"}, {"trace.thmb", "NVFP4"});
}

TEST_F(Nvfp4Test, SweepsIt) {
  const Json report = succeed_json(nvfp4_arguments("a.thmb"));
  const uint64_t bytes = report.at("artifact_bytes");
  Arguments sweep = {"sweep",
                     "model.safetensors",
                     "-o",
                     "sweep",
                     "--methods",
                     "nvfp4",
                     "--budgets",
                     std::to_string(bytes + 100),
                     "--min-elements",
                     "100",
                     "--calibration-sequences",
                     "3",
                     "--calibration-length",
                     "32"};
  const Json swept = succeed_json(sweep + scoring());
  EXPECT_EQ(swept.at("points").at(0).at("method"), "nvfp4");
}

TEST_F(Nvfp4Test, NumericsStages) {
  const Json layout = succeed_json({"numerics", "--stage", "nvfp4"});
  EXPECT_EQ(layout.at("shapes"), 845);
  EXPECT_EQ(layout.at("layout_errors"), 0);
  EXPECT_EQ(layout.at("uniform_errors"), 0);
  const Json moe = succeed_json({"numerics", "--stage", "moe", "--device", "cpu"});
  EXPECT_TRUE(moe.at("passed").get<bool>());
  for (const Json& stage : moe.at("stages")) {
    const std::string name = stage.at("stage");
    expect_failure(3, {"numerics", "--stage", "moe", "--device", "cpu", "--inject", name}, {"stage '" + name + "'"});
  }
  expect_failure(2, {"numerics", "--stage", "moe", "--inject", "nowhere"}, {"nowhere", "router"});
  expect_failure(2, {"numerics", "--inject", "router"}, {"--stage moe"});
}

}  // namespace
}  // namespace thimble::testing::nvfp4_cli_test
