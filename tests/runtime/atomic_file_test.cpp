// atomic_file_test.cpp: output appears whole or not at all, whatever fails.
#include "runtime/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "runtime/file.h"
#include "tests/runtime/error_matcher.h"
#include "tests/runtime/temporary_folder.h"

namespace thimble {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

std::string contents(const std::string& path) { return read_text_file(path, 1 << 20); }

// While alive, files of this process cannot grow beyond `limit_bytes`: writes fail as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t limit_bytes) {
    old_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &old_limit_);
    rlimit limit = old_limit_;
    limit.rlim_cur = limit_bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_limit_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_limit_{};
  void (*old_handler_)(int) = nullptr;
};

// While alive, this process is nobody if it was root: permissions apply to root's tests too.
class WithoutRoot {
 public:
  WithoutRoot() : was_root_(::geteuid() == 0), dropped_(!was_root_ || ::seteuid(65534) == 0) {}
  ~WithoutRoot() {
    if (was_root_ && dropped_ && ::seteuid(0) != 0) ADD_FAILURE() << "cannot become root again";
  }
  bool dropped() const { return dropped_; }

 private:
  bool was_root_, dropped_;
};

TEST(AtomicFile, WritesANewFile) {
  TemporaryFolder folder;
  write_file_atomically(folder.file("out"), std::string_view("content"));
  EXPECT_EQ(contents(folder.file("out")), "content");
  EXPECT_THAT(folder.names(), ElementsAre("out"));
}

TEST(AtomicFile, WritesAnEmptyFile) {
  TemporaryFolder folder;
  write_file_atomically(folder.file("out"), Bytes());
  EXPECT_EQ(contents(folder.file("out")), "");
}

TEST(AtomicFile, CommitReplacesTheOldFile) {
  TemporaryFolder folder;
  write_file_atomically(folder.file("out"), std::string_view("a longer old content"));
  AtomicFile file(folder.file("out"));
  file.write(as_bytes_of("new "));
  file.write(as_bytes_of("content"));
  EXPECT_EQ(contents(folder.file("out")), "a longer old content");
  file.commit();
  EXPECT_EQ(contents(folder.file("out")), "new content");
  EXPECT_THAT(folder.names(), ElementsAre("out"));
}

TEST(AtomicFile, WithoutCommitTheOldFileStaysAndTheTemporaryGoes) {
  TemporaryFolder folder;
  write_file_atomically(folder.file("out"), std::string_view("old"));
  {
    AtomicFile file(folder.file("out"));
    file.write(as_bytes_of("new"));
    EXPECT_EQ(folder.names().size(), 2u);
  }
  EXPECT_EQ(contents(folder.file("out")), "old");
  EXPECT_THAT(folder.names(), ElementsAre("out"));
}

TEST(AtomicFile, TheOldFileSurvivesAFailedWrite) {
  TemporaryFolder folder;
  write_file_atomically(folder.file("out"), std::string_view("old"));
  std::string large(100'000, 'x');
  {
    FileSizeLimit limit(4096);
    expect_error<IoError>([&] { write_file_atomically(folder.file("out"), std::string_view(large)); },
                          {folder.file("out"), "write failed", "File too large"});
  }
  EXPECT_EQ(contents(folder.file("out")), "old");
  EXPECT_THAT(folder.names(), ElementsAre("out"));
  write_file_atomically(folder.file("out"), std::string_view(large));
  EXPECT_EQ(contents(folder.file("out")), large);
}

TEST(AtomicFile, TheOldFileSurvivesAKilledProcess) {
  TemporaryFolder folder;
  write_file_atomically(folder.file("out"), std::string_view("old"));
  pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(folder.file("out"));
    file.write(as_bytes_of("new"));
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(contents(folder.file("out")), "old");
}

TEST(AtomicFile, AFailedRenameLeavesNoTemporary) {
  TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("out"));
  expect_error<IoError>([&] { write_file_atomically(folder.file("out"), std::string_view("x")); },
                        {folder.file("out"), "cannot rename into place"});
  EXPECT_TRUE(std::filesystem::is_directory(folder.file("out")));
  EXPECT_THAT(folder.names(), ElementsAre("out"));
}

