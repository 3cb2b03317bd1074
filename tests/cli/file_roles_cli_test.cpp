// file_roles_cli_test.cpp: outputs that would destroy an input or another output are refused with exit code 2, those
// that are no regular files with 5; before any work, and every file stays as it was.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "tests/cli/cli_fixture.h"

namespace thimble::testing::file_roles_cli_test {
namespace {

class FileRolesCliTest : public CliTest {
 protected:
  std::map<std::string, ByteVector> all_files() const {
    std::map<std::string, ByteVector> files;
    std::error_code unreadable;
    for (const std::string& name : names())
      if (std::filesystem::is_regular_file(path(name), unreadable)) files[name] = contents(name);
    return files;
  }

  // Refused with that exit code and these words, and nothing in the folder has changed.
  void expect_untouched(int exit_code, const Arguments& arguments, const std::vector<std::string>& words) const {
    const std::vector<std::string> names_before = names();
    const std::map<std::string, ByteVector> before = all_files();
    expect_failure(exit_code, arguments, words);
    EXPECT_EQ(names(), names_before) << ::testing::PrintToString(arguments);
    EXPECT_TRUE(all_files() == before) << ::testing::PrintToString(arguments);
  }

  static Arguments sweep(const std::string& prefix, const Arguments& more = {}) {
    return Arguments{"sweep", "model.safetensors", "-o", prefix, "--methods", "trace", "--budgets", "20000"} +
           Arguments{"--calibration-sequences", "3", "--calibration-length", "32"} + scoring() + more;
  }
};

TEST_F(FileRolesCliTest, AnOutputNeverReplacesAnInput) {
  const Arguments text = {"--text", "text.txt", "--tokenizer", "sp.model", "--context", "32", "--stride", "16"};
  std::filesystem::create_symlink("sp.model", path("link.model"));
  expect_untouched(2, quantize_arguments("model.safetensors"), {"--output", "would replace the model"});
  expect_untouched(2, quantize_arguments("sp.model", text), {"--output 'sp.model' would replace the --tokenizer"});
  expect_untouched(2, quantize_arguments("link.model", text),
                   {"'link.model' would replace the --tokenizer 'sp.model'"});
  expect_untouched(2, quantize_arguments("text.txt", text), {"would replace the --text 'text.txt'"});
  expect_untouched(2, quantize_arguments("val.bin", scoring("v*.bin")), {"would replace the token shard 'val.bin'"});
  expect_untouched(2, quantize_arguments("text.txt", {"--code", "sp.model", "--code", "text.txt"}),
                   {"the --code file"});
  expect_untouched(2, quantize_arguments("./config.json"), {"the config beside the model 'config.json'"});
  expect_untouched(2, quantize_arguments("out.thmb", {"--save-hessians", "config.json"}),
                   {"--save-hessians 'config.json' would replace the config beside the model"});
  expect_untouched(2,
                   quantize_arguments("out.thmb", {"--calibration-tokens", "val.bin", "--save-calibration", "val.bin"}),
                   {"--save-calibration", "the --calibration-tokens"});
  expect_untouched(2, quantize_arguments("out.thmb", Arguments{"--save-calibration", "val.bin"} + scoring()),
                   {"--save-calibration", "the token shard"});
}

TEST_F(FileRolesCliTest, NorAnotherOutput) {
  expect_untouched(2, quantize_arguments("out.thmb", {"--save-hessians", "x", "--save-calibration", "./x"}),
                   {"--save-hessians 'x'", "--save-calibration './x'"});
  expect_untouched(2, quantize_arguments("out.thmb", {"--save-hessians", "out.thmb"}), {"--output", "--save-hessians"});
  std::filesystem::create_symlink("not there yet", path("dangling"));
  expect_untouched(2, quantize_arguments("dangling", {"--save-hessians", "not there yet"}), {"--output", "--save"});
}

TEST_F(FileRolesCliTest, NorAFileThatTheWorkFolderNeeds) {
  expect_untouched(2, quantize_arguments("out.thmb", {"--work-dir", "out.thmb"}),
                   {"work folder 'out.thmb'", "--output"});
  expect_untouched(2, quantize_arguments("out.thmb", {"--work-dir", "config.json"}), {"work folder", "the config"});
  quantize("first.thmb", {"--save-hessians", "first.safetensors"});
  const std::string hessians = "hessians-0123456789abcdef.safetensors";
  std::filesystem::create_directory(path("work"));
  std::filesystem::rename(path("first.safetensors"), path("work/" + hessians));
  const ByteVector before = contents("work/" + hessians);
  const Arguments use = {"--hessians", "work/" + hessians};
  expect_untouched(2, quantize_arguments("out.thmb", use + Arguments{"--work-dir", "work"}),
                   {"the --hessians", "named like a file of the work folder 'work'"});
  EXPECT_EQ(contents("work/" + hessians), before);
  quantize("out.thmb", use);
  EXPECT_EQ(contents("work/" + hessians), before);
}

TEST_F(FileRolesCliTest, InEveryCommandThatWrites) {
  quantize("model.thmb");
  expect_untouched(2, {"export", "model.thmb", "-o", "model.thmb"}, {"--output", "the model 'model.thmb'"});
  expect_untouched(2, {"export", "model.thmb", "-o", "config.json"}, {"the config beside the model"});
  expect_untouched(2, {"inspect", "model.thmb", "--heat-map", "model.thmb"}, {"--heat-map", "the model"});
  write("report.svg", thimble(quantize_arguments("other.thmb", {"--json"})).out);
  expect_untouched(2, {"inspect", "other.thmb", "--report", "report.svg", "--heat-map", "report.svg"},
                   {"--heat-map", "the --report"});
  std::filesystem::copy_file(path("sp.model"), path("curve.json"));
  Arguments own_tokenizer = sweep("curve");
  std::ranges::replace(own_tokenizer, "sp.model", "curve.json");
  expect_untouched(2, own_tokenizer, {"'curve.json' would replace the --tokenizer"});
  expect_untouched(2, sweep("config"), {"'config.json' would replace the config beside the model"});
  write("points.csv", "label,bytes,bpb\nother,1000,2.5\n");
  expect_untouched(2, sweep("points", {"--reference", "points.csv"}), {"'points.csv' would replace the --reference"});
  std::filesystem::copy_file(path("model.safetensors"), path("kept-trace-20000.thmb"));
  Arguments kept = sweep("kept", {"--keep-artifacts"});
  kept[1] = "kept-trace-20000.thmb";
  expect_untouched(2, kept, {"the kept artifact 'kept-trace-20000.thmb' would replace the model"});
}

TEST_F(FileRolesCliTest, OnlyRegularFilesAreReplaced) {
  quantize("model.thmb");
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/null", path("null"));
  std::filesystem::create_symlink("loop", path("loop"));
  std::filesystem::create_directory(path("folder"));
  const std::map<std::string, std::string> kinds = {{"fifo", "a FIFO"},
                                                    {"null", "a device"},
                                                    {"/dev/null", "a device"},
                                                    {"folder", "Is a directory"},
                                                    {"loop", "links"}};
  for (const auto& [name, kind] : kinds) {
    expect_untouched(5, quantize_arguments(name), {name, kind});
    expect_untouched(5, quantize_arguments("out.thmb", {"--save-hessians", name}), {name, kind});
    expect_untouched(5, quantize_arguments("out.thmb", {"--save-calibration", name}), {name, kind});
    expect_untouched(5, {"export", "model.thmb", "-o", name}, {name, kind});
    expect_untouched(5, {"inspect", "model.thmb", "--heat-map", name}, {name, kind});
  }
  ASSERT_EQ(::mkfifo(path("curve.csv").c_str(), 0600), 0);
  expect_untouched(5, sweep("curve"), {"curve.csv", "a FIFO"});
  EXPECT_TRUE(std::filesystem::is_fifo(path("fifo")));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST_F(FileRolesCliTest, ALinkIsFollowed) {
  quantize("model.thmb");
  std::filesystem::create_directory(path("shelf"));
  std::filesystem::create_symlink("shelf/real.safetensors", path("link"));
  succeed({"export", "model.thmb", "-o", "link"});
  succeed({"export", "model.thmb", "-o", "direct.safetensors"});
  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
  EXPECT_EQ(contents("shelf/real.safetensors"), contents("direct.safetensors"));
}

TEST_F(FileRolesCliTest, AnEmptyNameIsAMistake) {
  quantize("model.thmb");
  for (const char* option :
       {"--save-hessians", "--save-calibration", "--work-dir", "--config", "--hessians", "--calibration-tokens",
        "--calibration-text", "--code", "--tokens", "--text", "--tokenizer"})
    expect_untouched(2, quantize_arguments("out.thmb", {option, ""}), {option, "name of a file"});
  expect_untouched(2, quantize_arguments(""), {"--output", "name of a file"});
  expect_untouched(2, {"export", "model.thmb", "-o", ""}, {"--output", "name of a file"});
  expect_untouched(2, {"inspect", "model.thmb", "--heat-map", ""}, {"--heat-map", "name of a file"});
  expect_untouched(2, sweep(""), {"--output", "name of a file"});
  expect_untouched(2, sweep("curve", {"--reference", ""}), {"--reference", "name of a file"});
}

}  // namespace
}  // namespace thimble::testing::file_roles_cli_test
