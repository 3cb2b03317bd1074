// folder_cli_test.cpp: the commands on a checkpoint that is a folder of shards, or its index: the same results as of
// the single file, without further options.
#include <filesystem>

#include "tests/cli/cli_fixture.h"
#include "tests/quantizer/checkpoints/checkpoint_folder_builder.h"

namespace thimble::testing::folder_cli_test {
namespace {

constexpr const char* kIndex = "hub/model.safetensors.index.json";

// Beside the folder's model.safetensors: hub/, the same in three shards with config and tokenizer.
class FolderCliTest : public CliTest {
 protected:
  FolderCliTest() {
    std::filesystem::create_directory(path("hub"));
    const Tensors weights = tiny_weights();
    write_sharded_folder(path("hub"), views_of(weights), 3);
    std::filesystem::copy_file(path("config.json"), path("hub/config.json"));
    std::filesystem::copy_file(path("sp.model"), path("hub/tokenizer.model"));
    write("hub/generation_config.json", "{}");
  }
  static Arguments without_tokenizer() { return without_option(scoring(), "--tokenizer"); }
  Json evaluation(const Arguments& arguments) const {
    Json found = succeed_json(arguments).at("evaluations").at(0);
    for (const char* other : {"model", "file_bytes"}) found.erase(other);
    return without_times(found);
  }
};

TEST_F(FolderCliTest, EvalNeedsNoOtherOption) {
  std::filesystem::rename(path("config.json"), path("hub/other.json"));
  const Json folder = evaluation(Arguments{"eval", "hub"} + without_tokenizer());
  EXPECT_EQ(evaluation(Arguments{"eval", "hub/"} + scoring()), folder);
  EXPECT_EQ(evaluation(Arguments{"eval", kIndex} + without_tokenizer()), folder);
  EXPECT_EQ(evaluation(Arguments{"eval", "model.safetensors", "--config", "hub/other.json"} + scoring()), folder);
  EXPECT_EQ(evaluation(Arguments{"eval", "hub", "--check-finite"} + without_tokenizer()), folder);
}

TEST_F(FolderCliTest, OtherCommandsFindTheTokenizerToo) {
  const Arguments generate = {"generate", "hub", "--length", "8"};
  EXPECT_EQ(succeed_json(generate).at("tokens"),
            succeed_json({"generate", "model.safetensors", "--tokenizer", "sp.model", "--length", "8"}).at("tokens"));
  EXPECT_EQ(succeed_json(Arguments{"audit", "hub"} + without_tokenizer()).at("passed"), true);
  std::filesystem::remove(path("hub/tokenizer.model"));
  for (const Arguments& arguments :
       {generate, Arguments{"eval", "hub"} + without_tokenizer(), Arguments{"audit", kIndex} + without_tokenizer(),
        Arguments{"sweep", "hub", "-o", "curve"} + without_tokenizer()})
    expect_failure(2, arguments, {"--tokenizer is required", "'hub' has none", "tokenizer.model"});
  expect_failure(2, Arguments{"eval", "model.safetensors"} + without_tokenizer(), {"--tokenizer is required"});
}

TEST_F(FolderCliTest, ATokenizerMayBeNamedByItsFolder) {
  const Arguments folder = {"--tokenizer", "hub"}, file = {"--tokenizer", "sp.model"};
  const Arguments generate = {"generate", "model.safetensors", "--length", "8"};
  EXPECT_EQ(succeed_json(generate + folder).at("tokens"), succeed_json(generate + file).at("tokens"));
  EXPECT_EQ(evaluation(Arguments{"eval", "model.safetensors"} + without_tokenizer() + folder),
            evaluation(Arguments{"eval", "model.safetensors"} + scoring()));
  write("text.txt", "The sea.");
  const Arguments tokenize = {"tokenize", "text.txt", "-o"};
  succeed_json(tokenize + Arguments{"by-folder.bin"} + folder);
  succeed_json(tokenize + Arguments{"by-file.bin"} + file);
  EXPECT_EQ(contents("by-folder.bin"), contents("by-file.bin"));
  // The file inside is an input like any other.
  expect_failure(2, tokenize + Arguments{"hub/tokenizer.model"} + folder, {"hub/tokenizer.model"});
  std::filesystem::remove(path("hub/tokenizer.model"));
  expect_failure(4, generate + folder, {"hub: is a folder without tokenizer.json"});
}

TEST_F(FolderCliTest, QuantizesToTheSameWeights) {
  const Json report = succeed_json(trace_arguments("folder.thmb", without_tokenizer(), "hub"));
  EXPECT_TRUE(report.contains("evaluation"));
  trace("file.thmb");
  EXPECT_EQ(decoded("folder.thmb").tensors, decoded("file.thmb").tensors);
}

TEST_F(FolderCliTest, SweepsAsTheFile) {
  const Arguments more = {"--methods",
                          "trace",
                          "--budgets",
                          "40000",
                          "--calibration-sequences",
                          "3",
                          "--min-elements",
                          "100",
                          "--calibration-length",
                          "32"};
  const auto points = [&](const Arguments& arguments) {
    Json found = succeed_json(arguments + more).at("points");
    for (Json& point : found) point.erase("seconds");
    return found;
  };
  const Json folder = points(Arguments{"sweep", "hub", "-o", "one"} + without_tokenizer());
  const Json file = points(Arguments{"sweep", "model.safetensors", "-o", "two"} + scoring());
  ASSERT_EQ(folder.size(), file.size());
  for (size_t i = 0; i < file.size(); ++i) EXPECT_EQ(folder[i].at("bits_per_byte"), file[i].at("bits_per_byte"));
}

TEST_F(FolderCliTest, InspectShowsTheTensorsOfAllShards) {
  for (const char* name : {"hub", kIndex}) {
    const Json report = succeed_json({"inspect", name});
    EXPECT_EQ(report.at("tensors").size(), tiny_weights().size());
    EXPECT_EQ(report.at("config_from"), "hub/config.json");
    EXPECT_EQ(report.at("problem"), "");
    uint64_t bytes = 0;
    for (size_t i = 1; i <= 3; ++i) bytes += size("hub/" + shard_name(i, 3));
    EXPECT_EQ(report.at("file_bytes"), bytes);
  }
}

TEST_F(FolderCliTest, AnOutputNeverReplacesAFileOfTheFolder) {
  for (const std::string& name : {shard_name(2, 3), std::string("config.json"), std::string("tokenizer.model"),
                                  std::string("model.safetensors.index.json")})
    expect_failure(2, trace_arguments("hub/" + name, without_tokenizer(), "hub"), {"--output", "would replace"});
  // What the run does not read may be replaced, and files may be added.
  succeed(trace_arguments("hub/model.thmb", {}, "hub"));
  succeed(trace_arguments("hub/model.thmb", {}, "hub"));
}

TEST_F(FolderCliTest, AFolderThatLacksSomethingIsExplained) {
  std::filesystem::remove(path("hub/" + shard_name(3, 3)));
  for (const Arguments& arguments : {Arguments{"inspect", "hub"}, Arguments{"eval", "hub"} + without_tokenizer(),
                                     trace_arguments("out.thmb", {}, "hub")})
    expect_failure(4, arguments, {kIndex, "1 shard of 3 missing"});
  expect_failure(4, {"inspect", "hub/" + shard_name(1, 3)}, {"is part 1 of 3", "give the folder"});
}

}  // namespace
}  // namespace thimble::testing::folder_cli_test
