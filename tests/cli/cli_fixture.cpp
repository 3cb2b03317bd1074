// cli_fixture.cpp: the files and expectations of cli_fixture.h.
#include "tests/cli/cli_fixture.h"

#include <sys/stat.h>

#include <algorithm>

#include "eval/score/loss_blocks.h"
#include "eval/text/text_tokens.h"
#include "eval/text/token_shard.h"
#include "quantizer/formats/safetensors.h"
#include "runtime/base/atomic_file.h"

namespace thimble::testing {
namespace {

// Little calibration. Where tokens or Hessians are given there is none of the model's own writing to ask for.
Arguments calibration_arguments(const Arguments& more) {
  auto has = [&](const std::string& option) { return std::ranges::count(more, option) > 0; };
  Arguments arguments;
  if (!has("--hessians") && !has("--calibration-tokens") && !has("--calibration-sequences"))
    arguments = {"--calibration-sequences", "3"};
  if ((!has("--hessians") || has("--calibration-tokens") || has("--calibration-text")) && !has("--calibration-length"))
    arguments = arguments + Arguments{"--calibration-length", "32"};
  return arguments;
}

}  // namespace

CliTest::CliTest() {
  ::chmod(folder_.path().c_str(), 0755);  // other users must get in, for the tests of missing rights
  write_safetensors(path("model.safetensors"), views_of(tiny_weights()));
  write("config.json", to_json(tiny_config()).dump(1));
  write("sp.model", tiny_tokenizer_bytes());
  write("text.txt", tiny_text());
  Tokenizer tokenizer = Tokenizer::load(path("sp.model"));
  write_shard(path("val.bin"), tokens_of_text_file(tokenizer, path("text.txt")), kShard16Vocabulary);
}

RunResult CliTest::thimble(const Arguments& arguments, RunOptions options) const {
  if (options.folder.empty()) options.folder = folder_.path();
  return run_program(Arguments{thimble_program()} + arguments, options);
}

RunResult CliTest::succeed(const Arguments& arguments, const RunOptions& options) const {
  RunResult result = thimble(arguments, options);
  EXPECT_EQ(result.exit_code, 0) << ::testing::PrintToString(arguments) << "\n" << result.err;
  return result;
}

std::optional<RunOptions> CliTest::without_rights() const {
  RunOptions options;
  options.as_nobody = true;
  if (!thimble({"--version"}, options).started) return std::nullopt;
  return options;
}

Json CliTest::succeed_json(Arguments arguments) const {
  arguments.emplace_back("--json");
  RunResult result = succeed(arguments);
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(Json::accept(result.out)) << result.out;
  return Json::parse(result.out, nullptr, false);
}

void CliTest::expect_failure(int exit_code, const Arguments& arguments, const std::vector<std::string>& words,
                             const RunOptions& options) const {
  SCOPED_TRACE(::testing::PrintToString(arguments));
  RunResult plain = thimble(arguments + Arguments{"--quiet"}, options);
  EXPECT_EQ(plain.exit_code, exit_code);
  EXPECT_EQ(plain.out, "");
  EXPECT_THAT(plain.err, ::testing::StartsWith("thimble: "));
  for (const std::string& word : words) EXPECT_THAT(plain.err, HasSubstr(word));

  RunResult machine = thimble(arguments + Arguments{"--json"}, options);
  EXPECT_EQ(machine.exit_code, exit_code);
  ASSERT_TRUE(Json::accept(machine.err)) << machine.err;
  Json error = Json::parse(machine.err).at("error");
  EXPECT_EQ(error.at("exit_code"), exit_code);
  for (const std::string& word : words) EXPECT_THAT(error.at("message").get<std::string>(), HasSubstr(word));
}

Arguments CliTest::quantize_arguments(const std::string& output, const Arguments& more, const std::string& checkpoint) {
  auto has = [&](const std::string& option) { return std::ranges::count(more, option) > 0; };
  Arguments quick = calibration_arguments(more);
  if (!has("--trellis-bits")) quick = quick + Arguments{"--trellis-bits", "3"};
  const bool has_text = !has("--hessians") || has("--calibration-tokens") || has("--calibration-text");
  if (has_text && !has("--distill-steps")) quick = quick + Arguments{"--distill-steps", "2"};
  if (!has("--budget") && !has("--bits-per-weight") && !has("--target-bpb-gap") && !has("--log2-step"))
    quick = quick + Arguments{"--log2-step", "-9"};
  return Arguments{"quantize", checkpoint, "-o", output, "--min-elements", "100"} + quick + more;
}

Arguments CliTest::trace_arguments(const std::string& output, const Arguments& more, const std::string& checkpoint) {
  const bool has_codec = std::ranges::count(more, "--codec") > 0;
  return Arguments{"quantize", checkpoint, "-o", output, "--method", "trace", "--min-elements", "100"} +
         calibration_arguments(more) + (has_codec ? Arguments{} : Arguments{"--codec", "zstd"}) + more;
}

Arguments CliTest::scoring(const std::string& tokens) {
  return {"--tokens", tokens, "--tokenizer", "sp.model", "--context", "32", "--stride", "16"};
}

void CliTest::write_long_tokens() const {
  const std::vector<Token> once = parse_shard(Bytes(contents("val.bin")), "val.bin");
  std::vector<Token> tokens;
  while (static_cast<int64_t>(tokens.size()) <= kLeastBlocks * kLeastBlockTargets)
    tokens.insert(tokens.end(), once.begin(), once.end());
  write_shard(path("long.bin"), tokens, kShard16Vocabulary);
}

uint64_t CliTest::lowest_budget_tried() const {
  RunResult refused = thimble(trace_arguments("out.thmb", {"--budget", "1", "--quiet"}));
  std::string digits;
  for (size_t at = refused.err.find("GPTQ take ") + 10; at < refused.err.size() && refused.err[at] != ' '; ++at)
    if (refused.err[at] != ',') digits += refused.err[at];
  return std::stoull(digits);
}

ByteVector CliTest::contents(const std::string& name) const {
  MappedFile file(path(name));
  return {file.bytes().begin(), file.bytes().end()};
}

void CliTest::write(const std::string& name, Bytes bytes) const { write_file_atomically(path(name), bytes); }

Json CliTest::config() const { return parse_json(Bytes(contents("config.json")), "config.json"); }

QuantizedModel CliTest::decoded(const std::string& artifact) const {
  return decode_artifact(MappedFile(path(artifact)).bytes(), artifact);
}

std::vector<std::string> CliTest::names() const {
  std::vector<std::string> found = folder_.names();
  std::sort(found.begin(), found.end());
  return found;
}

Arguments without_option(const Arguments& arguments, const std::string& option) {
  Arguments left;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == option)
      ++i;
    else
      left.push_back(arguments[i]);
  }
  return left;
}

Json without_times(Json evaluation) {
  for (const char* measured : {"seconds", "load_s", "first_token_s"}) evaluation.erase(measured);
  return evaluation;
}

Arguments operator+(Arguments left, const Arguments& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

ByteVector without_end(ByteVector bytes, size_t count) {
  bytes.resize(bytes.size() - count);
  return bytes;
}

ByteVector with_flipped_bit(ByteVector bytes, size_t at) {
  bytes.at(at) ^= std::byte{1};
  return bytes;
}

}  // namespace thimble::testing
