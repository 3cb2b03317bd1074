// modes_cli_test.cpp: --numerics of eval, generate and quantize on the CPU.
#include <set>

#include "tests/cli/cli_fixture.h"

namespace thimble::testing::modes_cli_test {
namespace {

const char* const kModes[] = {"fp32", "bf16", "fp16", "sf16", "sf16-q115", "sf16-legacy", "sf16-legacy-q115", "nvfp4"};

using ModesTest = CliTest;

TEST_F(ModesTest, EvalScoresInEveryModeAndSaysWhich) {
  std::set<double> all;
  for (const char* mode : kModes) {
    const Json report =
        succeed_json(Arguments{"eval", "model.safetensors", "--device", "cpu", "--numerics", mode} + scoring());
    all.insert(report.at("evaluations").at(0).at("bits_per_byte").get<double>());
    const std::string device = report.at("device");
    EXPECT_EQ(device.find(mode) != std::string::npos, std::string(mode) != "fp32") << device;
  }
  EXPECT_EQ(all.size(), std::size(kModes));
}

TEST_F(ModesTest, GenerateWritesInAMode) {
  const Arguments arguments = {"generate", "model.safetensors", "--tokenizer", "sp.model", "--length",
                               "20",       "--device",          "cpu"};
  const Json first = succeed_json(arguments + Arguments{"--numerics", "sf16"});
  EXPECT_THAT(first.at("device").get<std::string>(), HasSubstr("sf16"));
  EXPECT_EQ(succeed_json(arguments + Arguments{"--numerics", "sf16"}), first);
}

// Another mode's calibration text and Hessians are not taken for this one's.
TEST_F(ModesTest, QuantizeCollectsHessiansInAModeAndKeepsThemApart) {
  std::set<std::string> hessians;
  for (const char* mode : {"fp32", "fp16", "sf16-legacy"}) {
    const std::string name = std::string(mode) + ".safetensors";
    quantize("out.thmb", {"--device", "cpu", "--numerics", mode, "--keep-work", "--save-hessians", name});
    const ByteVector bytes = contents(name);
    hessians.emplace(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  EXPECT_EQ(hessians.size(), 3u);
}

TEST_F(ModesTest, TheLossIsThatOfFp32InEveryMode) {
  quantize("out.thmb", {"--device", "cpu", "--numerics", "bf16"});
  succeed({"verify", "out.thmb"});
}

TEST_F(ModesTest, OtherModesAreRefused) {
  for (const char* mode : {"q115", "FP16", "fp8", "sf16-true"})
    expect_failure(2, Arguments{"eval", "model.safetensors", "--numerics", mode} + scoring(),
                   {"--numerics", "fp32", "sf16-legacy-q115", "nvfp4"});
}

}  // namespace
}  // namespace thimble::testing::modes_cli_test