TEST(AtomicFile, AMissingFolderIsAnIoError) {
  TemporaryFolder folder;
  std::string path = folder.file("missing/out");
  expect_error<IoError>([&] { AtomicFile file(path); }, {path, "No such file or directory"});
}

TEST(AtomicFile, AForbiddenFolderIsAnIoError) {
  TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("closed"));
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  ASSERT_EQ(::chmod(folder.file("closed").c_str(), 0555), 0);
  WithoutRoot nobody;
  if (!nobody.dropped()) GTEST_SKIP() << "root here cannot become another user";
  expect_error<IoError>([&] { AtomicFile file(folder.file("closed/out")); }, {"closed/out", "Permission denied"});
}

// A temporary of a killed run with the same process number, or a link that someone placed there.
TEST(AtomicFile, ForeignTemporariesAreNotTouched) {
  TemporaryFolder folder;
  std::string prefix = "out.tmp" + std::to_string(::getpid()) + ".";
  write_file_atomically(folder.file("victim"), std::string_view("precious"));
  std::filesystem::create_symlink(folder.file("victim"), folder.file(prefix + "0"));
  std::ofstream(folder.file(prefix + "1")) << "left over";
  write_file_atomically(folder.file("out"), std::string_view("new"));
  EXPECT_EQ(contents(folder.file("out")), "new");
  EXPECT_EQ(contents(folder.file("victim")), "precious");
  EXPECT_EQ(contents(folder.file(prefix + "1")), "left over");
  EXPECT_THAT(folder.names(), UnorderedElementsAre("out", "victim", prefix + "0", prefix + "1"));
}

TEST(AtomicFile, GivesUpWhenEveryTemporaryNameIsTaken) {
  TemporaryFolder folder;
  for (int i = 0; i < 100; ++i)
    std::ofstream(folder.file("out.tmp" + std::to_string(::getpid()) + "." + std::to_string(i)));
  expect_error<IoError>([&] { AtomicFile file(folder.file("out")); }, {"cannot find a free temporary name"});
}

TEST(AtomicFile, TwoWritersOfOneNameDoNotMix) {
  TemporaryFolder folder;
  AtomicFile first(folder.file("out")), second(folder.file("out"));
  first.write(as_bytes_of("first"));
  second.write(as_bytes_of("second"));
  second.commit();
  EXPECT_EQ(contents(folder.file("out")), "second");
  first.commit();
  EXPECT_EQ(contents(folder.file("out")), "first");
}

TEST(AtomicFile, ARelativeNameMeansTheCurrentFolder) {
  TemporaryFolder folder;
  std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  write_file_atomically("out", std::string_view("content"));
  std::filesystem::current_path(before);
  EXPECT_EQ(contents(folder.file("out")), "content");
}

TEST(RequireWritable, LeavesNoTraceWhereWritingWouldWork) {
  TemporaryFolder folder;
  require_writable(folder.file("new"));
  EXPECT_TRUE(folder.names().empty());
  write_file_atomically(folder.file("old"), std::string_view("content"));
  require_writable(folder.file("old"));
  EXPECT_EQ(contents(folder.file("old")), "content");
  EXPECT_THAT(folder.names(), ElementsAre("old"));
}

TEST(RequireWritable, FailsAsWritingWould) {
  TemporaryFolder folder;
  expect_error<IoError>([&] { require_writable(folder.file("missing/out")); }, {"missing/out", "No such file"});
  expect_error<IoError>([&] { require_writable(folder.path()); }, {folder.path(), "Is a directory"});
}

TEST(MakeFolder, CreatesOnceAndAcceptsAnExistingFolder) {
  TemporaryFolder folder;
  make_folder(folder.file("new"));
  make_folder(folder.file("new"));
  EXPECT_TRUE(std::filesystem::is_directory(folder.file("new")));
}

TEST(MakeFolder, NeedsAParent) {
  TemporaryFolder folder;
  expect_error<IoError>([&] { make_folder(folder.file("a/b")); }, {folder.file("a/b"), "cannot create folder"});
}

TEST(MakeFolder, RefusesANameThatIsAFile) {
  TemporaryFolder folder;
  write_file_atomically(folder.file("taken"), std::string_view("x"));
  expect_error<IoError>([&] { make_folder(folder.file("taken")); }, {folder.file("taken")});
}

}  // namespace
}  // namespace thimble
