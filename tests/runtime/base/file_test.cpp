// file_test.cpp: mapping and reading regular files; everything else is refused with a reason.
#include "runtime/base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <utility>

#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/base/temporary_folder.h"

namespace thimble::file_test {
namespace {

std::string write_text(const TemporaryFolder& folder, const std::string& name, const std::string& text) {
  std::ofstream(folder.file(name), std::ios::binary) << text;
  return folder.file(name);
}

TEST(MappedFile, ShowsTheBytes) {
  TemporaryFolder folder;
  std::string text("a\0b\xff", 4);
  MappedFile file(write_text(folder, "data", text));
  EXPECT_EQ(as_text(file.bytes()), text);
  EXPECT_EQ(file.path(), folder.file("data"));
}

TEST(MappedFile, AnEmptyFileHasEmptyBytes) {
  TemporaryFolder folder;
  EXPECT_TRUE(MappedFile(write_text(folder, "empty", "")).bytes().empty());
}

TEST(MappedFile, MovesLeaveTheBytesInPlace) {
  TemporaryFolder folder;
  MappedFile first(write_text(folder, "first", "one")), second(write_text(folder, "second", "two"));
  const std::byte* address = first.bytes().data();
  MappedFile moved(std::move(first));
  EXPECT_EQ(moved.bytes().data(), address);
  second = std::move(moved);
  EXPECT_EQ(as_text(second.bytes()), "one");
  EXPECT_EQ(second.path(), folder.file("first"));
}

TEST(MappedFile, AMissingFileIsAnIoError) {
  TemporaryFolder folder;
  expect_error<IoError>([&] { MappedFile file(folder.file("none")); },
                        {folder.file("none"), "cannot open", "No such file"});
}

TEST(MappedFile, RefusesWhatIsNotARegularFile) {
  TemporaryFolder folder;
  expect_error<IoError>([&] { MappedFile file(folder.path()); }, {"is a folder, a file is needed"});
  expect_error<IoError>([&] { MappedFile file("/dev/null"); }, {"/dev/null: not a regular file"});
}

// Opening a pipe for reading waits for a writer unless one asks not to wait.
TEST(MappedFile, RefusesAPipeWithoutWaiting) {
  TemporaryFolder folder;
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  expect_error<IoError>([&] { MappedFile file(folder.file("pipe")); }, {"pipe: not a regular file"});
}

TEST(ReadTextFile, ReadsUpToTheLimit) {
  TemporaryFolder folder;
  std::string path = write_text(folder, "text", "12345");
  EXPECT_EQ(read_text_file(path, 5), "12345");
  expect_error<FormatError>([&] { read_text_file(path, 4); }, {path, "5 B", "at most 4 B"});
  EXPECT_EQ(read_text_file(write_text(folder, "empty", ""), 0), "");
}

TEST(FileSize, IsTheSizeInBytes) {
  TemporaryFolder folder;
  EXPECT_EQ(file_size_bytes(write_text(folder, "text", "12345")), 5u);
  EXPECT_THROW(file_size_bytes(folder.file("none")), IoError);
  EXPECT_THROW(file_size_bytes(folder.path()), IoError);
}

TEST(FileExists, TellsPresentFromMissing) {
  TemporaryFolder folder;
  EXPECT_TRUE(file_exists(write_text(folder, "text", "")));
  EXPECT_FALSE(file_exists(folder.file("none")));
}

}  // namespace
}  // namespace thimble::file_test
