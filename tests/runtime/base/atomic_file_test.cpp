// atomic_file_test.cpp: output appears whole or not at all, whatever fails.
#include "runtime/base/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "runtime/base/file.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/base/temporary_folder.h"

namespace thimble::atomic_file_test {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

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

// With either kind of temporary.
class AtomicFileKinds : public ::testing::TestWithParam<AtomicFile::Temporary> {
 protected:
  // Names in the folder while something is being written.
  size_t temporaries() const { return GetParam() == AtomicFile::Temporary::kNamed ? 1 : 0; }
};

INSTANTIATE_TEST_SUITE_P(Temporaries, AtomicFileKinds,
                         ::testing::Values(AtomicFile::Temporary::kUnnamedWherePossible, AtomicFile::Temporary::kNamed),
                         [](const auto& kind) {
                           return kind.param == AtomicFile::Temporary::kNamed ? "Named" : "Unnamed";
                         });

TEST_P(AtomicFileKinds, CommitReplacesTheOldFile) {
  TemporaryFolder folder;
  write_file_atomically(folder.file("out"), std::string_view("a longer old content"));
  AtomicFile file(folder.file("out"), GetParam());
  file.write(as_bytes_of("new "));
  file.write(as_bytes_of("content"));
  EXPECT_EQ(contents(folder.file("out")), "a longer old content");
  EXPECT_EQ(folder.names().size(), 1 + temporaries());
  file.commit();
  EXPECT_EQ(contents(folder.file("out")), "new content");
  EXPECT_THAT(folder.names(), ElementsAre("out"));
}

TEST_P(AtomicFileKinds, WithoutCommitTheOldFileStaysAndTheTemporaryGoes) {
  TemporaryFolder folder;
  write_file_atomically(folder.file("out"), std::string_view("old"));
  {
    AtomicFile file(folder.file("out"), GetParam());
    file.write(as_bytes_of("new"));
    EXPECT_EQ(folder.names().size(), 1 + temporaries());
  }
  EXPECT_EQ(contents(folder.file("out")), "old");
  EXPECT_THAT(folder.names(), ElementsAre("out"));
}

TEST_P(AtomicFileKinds, TheMaskOfTheProcessDecidesWhoMayRead) {
  TemporaryFolder folder;
  const mode_t before = ::umask(027);
  AtomicFile file(folder.file("out"), GetParam());
  file.commit();
  ::umask(before);
  struct stat info {};
  ASSERT_EQ(::stat(folder.file("out").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640);
}

// Killed while it wrote, and killed at the rename: an unnamed temporary has its name by then.
TEST_P(AtomicFileKinds, WhatAKilledProcessLeavesGoesWithTheNextWrite) {
  TemporaryFolder folder;
  write_file_atomically(folder.file("out"), std::string_view("old"));
  pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(folder.file("out"), GetParam());
    file.write(as_bytes_of("new"));
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(contents(folder.file("out")), "old");
  EXPECT_EQ(folder.names().size(), 1 + temporaries());
  std::ofstream(folder.file("out.tmp" + std::to_string(child) + ".1")) << "new";
  std::ofstream(folder.file("out.tmp" + std::to_string(::getpid()) + ".0")) << "of a process of our number";
  write_file_atomically(folder.file("out"), std::string_view("newer"));
  EXPECT_EQ(contents(folder.file("out")), "newer");
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

TEST(AtomicFile, AFailedRenameLeavesNoTemporary) {
  TemporaryFolder folder;
  AtomicFile file(folder.file("out"));
  std::filesystem::create_directory(folder.file("out"));
  expect_error<IoError>([&] { file.commit(); }, {folder.file("out"), "cannot rename into place"});
  EXPECT_TRUE(std::filesystem::is_directory(folder.file("out")));
}

TEST(AtomicFile, NoRoomIsAnErrorOfItsOwn) {
  TemporaryFolder folder;
  FileSizeLimit limit(16);
  expect_error<NoRoomError>([&] { write_file_atomically(folder.file("out"), std::string_view("more than 16 bytes")); },
                            {folder.file("out"), "File too large"});
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

// Of everything that may have the name of a temporary, only files that no process holds are ours to remove.
TEST_P(AtomicFileKinds, ForeignTemporariesAreNotTouched) {
  TemporaryFolder folder;
  const std::string prefix = "out.tmp" + std::to_string(::getpid()) + ".";
  write_file_atomically(folder.file("victim"), std::string_view("precious"));
  std::filesystem::create_symlink(folder.file("victim"), folder.file(prefix + "0"));
  std::filesystem::create_directory(folder.file(prefix + "1"));
  ASSERT_EQ(::mkfifo(folder.file(prefix + "2").c_str(), 0600), 0);
  AtomicFile alive(folder.file("out"), AtomicFile::Temporary::kNamed);  // takes number 3
  for (const char* name :
       {"out.tmp", "out.tmp1", "out.tmp1.", "out.tmp.1", "out.tmp1.2x", "out.tmpfile.1", "our.tmp1.2"})
    std::ofstream(folder.file(name)) << "someone's";
  {
    AtomicFile file(folder.file("out"), GetParam());
    file.write(as_bytes_of("new"));
    file.commit();
  }
  EXPECT_EQ(contents(folder.file("out")), "new");
  EXPECT_EQ(contents(folder.file("victim")), "precious");
  EXPECT_THAT(folder.names(),
              UnorderedElementsAre("out", "victim", prefix + "0", prefix + "1", prefix + "2", prefix + "3", "out.tmp",
                                   "out.tmp1", "out.tmp1.", "out.tmp.1", "out.tmp1.2x", "out.tmpfile.1", "our.tmp1.2"));
  alive.commit();
  EXPECT_EQ(contents(folder.file("out")), "");
}

TEST_P(AtomicFileKinds, GivesUpWhenEveryTemporaryNameIsTaken) {
  TemporaryFolder folder;
  for (int i = 0; i < 100; ++i)
    std::filesystem::create_directory(folder.file("out.tmp" + std::to_string(::getpid()) + "." + std::to_string(i)));
  expect_error<IoError>([&] { AtomicFile(folder.file("out"), GetParam()).commit(); },
                        {"cannot find a free temporary name"});
  expect_error<IoError>([&] { require_writable(folder.file("out")); }, {"cannot find a free temporary name"});
}

TEST(AtomicFile, ALinkIsFollowedAndStays) {
  TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("elsewhere"));
  write_file_atomically(folder.file("elsewhere/real"), std::string_view("old"));
  std::filesystem::create_symlink("elsewhere/real", folder.file("link"));
  std::filesystem::create_symlink(folder.file("link"), folder.file("link to link"));
  AtomicFile file(folder.file("link to link"), AtomicFile::Temporary::kNamed);
  file.write(as_bytes_of("new"));
  EXPECT_THAT(folder.names(), UnorderedElementsAre("elsewhere", "link", "link to link"))
      << "the temporary lies beside the target";
  file.commit();
  EXPECT_EQ(contents(folder.file("elsewhere/real")), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link")));
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link to link")));
}

TEST(AtomicFile, ALinkToNothingCreatesItsTarget) {
  TemporaryFolder folder;
  std::filesystem::create_symlink("new", folder.file("link"));
  require_writable(folder.file("link"));
  EXPECT_FALSE(file_exists(folder.file("new")));
  write_file_atomically(folder.file("link"), std::string_view("content"));
  EXPECT_EQ(contents(folder.file("new")), "content");
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link")));
}

TEST(AtomicFile, LinksInACircleAreAnIoError) {
  TemporaryFolder folder;
  std::filesystem::create_symlink("b", folder.file("a"));
  std::filesystem::create_symlink("a", folder.file("b"));
  expect_error<IoError>([&] { require_writable(folder.file("a")); }, {folder.file("a"), "symbolic links"});
  EXPECT_THAT(folder.names(), UnorderedElementsAre("a", "b"));
}

TEST(AtomicFile, OnlyRegularFilesAreReplaced) {
  TemporaryFolder folder;
  ASSERT_EQ(::mkfifo(folder.file("fifo").c_str(), 0600), 0);
  std::filesystem::create_symlink("fifo", folder.file("link"));
  std::filesystem::create_symlink("/dev/null", folder.file("device"));
  std::filesystem::create_directory(folder.file("folder"));
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{AF_UNIX, {}};
  folder.file("socket").copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ::close(listener);
  for (const auto& [name, kind] : std::map<std::string, std::string>{{"fifo", "a FIFO"},
                                                                     {"link", "a FIFO"},
                                                                     {"device", "a device"},
                                                                     {"socket", "a socket"},
                                                                     {"folder", "Is a directory"}}) {
    SCOPED_TRACE(name);
    for (const auto& write : {std::function([&] { require_writable(folder.file(name)); }),
                              std::function([&] { write_file_atomically(folder.file(name), Bytes()); })}) {
      try {
        write();
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kIo);
        EXPECT_THAT(error.what(),
                    ::testing::AllOf(::testing::StartsWith(folder.file(name)), ::testing::HasSubstr(kind)));
      }
    }
  }
  EXPECT_TRUE(std::filesystem::is_fifo(folder.file("fifo")));
  EXPECT_TRUE(std::filesystem::is_socket(folder.file("socket")));
  EXPECT_EQ(folder.names().size(), 5u);
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

TEST(AtomicFolder, AppearsWholeOrNotAtAll) {
  TemporaryFolder folder;
  {
    AtomicFolder left(folder.file("out"));
    write_file_atomically(left.file("a"), std::string_view("1"));
    EXPECT_FALSE(file_exists(folder.file("out/a")));
  }
  EXPECT_THAT(folder.names(), ElementsAre());
  AtomicFolder kept(folder.file("out/"));
  write_file_atomically(kept.file("a"), std::string_view("2"));
  kept.commit();
  EXPECT_THAT(folder.names(), ElementsAre("out"));
  EXPECT_EQ(contents(folder.file("out/a")), "2");
}

TEST(AtomicFolder, ReplacesNothingButAnEmptyFolder) {
  TemporaryFolder folder;
  write_file_atomically(folder.file("file"), std::string_view("x"));
  make_folder(folder.file("full"));
  write_file_atomically(folder.file("full/a"), std::string_view("x"));
  make_folder(folder.file("empty"));
  std::filesystem::create_symlink(folder.file("empty"), folder.file("link"));
  for (const char* name : {"file", "full", "link"})
    expect_error<Error>([&] { AtomicFolder{folder.file(name)}; }, {folder.file(name), "is there already"});
  expect_error<IoError>([&] { AtomicFolder{folder.file("missing/out")}; }, {"missing/out", "No such file"});
  AtomicFolder(folder.file("empty")).commit();
  // What appeared there in the meantime stays.
  AtomicFolder late(folder.file("late"));
  make_folder(folder.file("late"));
  write_file_atomically(folder.file("late/other"), std::string_view("x"));
  EXPECT_THROW(late.commit(), IoError);
  EXPECT_EQ(contents(folder.file("late/other")), "x");
}

TEST(AtomicFolder, RemovesWhatAKilledProcessLeft) {
  TemporaryFolder folder;
  for (const char* name : {"out.tmp77.0", "out.tmp77", "other.tmp77.0"}) make_folder(folder.file(name));
  AtomicFolder held(folder.file("out"));
  AtomicFolder second(folder.file("out"));  // leaves the first one's alone
  write_file_atomically(held.file("a"), std::string_view("1"));
  held.commit();
  EXPECT_FALSE(std::filesystem::exists(folder.file("out.tmp77.0")));
  for (const char* name : {"out/a", "out.tmp77", "other.tmp77.0"})
    EXPECT_TRUE(std::filesystem::exists(folder.file(name))) << name;
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
}  // namespace thimble::atomic_file_test
