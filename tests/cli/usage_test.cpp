// usage_test.cpp: command lines that are refused with exit code 2, requests that no device here can meet (6), and
// budgets and checks that are not met (3).
#include <sys/stat.h>

#include "eval/text/token_shard.h"
#include "tests/cli/cli_fixture.h"

namespace thimble::testing::usage_test {
namespace {

using UsageTest = CliTest;

TEST_F(UsageTest, UnknownCommandsAndOptionsAreNamed) {
  expect_failure(2, {"frobnicate"}, {"frobnicate"});
  expect_failure(2, {"doctor", "--frobnicate"}, {"--frobnicate"});
  expect_failure(2, {"inspect", "one.thmb", "two.thmb"}, {"two.thmb"});
}

TEST_F(UsageTest, WhatWasProbablyMeantIsSuggested) {
  expect_failure(2, {"quantise", "model.safetensors"}, {"'quantise'", "did you mean 'quantize'?"});
  expect_failure(2, {"quantize", "model.safetensors", "-o", "x", "--bugdet", "600000"},
                 {"--bugdet", "of quantize", "did you mean '--budget'?"});
  expect_failure(2, {"quantize", "--bugdet=600000", "model.safetensors"}, {"--bugdet ", "did you mean '--budget'?"});
  expect_failure(2, {"eval", "model.safetensors", "--tokenzier", "sp.model"}, {"did you mean '--tokenizer'?"});
  expect_failure(2, {"quantize", "model.safetensors", "-o", "x", "--method", "slpoe"},
                 {"--method", "'slpoe'", "slope, trace, nvfp4", "did you mean 'slope'?"});
  expect_failure(2, Arguments{"sweep", "model.safetensors", "-o", "x", "--methods", "slope,trcae"} + scoring(),
                 {"'trcae'", "did you mean 'trace'?"});
  expect_failure(2, {"export", "a.thmb", "-o", "x", "--dtype", "BF61"}, {"--dtype", "did you mean 'BF16'?"});
  expect_failure(2, {"doctor", "--zzz"}, {"--zzz is not an option of doctor\n"});
}

// An option that takes files takes one each time: the others are arguments of the command.
TEST_F(UsageTest, FilesOfOptionsDoNotSwallowArguments) {
  Arguments code_first = quantize_arguments("out.thmb");
  code_first.insert(code_first.begin() + 1, {"--code", "text.txt"});
  succeed(code_first);
  const Arguments rest = {"--tokenizer", "sp.model", "--context", "32", "--stride", "16"};
  succeed(Arguments{"eval", "--tokens", "val.bin", "model.safetensors"} + rest);
  expect_failure(2, quantize_arguments("out.thmb", {"--code", "text.txt", "config.json"}),
                 {"'config.json' is one argument too many", "--code"});
  write("val2.bin", contents("val.bin"));
  Json both =
      succeed_json(Arguments{"eval", "model.safetensors", "--tokens", "val.bin", "--tokens", "val2.bin"} + rest);
  EXPECT_EQ(succeed_json(Arguments{"eval", "model.safetensors", "--tokens", "val*.bin"} + rest)
                .at("evaluations")
                .at(0)
                .at("targets"),
            both.at("evaluations").at(0).at("targets"));
}

TEST_F(UsageTest, OptionsThatAMethodIgnoresAreRefused) {
  const std::vector<std::pair<std::string, std::string>> slope = {
      {"--log2-step", "-8"},    {"--bits-per-weight", "3"},    {"--target-bpb-gap", "0.1"},
      {"--trellis-bits", "3"},  {"--rate-weight", "0"},        {"--distill-steps", "1"},
      {"--distill-batch", "1"}, {"--distill-row-rate", "0"},   {"--distill-small-rate", "0"},
      {"--shrinkage", "1"},     {"--row-power", "1"},          {"--cross-term", "0"},
      {"--cross-damping", "1"}, {"--column-order", "natural"}, {"--damping", "0.1"},
      {"--learn-steps", "1"},   {"--learn-batch", "1"},        {"--learn-rate", "0.1"},
      {"--learn-block", "1"}};
  const std::vector<std::pair<std::string, std::string>> trace = {{"--bits", "5"}, {"--high", "3"}};
  auto expect_refused = [&](const std::string& method, const std::string& owner, const auto& options) {
    for (const auto& [option, value] : options)
      expect_failure(2, {"quantize", "model.safetensors", "-o", "out.thmb", "--method", method, option, value},
                     {option + " is for --method " + owner, "no effect with " + method});
  };
  for (const char* method : {"trace", "nvfp4"}) expect_refused(method, "slope", slope);
  for (const char* method : {"slope", "nvfp4"}) expect_refused(method, "trace", trace);
  const Arguments sweep = Arguments{"sweep", "model.safetensors", "-o", "x"} + scoring();
  expect_failure(2, sweep + Arguments{"--methods", "trace,nvfp4", "--trellis-bits", "3"},
                 {"--trellis-bits is for --method slope", "trace or nvfp4"});
  expect_failure(2, sweep + Arguments{"--methods", "slope", "--bits", "5"}, {"--bits is for --method trace"});
  EXPECT_FALSE(exists("out.thmb"));
}

TEST_F(UsageTest, OptionsThatNothingWouldReadAreRefused) {
  auto quantize_with = [](const Arguments& more) {
    return Arguments{"quantize", "model.safetensors", "-o", "out.thmb"} + more;
  };
  expect_failure(2, quantize_with({"--no-resume", "--work-dir", "w"}), {"--no-resume", "--work-dir"});
  expect_failure(2, quantize_with({"--no-resume", "--keep-work"}), {"--no-resume", "--keep-work"});
  for (const char* given : {"--calibration-text", "--calibration-tokens", "--hessians"})
    expect_failure(2, quantize_with({given, "val.bin", "--temperature", "1"}), {given, "--temperature"});
  for (const char* option : {"--calibration-sequences", "--calibration-length"})
    expect_failure(2, quantize_with({"--hessians", "val.bin", option, "32"}), {"--hessians", option});
  expect_failure(2, quantize_with({"--calibration-text", "text.txt", "--calibration-tokens", "val.bin"}),
                 {"--calibration-text", "--calibration-tokens"});
  expect_failure(2, quantize_with({"--calibration-tokens", "val.bin", "--calibration-tokens", "./val.bin"}),
                 {"token shard ./val.bin", "twice"});
  expect_failure(2, quantize_with({"--calibration-text", "text.txt"}), {"--tokenizer"});
  expect_failure(2, quantize_with({"--tokenizer", "sp.model"}), {"--tokenizer is for scoring"});
  expect_failure(2,
                 Arguments{"audit", "model.safetensors", "--text", "text.txt", "--source-text", "text.txt",
                           "--tokenizer", "sp.model"},
                 {"--source-text", "--text"});
  expect_failure(2, {"numerics", "--stage", "nvfp4", "--op", "gelu"}, {"--op", "--stage operators"});
}

TEST_F(UsageTest, WhatIsRequiredIsNamed) {
  expect_failure(2, {"quantize", "-o", "out.thmb"}, {"checkpoint"});
  expect_failure(2, {"quantize", "model.safetensors"}, {"--output"});
  expect_failure(2, {"inspect"}, {"file"});
  expect_failure(2, {"budget", "model.thmb"}, {"--limit"});
  expect_failure(2, {"export", "model.thmb"}, {"--output"});
  RunResult nothing = thimble({});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("subcommand"));
}

TEST_F(UsageTest, ATokenizerIsRequiredForBitsPerByte) {
  expect_failure(2, {"eval", "model.safetensors", "--tokens", "val.bin"}, {"--tokenizer"});
  expect_failure(2, {"audit", "model.safetensors", "--tokens", "val.bin"}, {"--tokenizer"});
  expect_failure(2, {"generate", "model.safetensors"}, {"--tokenizer"});
  expect_failure(2, quantize_arguments("out.thmb", {"--tokens", "val.bin"}), {"--tokenizer"});
  EXPECT_FALSE(exists("out.thmb"));
}

TEST_F(UsageTest, TokensOrTextNotBothAndNotNeither) {
  for (const char* command : {"eval", "audit"}) {
    expect_failure(2, Arguments{command, "model.safetensors"} + scoring() + Arguments{"--text", "text.txt"},
                   {"--text", "--tokens"});
    expect_failure(2, {command, "model.safetensors", "--tokenizer", "sp.model"}, {"--tokens", "--text"});
  }
}

TEST_F(UsageTest, TheStrideIsAtMostTheContext) {
  Arguments arguments = {"--tokens", "val.bin", "--tokenizer", "sp.model", "--context", "16", "--stride", "17"};
  expect_failure(2, Arguments{"eval", "model.safetensors"} + arguments, {"--stride", "17", "--context", "16"});
  expect_failure(2, quantize_arguments("out.thmb", arguments), {"--stride", "17", "--context", "16"});
  EXPECT_EQ(names(), (Arguments{"config.json", "model.safetensors", "sp.model", "text.txt", "val.bin"}));
  expect_failure(2, Arguments{"sweep", "model.safetensors", "-o", "curve"} + arguments, {"--stride", "17", "16"});
}

TEST_F(UsageTest, OptionsOfScoringNeedText) {
  for (const Arguments& given : {Arguments{"--stride", "8"}, Arguments{"--context", "32"},
                                 Arguments{"--max-targets", "10"}, Arguments{"--tokenizer", "sp.model"}})
    expect_failure(2, quantize_arguments("out.thmb", given), {given[0], "needs text", "--tokens", "--text"});
  EXPECT_FALSE(exists("out.thmb"));
}

TEST_F(UsageTest, NumbersOutOfRangeAreRefused) {
  for (const char* size : {"-5", "1e-6", "0x10", "0.5B", "16mb", "16 MB", "", "99999999999999999999999", "5e18"}) {
    expect_failure(2, {"budget", "model.thmb", "--limit", size}, {"--limit", size});
    expect_failure(2, quantize_arguments("out.thmb", {"--budget", size}), {"--budget", size});
    expect_failure(2, quantize_arguments("out.thmb", {"--code-bytes", size}), {"--code-bytes", size});
  }
  for (const char* threads : {"-1", "4097", "many", "1.5", "0x10", "+1", " 1"})
    expect_failure(2, {"doctor", "--threads", threads}, {"--threads", threads, "integer from 0 to 4096"});
  for (const char* seed : {"-1", "0x10", "1e3"}) expect_failure(2, {"doctor", "--seed", seed}, {"--seed", seed});
  expect_failure(2, {"doctor", "--seed"}, {"--seed"});
  expect_failure(2, quantize_arguments("out.thmb", {"--temperature", "nan"}), {"--temperature", "nan"});
  expect_failure(2, quantize_arguments("out.thmb", {"--temperature", "-0.5"}), {"--temperature", "-0.5"});
  Arguments evaluate = Arguments{"eval", "model.safetensors"} + scoring();
  expect_failure(2, evaluate + Arguments{"--max-targets", "0"}, {"--max-targets"});
  expect_failure(2, Arguments{"generate", "model.safetensors", "--tokenizer", "sp.model", "--length", "0"},
                 {"--length"});
}

// Every integer of every command is read alike.
TEST_F(UsageTest, IntegersAreDecimal) {
  const Arguments score = Arguments{"eval", "model.safetensors"} + scoring();
  const std::vector<std::pair<Arguments, std::string>> options = {
      {{"doctor"}, "--threads"},
      {{"numerics"}, "--max-elements"},
      {{"generate", "model.safetensors", "--tokenizer", "sp.model"}, "--length"},
      {Arguments{"audit", "model.safetensors"} + scoring(), "--samples"},
      {without_option(score, "--context"), "--context"},
      {without_option(score, "--stride"), "--stride"},
      {score, "--max-targets"},
      {{"quantize", "model.safetensors", "-o", "x"}, "--min-elements"},
      {{"quantize", "model.safetensors", "-o", "x"}, "--calibration-sequences"},
      {{"quantize", "model.safetensors", "-o", "x"}, "--calibration-length"},
      {{"quantize", "model.safetensors", "-o", "x"}, "--distill-steps"},
      {{"quantize", "model.safetensors", "-o", "x"}, "--distill-batch"},
      {{"quantize", "model.safetensors", "-o", "x"}, "--learn-steps"},
      {{"quantize", "model.safetensors", "-o", "x"}, "--learn-batch"},
      {{"quantize", "model.safetensors", "-o", "x"}, "--learn-block"},
      {{"quantize", "model.safetensors", "-o", "x"}, "--trellis-bits"},
      {{"quantize", "model.safetensors", "-o", "x", "--method", "trace"}, "--high"}};
  for (const auto& [command, option] : options)
    expect_failure(2, command + Arguments{option, "0x10"}, {option, "0x10", "an integer from"});
  EXPECT_EQ(succeed_json({"doctor", "--threads", "01"}).at("threads"), 1);
}

TEST_F(UsageTest, SizesTakeUnits) {
  quantize("model.thmb");
  const std::vector<std::pair<std::string, uint64_t>> sizes = {
      {"0100000", 100'000}, {"1e6", 1'000'000},  {"16M", 16'000'000},   {"600KB", 600'000},
      {"1.5MB", 1'500'000}, {"16MiB", 16777216}, {"0.5Mi", 512 * 1024}, {"1.5e6B", 1'500'000}};
  for (const auto& [text, bytes] : sizes)
    EXPECT_EQ(succeed_json({"budget", "model.thmb", "--limit", text}).at("limit_bytes"), bytes) << text;
  EXPECT_THAT(succeed({"budget", "model.thmb", "--limit", "1.5MB"}).out, HasSubstr("1,500,000 B"));
}

TEST_F(UsageTest, BitsCodecHighAndDtypeNameWhatIsAllowed) {
  for (const char* bits : {"1", "9", "6,5", "5,", ",6", "5,6,7", "five", ""})
    expect_failure(2, trace_arguments("out.thmb", {"--bits", bits}), {"--bits"});
  expect_failure(2, trace_arguments("out.thmb", {"--bits", "6,5"}), {"6,5", "must not be below"});
  expect_failure(2, trace_arguments("out.thmb", {"--bits", "5,9"}), {"'9'", "2 to 8"});
  expect_failure(2, trace_arguments("out.thmb", {"--codec", "gzip"}), {"gzip", "brotli", "zstd", "xz", "rans", "none"});
  expect_failure(2, trace_arguments("out.thmb", {"--high", "some"}), {"--high", "some"});
  expect_failure(2, trace_arguments("out.thmb", {"--high", "-1"}), {"--high", "-1"});
  expect_failure(2, trace_arguments("out.thmb", {"--high", "auto"}), {"--high", "--budget"});
  expect_failure(2, {"export", "model.thmb", "-o", "x", "--dtype", "F64"}, {"--dtype", "F64", "BF16"});
  EXPECT_FALSE(exists("out.thmb"));
}

TEST_F(UsageTest, OptionsThatExcludeEachOther) {
  expect_failure(2, trace_arguments("out.thmb", {"--hessians", "h", "--save-calibration", "t"}), {"--hessians"});
  for (const char* given : {"--calibration-text", "--calibration-tokens"})
    expect_failure(2, trace_arguments("out.thmb", {"--hessians", "h", given, "val.bin", "--tokenizer", "sp.model"}),
                   {"--hessians", given, "trace"});
  trace("model.thmb");
  expect_failure(2, {"generate", "model.thmb", "--config", "config.json", "--tokenizer", "sp.model"},
                 {"--config", "model.thmb"});
}

TEST_F(UsageTest, AnOutputThatIsAnInputIsRefused) {
  ByteVector before = contents("model.safetensors");
  expect_failure(2, quantize_arguments("model.safetensors"), {"replace", "model.safetensors"});
  expect_failure(2, quantize_arguments("out.thmb", {"--save-hessians", "./model.safetensors"}), {"replace"});
  EXPECT_EQ(contents("model.safetensors"), before);
  quantize("model.thmb");
  before = contents("model.thmb");
  expect_failure(2, {"export", "model.thmb", "-o", "model.thmb"}, {"replace", "model.thmb"});
  EXPECT_EQ(contents("model.thmb"), before);
}

// A limit on processes, which threads count against too; the superuser has none.
TEST_F(UsageTest, ThreadsThatCannotBeStartedAreExitCode1) {
  std::optional<RunOptions> options = without_rights();
  if (!options) GTEST_SKIP() << "rights cannot be dropped here";
  RunOptions& few = *options;
  few.limits = {{RLIMIT_NPROC, 1}};
  few.environment = {"ASAN_OPTIONS=detect_leaks=0"};  // a sanitized program looks for leaks in a thread of its own
  const Arguments evaluate = Arguments{"eval", "model.safetensors"} + scoring();
  expect_failure(1, evaluate + Arguments{"--threads", "3"}, {"1 of 3 threads", "ulimit -u", "--threads 1"}, few);
  // Nor does a command begin anything beside itself that it cannot do without.
  succeed(evaluate + Arguments{"--threads", "1"}, few);
  succeed(Arguments{"audit", "model.safetensors", "--threads", "1"} + scoring(), few);
  succeed({"generate", "model.safetensors", "--tokenizer", "sp.model", "--threads", "1"}, few);
  ::chmod(path("").c_str(), 0777);  // for what these write, as another user
  succeed(quantize_arguments("out.thmb", {"--threads", "1"}), few);
  succeed({"verify", "out.thmb", "--threads", "1"}, few);
}

TEST_F(UsageTest, TheSameShardTwiceIsRefused) {
  expect_failure(2, Arguments{"eval", "model.safetensors"} + scoring() + Arguments{"--tokens", "./val.bin"},
                 {"val.bin", "twice"});
}

TEST_F(UsageTest, DeviceNames) {
  for (const char* device : {"gpu", "cuda:", "cuda:x", "cuda:-1", "CPU", ""})
    for (const char* command : {"doctor", "quantize", "inspect"})
      expect_failure(2, {command, "--device", device}, {"--device", "cuda:N"});
}

TEST_F(UsageTest, NumericsNames) {
  for (const char* numerics : {"fp8", "BF16", ""})
    for (const char* command : {"doctor", "quantize", "inspect"})
      expect_failure(2, {command, "--numerics", numerics}, {"--numerics", "auto, fp32, bf16, fp16, sf16"});
  for (const char* bytes : {"-1", "0x10", "", "1 GB"})
    expect_failure(2, Arguments{"eval", "model.safetensors", "--device-memory", bytes} + scoring(),
                   {"--device-memory", "whole bytes"});
}

TEST_F(UsageTest, AMissingDeviceIsExitCode6) {
  if (!succeed_json({"doctor"}).at("cuda_devices").empty()) GTEST_SKIP() << "this machine has a CUDA device";
  for (const char* device : {"cuda", "cuda:1", "cuda:all"}) {
    expect_failure(6, quantize_arguments("out.thmb", {"--device", device}), {device, "--device cpu"});
    expect_failure(6, Arguments{"eval", "model.safetensors", "--device", device} + scoring(), {device});
    expect_failure(6, Arguments{"audit", "model.safetensors", "--device", device} + scoring(), {device});
    expect_failure(6, {"generate", "model.safetensors", "--tokenizer", "sp.model", "--device", device}, {device});
  }
  expect_failure(6, {"doctor", "--device", "cuda:all"}, {"cuda:all", "--device cpu"});
  EXPECT_FALSE(exists("out.thmb"));
  EXPECT_FALSE(exists("out.thmb.work"));
}

TEST_F(UsageTest, ABudgetThatCannotBeMetIsKnownUpFront) {
  expect_failure(3, trace_arguments("out.thmb", {"--budget", "1000"}),
                 {"budget cannot be met", "not solved by GPTQ take", " B alone", "1,000 B"});
  expect_failure(3, trace_arguments("out.thmb", {"--budget", "1000", "--code-bytes", "1000"}),
                 {"budget cannot be met", "the code takes 1,000 B"});
  expect_failure(3, trace_arguments("out.thmb", {"--budget", "0"}), {"budget cannot be met"});
  EXPECT_FALSE(exists("out.thmb"));
  EXPECT_FALSE(exists("out.thmb.work"));
}

TEST_F(UsageTest, ABudgetThatPruningCannotMeetNamesTheSmallestSize) {
  write("old.thmb", "an older artifact");
  Arguments arguments = trace_arguments("old.thmb", {"--budget", std::to_string(lowest_budget_tried())});
  expect_failure(3, arguments, {"budget cannot be met", "smallest artifact reached", "codes of +-1", "it may take"});
  EXPECT_EQ(as_text(contents("old.thmb")), "an older artifact");
}

TEST_F(UsageTest, BudgetOfAnArtifactOverItsLimit) {
  quantize("model.thmb");
  std::string bytes = std::to_string(size("model.thmb")), less = std::to_string(size("model.thmb") - 1);
  EXPECT_TRUE(succeed_json({"budget", "model.thmb", "--limit", bytes}).at("fits"));
  expect_failure(3, {"budget", "model.thmb", "--limit", less}, {"model.thmb", "the limit is"});
  expect_failure(3, {"budget", "model.thmb", "--limit", bytes, "--code-bytes", "1"}, {"with code"});
  expect_failure(3, {"budget", "model.thmb", "--limit", bytes, "--code", "text.txt", "--code", "config.json"},
                 {"with code"});
  RunResult result = thimble({"budget", "model.thmb", "--limit", less, "--json"});
  Json report = Json::parse(result.out);
  EXPECT_FALSE(report.at("fits"));
  EXPECT_EQ(report.at("total_bytes"), size("model.thmb"));
}

TEST_F(UsageTest, CodeFilesCountTheirBytes) {
  quantize("model.thmb");
  Json report = succeed_json(
      {"budget", "model.thmb", "--limit", "1000000", "--code", "text.txt", "--code", "sp.model", "--code-bytes", "10"});
  EXPECT_EQ(report.at("code_bytes"), size("text.txt") + size("sp.model") + 10);
  EXPECT_EQ(report.at("total_bytes"), size("text.txt") + size("sp.model") + 10 + size("model.thmb"));
}

TEST_F(UsageTest, AFailingAuditIsExitCode3) {
  // Tokens of another text than the one they are said to come from.
  write("other.txt", "another text\n");
  Arguments arguments = Arguments{"audit", "model.safetensors"} + scoring() + Arguments{"--source-text", "other.txt"};
  expect_failure(3, arguments, {"model.safetensors", "audit found a failing check"});
  Json report = Json::parse(thimble(arguments + Arguments{"--json"}).out);
  EXPECT_FALSE(report.at("passed"));
}

}  // namespace
}  // namespace thimble::testing::usage_test
