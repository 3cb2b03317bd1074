// reader_asserts.h: what the tests of the checkpoint readers share: expected errors, patched bytes, scratch files.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "runtime/base/byte_cursor.h"
#include "runtime/base/error.h"

namespace thimble {

// The message of the FormatError that `action` throws; the test fails when it throws none.
template <typename Action>
std::string format_error_of(Action&& action) {
  try {
    action();
  } catch (const FormatError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no FormatError";
  return "";
}

// EXPECT_FORMAT_ERROR without a macro: `action` must throw a FormatError whose message contains `part`.
template <typename Action>
void expect_format_error(const std::string& part, Action&& action) {
  EXPECT_THAT(format_error_of(action), ::testing::HasSubstr(part));
}

inline ByteVector bytes_of(std::string_view text) {
  Bytes bytes = as_bytes_of(text);
  return {bytes.begin(), bytes.end()};
}

// Overwrites the little-endian integer at `at`.
template <typename T>
void poke(ByteVector& bytes, size_t at, T value) {
  ByteVector encoded;
  append_little_endian(encoded, value);
  ASSERT_LE(at + encoded.size(), bytes.size());
  std::copy(encoded.begin(), encoded.end(), bytes.begin() + static_cast<ptrdiff_t>(at));
}

// A path in the temporary folder that no other test process uses; the file is removed at the end.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& name)
      : path_(::testing::TempDir() + "thimble_" + std::to_string(::getpid()) + "_" + name) {}
  ~ScratchFile() { ::unlink(path_.c_str()); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace thimble
