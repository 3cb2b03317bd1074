// cli_fixture.h: the fixture of the command-line tests: a folder with a tiny model's files, and the real program run in
// it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "packer/artifact.h"
#include "runtime/base/file.h"
#include "runtime/base/json.h"
#include "tests/cli/run_program.h"
#include "tests/cli/tiny_model.h"
#include "tests/runtime/base/temporary_folder.h"

namespace thimble::testing {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Arguments = std::vector<std::string>;

// Every test starts with these in its folder: model.safetensors (unbanked, F32), config.json, sp.model, text.txt and
// val.bin (the text's tokens). Commands run with the folder as their working directory, so names are relative.
class CliTest : public ::testing::Test {
 protected:
  CliTest();

  // `arguments` begin with the command.
  RunResult thimble(const Arguments& arguments, RunOptions options = {}) const;
  // Expects exit code 0 and returns the result.
  RunResult succeed(const Arguments& arguments, const RunOptions& options = {}) const;
  // Adds --json, expects exit code 0, nothing on standard error and one JSON document on standard output.
  Json succeed_json(Arguments arguments) const;
  // Expects the exit code, and a message with all these words: as text, and as one JSON object when run with --json.
  void expect_failure(int exit_code, const Arguments& arguments, const std::vector<std::string>& words,
                      const RunOptions& options = {}) const;

  // Options that run the program without the superuser's rights; not possible where these cannot be dropped.
  std::optional<RunOptions> without_rights() const;

  // quantize model.safetensors -o `output` by the default method, with options that make it fast and every matrix
  // quantized, at a fixed step where `more` says nothing else, and `more`.
  static Arguments quantize_arguments(const std::string& output, const Arguments& more = {},
                                      const std::string& checkpoint = "model.safetensors");
  void quantize(const std::string& output, const Arguments& more = {}) const {
    succeed(quantize_arguments(output, more));
  }
  // The same by method trace, with its default bits.
  static Arguments trace_arguments(const std::string& output, const Arguments& more = {},
                                   const std::string& checkpoint = "model.safetensors");
  void trace(const std::string& output, const Arguments& more = {}) const { succeed(trace_arguments(output, more)); }
  // The least budget for model.safetensors that method trace does not refuse before anything is solved; far too low all
  // the same.
  uint64_t lowest_budget_tried() const;
  // The options of eval and audit for the folder's tokens.
  static Arguments scoring(const std::string& tokens = "val.bin");
  // Writes long.bin: val.bin again and again, long enough for standard errors.
  void write_long_tokens() const;

  std::string path(const std::string& name) const { return folder_.file(name); }
  bool exists(const std::string& name) const { return file_exists(path(name)); }
  ByteVector contents(const std::string& name) const;
  void write(const std::string& name, Bytes bytes) const;
  void write(const std::string& name, std::string_view text) const { write(name, as_bytes_of(text)); }
  Json config() const;  // config.json
  QuantizedModel decoded(const std::string& artifact) const;
  uint64_t size(const std::string& name) const { return file_size_bytes(path(name)); }
  std::vector<std::string> names() const;  // in the folder, sorted

 private:
  TemporaryFolder folder_;
};

Arguments operator+(Arguments left, const Arguments& right);

// Without `option` and its value.
Arguments without_option(const Arguments& arguments, const std::string& option);

// The evaluation less what differs between two runs of it: measured times.
Json without_times(Json evaluation);

// All bytes but the last `count`; all bytes with the lowest bit of byte `at` changed.
ByteVector without_end(ByteVector bytes, size_t count);
ByteVector with_flipped_bit(ByteVector bytes, size_t at);

}  // namespace thimble::testing
