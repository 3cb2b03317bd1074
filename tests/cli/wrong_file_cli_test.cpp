// wrong_file_cli_test.cpp: a file that is not what was asked for is named for what it is, wherever it is given; and
// `inspect` of checkpoints.
#include <filesystem>

#include "quantizer/formats/safetensors.h"
#include "tests/cli/cli_fixture.h"

namespace thimble::testing::wrong_file_cli_test {
namespace {

using WrongFileTest = CliTest;

// A command with a file in each position that takes one: for `name`, the arguments and what is expected there.
std::vector<std::pair<Arguments, std::string>> positions(const std::string& name) {
  const Arguments quantize = {"quantize", "model.safetensors", "-o", "out.thmb"};
  return {{{"quantize", name, "-o", "out.thmb"}, "a checkpoint"},
          {{"eval", name, "--tokens", "val.bin", "--tokenizer", "sp.model"}, "a checkpoint"},
          {{"inspect", name}, "a checkpoint"},
          {{"verify", name}, "a thimble artifact"},
          {{"export", name, "-o", "out.safetensors"}, "a thimble artifact"},
          {{"budget", name, "--limit", "1M"}, "a thimble artifact"},
          {{"eval", "model.safetensors", "--tokens", name, "--tokenizer", "sp.model"}, "a token shard"},
          {{"eval", "model.safetensors", "--tokens", "val.bin", "--tokenizer", name}, "a SentencePiece model"},
          {quantize + Arguments{"--calibration-tokens", name}, "a token shard"},
          {quantize + Arguments{"--hessians", name}, "a file of Hessians"},
          {quantize + Arguments{"--config", name}, "a model config"}};
}

TEST_F(WrongFileTest, IsNamedInEveryPosition) {
  const std::vector<std::pair<std::string, std::string>> files = {
      {"GGUF\x03", "is a GGUF file of llama.cpp"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a Git LFS pointer"},
      {"<!DOCTYPE html>\n<html>", "is an HTML page"},
      {"{\"metadata\":{},\"weight_map\":{}}", "is the index of a checkpoint in several files"},
      {"{\"version\":\"1.0\",\"truncation\":null}", "is a tokenizer.json"},
      {"\x1F\x8B\x08\x01", "is a gzip file"},
      {"\x28\xB5\x2F\xFD\x01", "is a zstd file"},
      {"", "is empty"}};
  for (const auto& [bytes, what] : files) {
    write("wrong", bytes);
    for (const auto& [arguments, expected] : positions("wrong")) {
      if (what.starts_with("is the index") && expected == "a checkpoint") continue;  // it is one
      if (what.starts_with("is a GGUF") && (expected == "a checkpoint" || expected == "a SentencePiece model"))
        continue;  // it would be one, and hold the other
      if (what == "is a tokenizer.json" && expected == "a SentencePiece model") continue;  // its own place
      RunResult result = thimble(arguments + Arguments{"--quiet"});
      EXPECT_EQ(result.exit_code, 4) << ::testing::PrintToString(arguments);
      EXPECT_THAT(result.err, AllOf(HasSubstr("wrong: " + what), HasSubstr(", not " + expected)))
          << ::testing::PrintToString(arguments);
    }
  }
  EXPECT_FALSE(exists("out.thmb"));
}

// Files of ours in each other's places.
TEST_F(WrongFileTest, OfOurOwnKindsIsNamedToo) {
  quantize("model.thmb");
  write_torch_file(path("model.pt"), tiny_weights());
  const Arguments scoring_rest = {"--tokens", "val.bin", "--tokenizer", "sp.model"};
  expect_failure(4, {"quantize", "model.thmb", "-o", "out.thmb"},
                 {"model.thmb: is a thimble artifact, not a checkpoint", "`thimble export`"});
  for (Arguments arguments :
       {Arguments{"verify", "model.safetensors"}, Arguments{"export", "model.safetensors", "-o", "x.safetensors"},
        Arguments{"budget", "model.safetensors", "--limit", "1M"}}) {
    expect_failure(4, arguments,
                   {"model.safetensors: is a safetensors file, not a thimble artifact", "`thimble quantize`"});
    arguments[1] = "model.pt";
    expect_failure(4, arguments, {"model.pt: is a zip archive, not a thimble artifact", "`thimble quantize`"});
  }
  expect_failure(4, Arguments{"eval", "model.safetensors", "val.bin"} + scoring(),
                 {"val.bin: is a token shard, not a checkpoint", "repeat --tokens"});
  expect_failure(4, Arguments{"eval", "sp.model"} + scoring_rest, {"sp.model: is a SentencePiece model"});
  expect_failure(4, Arguments{"eval", "model.safetensors"} + scoring("text.txt"), {"text.txt: "});
  expect_failure(4, {"eval", "model.safetensors", "--tokens", "val.bin", "--tokenizer", "val.bin"},
                 {"val.bin: is a token shard, not a SentencePiece model"});
  expect_failure(4, {"quantize", "config.json", "-o", "out.thmb"}, {"config.json: is a model config", "--config"});
}

TEST_F(WrongFileTest, AFolderIsNamed) {
  std::filesystem::create_directory(path("folder"));
  for (const auto& [arguments, expected] : positions("folder"))
    if (expected == "a checkpoint")
      expect_failure(4, arguments, {"folder: is a folder without 'model.safetensors'"});
    else if (expected == "a SentencePiece model")
      expect_failure(4, arguments, {"folder: is a folder without tokenizer.json, tokenizer.model"});
    else
      expect_failure(5, arguments, {"folder: is a folder, a file is needed"});
}

TEST_F(WrongFileTest, APartOfACheckpointIsNamed) {
  std::filesystem::copy_file(path("model.safetensors"), path("model-00001-of-00002.safetensors"));
  for (const Arguments& arguments : {Arguments{"quantize", "model-00001-of-00002.safetensors", "-o", "out.thmb"},
                                     Arguments{"inspect", "model-00001-of-00002.safetensors"}})
    expect_failure(4, arguments, {"is part 1 of 2 of a checkpoint", "one file"});
  for (const char* whole : {"model-00001-of-00001.safetensors", "model-of-00002.safetensors", "a-of-b.safetensors"}) {
    std::filesystem::copy_file(path("model.safetensors"), path(whole));
    succeed({"inspect", whole});
  }
}

TEST_F(WrongFileTest, AZipThatIsNoCheckpointIsNamed) {
  const std::string empty_zip = std::string("PK\x05\x06", 4) + std::string(18, '\0');
  write("other.zip", empty_zip);
  expect_failure(4, {"quantize", "other.zip", "-o", "out.thmb"}, {"other.zip: ", "not a file of torch.save"});
}

TEST_F(WrongFileTest, InspectShowsACheckpoint) {
  Json report = succeed_json({"inspect", "model.safetensors"});
  EXPECT_EQ(report.at("kind"), "checkpoint");
  EXPECT_EQ(report.at("format"), "safetensors");
  EXPECT_EQ(report.at("family"), "golf-gpt");
  EXPECT_EQ(report.at("config_from"), "config.json");
  EXPECT_EQ(report.at("config").at("num_layers"), 2);
  EXPECT_EQ(report.at("file_bytes"), size("model.safetensors"));
  EXPECT_EQ(report.at("problem"), "");
  const Tensors weights = tiny_weights();
  EXPECT_EQ(report.at("tensors").size(), weights.size());
  uint64_t elements = 0;
  for (const Json& tensor : report.at("tensors")) {
    const Tensor& expected = weights.at(tensor.at("name").get<std::string>());
    EXPECT_EQ(tensor.at("shape").get<Shape>(), expected.shape);
    EXPECT_EQ(tensor.at("dtype"), "F32");
    EXPECT_EQ(tensor.at("bytes"), expected.bytes.size());
    elements += tensor.at("elements").get<uint64_t>();
  }
  EXPECT_EQ(report.at("parameters"), elements);
  EXPECT_EQ(report.at("parameters_by_dtype"), Json({{"F32", elements}}));
  EXPECT_THAT(succeed({"inspect", "model.safetensors"}).out,
              AllOf(HasSubstr("blocks.0.attn.c_q.weight"), HasSubstr("golf-gpt"), HasSubstr("config.json"),
                    HasSubstr("one by one")));
  write_torch_file(path("model.pt"), banked(tiny_weights()));
  report = succeed_json({"inspect", "model.pt", "--config", "config.json"});
  EXPECT_EQ(report.at("format"), "torch");
  EXPECT_EQ(report.at("banked"), true);
  EXPECT_EQ(report.at("parameters"), elements);
}

// What is wrong with its config does not hide its tensors.
TEST_F(WrongFileTest, InspectShowsACheckpointThatCannotBeRun) {
  std::filesystem::remove(path("config.json"));
  Json report = succeed_json({"inspect", "model.safetensors"});
  EXPECT_TRUE(report.at("family").is_null());
  EXPECT_THAT(report.at("problem").get<std::string>(), HasSubstr("no config given"));
  EXPECT_EQ(report.at("tensors").size(), tiny_weights().size());
  write_safetensors(path("other.safetensors"), views_of({{"w", random_tensor({3, 5}, 1, 1)}}));
  EXPECT_THAT(succeed({"inspect", "other.safetensors"}).out,
              AllOf(HasSubstr("[3, 5]"), HasSubstr("none that can be run"), HasSubstr("cannot be run")));
}

TEST_F(WrongFileTest, InspectRefusesWhatACheckpointDoesNotHave) {
  write("report.json", "{}");
  expect_failure(2, {"inspect", "model.safetensors", "--report", "report.json"}, {"--report", "model.safetensors"});
  expect_failure(2, {"inspect", "model.safetensors", "--heat-map", "map.svg"}, {"--heat-map", "model.safetensors"});
  quantize("model.thmb");
  expect_failure(2, {"inspect", "model.thmb", "--config", "config.json"}, {"--config", "model.thmb"});
  EXPECT_EQ(succeed_json({"inspect", "model.thmb"}).at("kind"), "artifact");
}

}  // namespace
}  // namespace thimble::testing::wrong_file_cli_test
