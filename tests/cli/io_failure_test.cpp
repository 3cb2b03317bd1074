// io_failure_test.cpp: what the operating system refuses: exit code 5. A file that was there before survives byte for
// byte, and nothing half-written stays behind.
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/cli/cli_fixture.h"

namespace thimble::testing::io_failure_test {
namespace {

class IoFailureTest : public CliTest {
 protected:
  // Mounts a disk of so many KiB on the folder "disk", of this process alone: gone with it whatever happens. False
  // where that is not permitted.
  bool mount_disk(uint64_t kibibytes) const {
    ::mkdir(path("disk").c_str(), 0755);
    const std::string options = "size=" + std::to_string(kibibytes) + "k";
    return ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount("tmpfs", path("disk").c_str(), "tmpfs", 0, options.c_str()) == 0;
  }

  void allow(const std::string& name, mode_t mode) const { ::chmod(path(name).c_str(), mode); }
};

TEST_F(IoFailureTest, MissingFilesAreNamed) {
  std::vector<Arguments> commands = {quantize_arguments("out.thmb", {}, "missing"),
                                     quantize_arguments("out.thmb", {"--config", "missing"}),
                                     quantize_arguments("out.thmb", {"--code", "missing"}),
                                     quantize_arguments("out.thmb", {"--calibration-tokens", "missing"}),
                                     quantize_arguments("out.thmb", {"--hessians", "missing"}),
                                     quantize_arguments("out.thmb", {"--text", "missing", "--tokenizer", "sp.model"}),
                                     quantize_arguments("out.thmb", {"--text", "text.txt", "--tokenizer", "missing"}),
                                     Arguments{"eval", "model.safetensors", "missing"} + scoring(),
                                     Arguments{"eval", "model.safetensors"} + scoring("missing"),
                                     {"audit", "model.safetensors", "--tokens", "val.bin", "--tokenizer", "missing"},
                                     Arguments{"audit", "missing"} + scoring(),
                                     {"generate", "missing", "--tokenizer", "sp.model"},
                                     {"budget", "missing", "--limit", "1"},
                                     {"inspect", "missing"},
                                     {"verify", "missing"},
                                     {"export", "missing", "-o", "out.safetensors"}};
  for (const Arguments& command : commands) expect_failure(5, command, {"missing: ", "No such file or directory"});
  expect_failure(5, Arguments{"eval", "model.safetensors"} + scoring("none-*.bin"), {"none-*.bin", "pattern"});
  EXPECT_EQ(names(), (Arguments{"config.json", "model.safetensors", "sp.model", "text.txt", "val.bin"}));
}

TEST_F(IoFailureTest, AFolderIsNoFile) {
  ::mkdir(path("folder").c_str(), 0755);
  expect_failure(5, {"verify", "folder"}, {"folder", "Is a directory"});
  // A checkpoint may be one, with something in it.
  expect_failure(4, {"inspect", "folder"}, {"folder: is a folder without 'model.safetensors'"});
  expect_failure(4, quantize_arguments("out.thmb", {}, "folder"), {"folder: is a folder without"});
  expect_failure(5, quantize_arguments("folder"), {"folder", "Is a directory"});
}

TEST_F(IoFailureTest, AMissingOutputFolderIsKnownUpFront) {
  for (const char* option : {"--save-hessians", "--save-calibration", "--work-dir"})
    expect_failure(5, quantize_arguments("out.thmb", {option, "nowhere/file"}), {"nowhere/file", "No such file"});
  expect_failure(5, quantize_arguments("nowhere/out.thmb"), {"nowhere/out.thmb", "No such file"});
  expect_failure(5, quantize_arguments("nowhere/out.thmb", {"--no-resume"}), {"nowhere/out.thmb", "No such file"});
  quantize("model.thmb");
  expect_failure(5, {"export", "model.thmb", "-o", "nowhere/out.safetensors"}, {"nowhere", "No such file"});
  // Known before the calibration text is generated, which is the long part.
  RunResult result = thimble(quantize_arguments("nowhere/out.thmb"));
  EXPECT_THAT(result.err, Not(HasSubstr("generating")));
}

TEST_F(IoFailureTest, FilesThatMayNotBeRead) {
  std::optional<RunOptions> options = without_rights();
  if (!options) GTEST_SKIP() << "rights cannot be dropped here";
  allow("model.safetensors", 0);
  expect_failure(5, Arguments{"eval", "model.safetensors"} + scoring(), {"model.safetensors", "Permission denied"},
                 *options);
  allow("model.safetensors", 0644);
  allow("sp.model", 0);
  expect_failure(5, Arguments{"eval", "model.safetensors"} + scoring(), {"sp.model", "Permission denied"}, *options);
}

TEST_F(IoFailureTest, FoldersThatMayNotBeWritten) {
  std::optional<RunOptions> options = without_rights();
  if (!options) GTEST_SKIP() << "rights cannot be dropped here";
  quantize("model.thmb");
  allow("model.thmb", 0644);
  ::mkdir(path("locked").c_str(), 0755);
  std::filesystem::copy_file(path("model.thmb"), path("locked/old"));
  allow("locked", 0555);
  ByteVector before = contents("locked/old");
  expect_failure(5, quantize_arguments("locked/old", {"--work-dir", "locked/work"}),
                 {"locked/old", "Permission denied"}, *options);
  expect_failure(5, {"export", "model.thmb", "-o", "locked/old"}, {"locked/old", "Permission denied"}, *options);
  EXPECT_EQ(contents("locked/old"), before);
  allow("locked", 0755);
  EXPECT_FALSE(exists("locked/work"));
}

// A limit on file sizes fails the write in the middle, as a full disk does.
TEST_F(IoFailureTest, AWriteThatFailsLeavesTheOldFileAndNothingElse) {
  quantize("model.thmb");
  write("old", "what was here before");
  RunOptions small;
  small.limits = {{RLIMIT_FSIZE, 4096}};
  expect_failure(5, {"export", "model.thmb", "-o", "old"}, {"old: write failed"}, small);
  expect_failure(5, quantize_arguments("old", {"--no-resume"}), {"old: write failed"}, small);
  expect_failure(5, quantize_arguments("old"), {"old: write failed"}, small);
  expect_failure(5, quantize_arguments("out.thmb", {"--no-resume", "--save-hessians", "old"}), {"old: write failed"},
                 small);
  EXPECT_EQ(as_text(contents("old")), "what was here before");
  for (const std::string& name : names()) EXPECT_THAT(name, Not(HasSubstr(".tmp")));
  EXPECT_FALSE(exists("out.thmb"));

  // The work that was saved before the failure is used once there is room.
  EXPECT_TRUE(exists("old.work"));
  for (const auto& entry : std::filesystem::directory_iterator(path("old.work")))
    EXPECT_THAT(entry.path().string(), Not(HasSubstr(".tmp")));
  quantize("old");
  EXPECT_EQ(contents("old"), contents("model.thmb"));
  EXPECT_FALSE(exists("old.work"));
}

// What is kept to resume from may be larger than the artifact, which is what was asked for.
TEST_F(IoFailureTest, WorkThatIsTooLargeToKeepIsNotKept) {
  quantize("model.thmb");
  RunOptions small;
  small.limits = {{RLIMIT_FSIZE, size("model.thmb")}};
  const RunResult result = succeed(quantize_arguments("out.thmb"), small);
  EXPECT_THAT(result.out, AllOf(HasSubstr("note: not everything is kept to resume from: out.thmb.work/sums-"),
                                HasSubstr("File too large")));
  EXPECT_EQ(contents("out.thmb"), contents("model.thmb"));
  EXPECT_FALSE(exists("out.thmb.work"));
  Json json = Json::parse(succeed(quantize_arguments("out.thmb", {"--json"}), small).out);
  EXPECT_THAT(json.at("notes").at(0).get<std::string>(), HasSubstr("File too large"));
  EXPECT_FALSE(succeed_json(quantize_arguments("out.thmb")).contains("notes"));
}

TEST_F(IoFailureTest, AFullDiskForTheWorkAlone) {
  quantize("model.thmb");
  if (!mount_disk(16)) GTEST_SKIP() << "mounting is not permitted here";
  const RunResult result = succeed(quantize_arguments("out.thmb", {"--work-dir", "disk/work"}));
  EXPECT_THAT(result.out, HasSubstr("note: not everything is kept to resume from: disk/work/sums-"));
  EXPECT_EQ(contents("out.thmb"), contents("model.thmb"));
  EXPECT_TRUE(std::filesystem::is_empty(path("disk")));

  // A sweep says it too, and finds the same.
  const Arguments sweep =
      Arguments{"sweep", "model.safetensors", "-o", "curve", "--methods", "trace"} +
      Arguments{"--budgets", "40000", "--min-elements", "100", "--calibration-sequences", "3", "--calibration-length",
                "32"} +
      Arguments{"--work-dir", "disk/work", "--keep-artifacts"} + scoring();
  EXPECT_THAT(succeed(sweep).out, HasSubstr("note: not everything is kept to resume from: disk/work/"));
  EXPECT_EQ(::umount(path("disk").c_str()), 0);
}

// Both on one disk that has room for either, but not for both.
TEST_F(IoFailureTest, TheWorkMakesRoomForTheArtifact) {
  quantize("model.thmb", {"--keep-work"});
  auto pages = [](uint64_t bytes) { return (bytes + 4095) / 4096; };
  uint64_t work = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path("model.thmb.work")))
    work += pages(entry.file_size());
  ASSERT_GT(work, pages(size("model.thmb")));
  if (!mount_disk(4 * work)) GTEST_SKIP() << "mounting is not permitted here";
  const RunResult result = succeed(quantize_arguments("disk/out.thmb"));
  EXPECT_THAT(result.out, HasSubstr("note: the work folder 'disk/out.thmb.work' was emptied to make room for "
                                    "'disk/out.thmb'"));
  EXPECT_EQ(contents("disk/out.thmb"), contents("model.thmb"));
  EXPECT_FALSE(exists("disk/out.thmb.work"));
  EXPECT_EQ(::umount(path("disk").c_str()), 0);
}

TEST_F(IoFailureTest, AFullDisk) {
  quantize("model.thmb");
  if (!mount_disk(16)) GTEST_SKIP() << "mounting is not permitted here";
  write("disk/old", "what was here before");
  expect_failure(5, {"export", "model.thmb", "-o", "disk/old"}, {"disk/old", "No space left on device"});
  expect_failure(5, quantize_arguments("disk/old", {"--no-resume", "--codec", "none"}),
                 {"disk/old", "No space left on device"});
  expect_failure(5, quantize_arguments("disk/old", {"--codec", "none"}), {"disk/old: ", "No space left on device"});
  EXPECT_EQ(as_text(contents("disk/old")), "what was here before");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path("disk")))
    EXPECT_THAT(entry.path().string(), Not(HasSubstr(".tmp")));
  EXPECT_EQ(::umount(path("disk").c_str()), 0);
}

}  // namespace
}  // namespace thimble::testing::io_failure_test
