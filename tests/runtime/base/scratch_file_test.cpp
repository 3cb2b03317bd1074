// scratch_file_test.cpp: room in memory and in files without names: where it lies, how long, and what has no room.
#include "runtime/base/scratch_file.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <string>

#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/base/temporary_folder.h"

namespace thimble::scratch_file_test {
namespace {

// TMPDIR for as long as it lives.
class TemporaryFolderVariable {
 public:
  explicit TemporaryFolderVariable(const std::string& folder) {
    if (const char* value = ::getenv(kName)) before_ = value, was_set_ = true;
    ::setenv(kName, folder.c_str(), 1);
  }
  ~TemporaryFolderVariable() { was_set_ ? ::setenv(kName, before_.c_str(), 1) : ::unsetenv(kName); }
  TemporaryFolderVariable(const TemporaryFolderVariable&) = delete;
  TemporaryFolderVariable& operator=(const TemporaryFolderVariable&) = delete;

 private:
  static constexpr const char* kName = "TMPDIR";
  std::string before_;
  bool was_set_ = false;
};

bool is_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

TEST(ScratchFile, UpToTheLimitTouchesNoFolder) {
  const TemporaryFolderVariable variable("/nowhere");
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, uint64_t{1000}}) {
    const ScratchBytes scratch = make_scratch(size, 1000);
    EXPECT_EQ(scratch.bytes.size(), size);
    EXPECT_TRUE(is_zero(scratch.bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(scratch.bytes.data()) % alignof(uint64_t), 0U);
  }
}

TEST(ScratchFile, AFileHasNoNameAndKeepsWhatIsWritten) {
  const TemporaryFolder folder;
  const TemporaryFolderVariable variable(folder.path());
  ScratchBytes copy;
  {
    const ScratchBytes scratch = make_scratch(100'001, 100'000);
    ASSERT_EQ(scratch.bytes.size(), 100'001U);
    EXPECT_TRUE(is_zero(scratch.bytes));
    scratch.bytes.front() = scratch.bytes.back() = std::byte{7};
    EXPECT_TRUE(folder.names().empty());
    copy = scratch;
  }
  EXPECT_EQ(copy.bytes.front(), std::byte{7});
  EXPECT_EQ(copy.bytes.back(), std::byte{7});
  EXPECT_TRUE(is_zero(copy.bytes.subspan(1, 99'999)));
}

TEST(ScratchFile, WithoutRoomTheErrorNamesFolderSizeAndVariable) {
  const TemporaryFolder folder;
  for (const std::string& path : {folder.path(), folder.file("missing")}) {
    const TemporaryFolderVariable variable(path);
    const uint64_t size = uint64_t{1} << 61;
    expect_error<IoError>([&] { make_scratch(size, 1); }, {path, std::to_string(size) + " B", "TMPDIR"});
  }
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace thimble::scratch_file_test
