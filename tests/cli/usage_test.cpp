// usage_test.cpp: command lines that are refused with exit code 2, requests that no device here can meet (6), and
// budgets and checks that are not met (3).
#include "eval/token_shard.h"
#include "tests/cli/cli_fixture.h"

namespace thimble::testing {
namespace {

using UsageTest = CliTest;

TEST_F(UsageTest, UnknownCommandsAndOptionsAreNamed) {
  expect_failure(2, {"frobnicate"}, {"frobnicate"});
  expect_failure(2, {"doctor", "--frobnicate"}, {"--frobnicate"});
  expect_failure(2, {"inspect", "one.thmb", "two.thmb"}, {"two.thmb"});
}

TEST_F(UsageTest, WhatIsRequiredIsNamed) {
  expect_failure(2, {"quantize", "-o", "out.thmb"}, {"checkpoint"});
  expect_failure(2, {"quantize", "model.safetensors"}, {"--output"});
  expect_failure(2, {"inspect"}, {"artifact"});
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
}

TEST_F(UsageTest, NumbersOutOfRangeAreRefused) {
  for (const char* size : {"-5", "1e6", "0x10", "16MB", "", "99999999999999999999999"}) {
    expect_failure(2, {"budget", "model.thmb", "--limit", size}, {"--limit", size});
    expect_failure(2, quantize_arguments("out.thmb", {"--budget", size}), {"--budget", size});
    expect_failure(2, quantize_arguments("out.thmb", {"--code-bytes", size}), {"--code-bytes", size});
  }
  for (const char* threads : {"-1", "4097", "many", "1.5"})
    expect_failure(2, {"doctor", "--threads", threads}, {"--threads", threads});
  expect_failure(2, {"doctor", "--seed", "-1"}, {"--seed", "-1"});
  expect_failure(2, {"doctor", "--seed"}, {"--seed"});
  expect_failure(2, quantize_arguments("out.thmb", {"--temperature", "nan"}), {"--temperature", "nan"});
  expect_failure(2, quantize_arguments("out.thmb", {"--temperature", "-0.5"}), {"--temperature", "-0.5"});
  Arguments evaluate = Arguments{"eval", "model.safetensors"} + scoring();
  expect_failure(2, evaluate + Arguments{"--max-targets", "0"}, {"--max-targets"});
  expect_failure(2, Arguments{"generate", "model.safetensors", "--tokenizer", "sp.model", "--length", "0"},
                 {"--length"});
}

TEST_F(UsageTest, SizesAreDecimalAlsoWithLeadingZeros) {
  quantize("model.thmb");
  EXPECT_EQ(succeed_json({"budget", "model.thmb", "--limit", "0100000"}).at("limit_bytes"), 100'000);
}

TEST_F(UsageTest, BitsCodecHighAndDtypeNameWhatIsAllowed) {
  for (const char* bits : {"1", "9", "6,5", "5,", ",6", "5,6,7", "five", ""})
    expect_failure(2, quantize_arguments("out.thmb", {"--bits", bits}), {"--bits"});
  expect_failure(2, quantize_arguments("out.thmb", {"--bits", "6,5"}), {"6,5", "must not be below"});
  expect_failure(2, quantize_arguments("out.thmb", {"--bits", "5,9"}), {"'9'", "2 to 8"});
  expect_failure(2, quantize_arguments("out.thmb", {"--codec", "gzip"}),
                 {"gzip", "brotli", "zstd", "xz", "rans", "none"});
  expect_failure(2, quantize_arguments("out.thmb", {"--high", "some"}), {"--high", "some"});
  expect_failure(2, quantize_arguments("out.thmb", {"--high", "-1"}), {"--high", "-1"});
  expect_failure(2, quantize_arguments("out.thmb", {"--high", "auto"}), {"--high", "--budget"});
  expect_failure(2, {"export", "model.thmb", "-o", "x", "--dtype", "F64"}, {"--dtype", "F64", "BF16"});
  EXPECT_FALSE(exists("out.thmb"));
}

TEST_F(UsageTest, OptionsThatExcludeEachOther) {
  expect_failure(2, quantize_arguments("out.thmb", {"--hessians", "h", "--save-calibration", "t"}), {"--hessians"});
  expect_failure(2, quantize_arguments("out.thmb", {"--hessians", "h", "--calibration-tokens", "t"}),
                 {"--hessians", "trace"});
  quantize("model.thmb");
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
  RunOptions few;
  few.as_nobody = true;
  few.limits = {{RLIMIT_NPROC, 1}};
  const Arguments evaluate = Arguments{"eval", "model.safetensors"} + scoring();
  if (!thimble({"--version"}, few).started) GTEST_SKIP() << "an unprivileged user cannot execute the program here";
  expect_failure(1, evaluate + Arguments{"--threads", "3"}, {"1 of 3 threads", "ulimit -u", "--threads 1"}, few);
  succeed(evaluate + Arguments{"--threads", "1"}, few);
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
  for (const char* bytes : {"-1", "1e9", "", "1 GB"})
    expect_failure(2, Arguments{"eval", "model.safetensors", "--device-memory", bytes} + scoring(),
                   {"--device-memory", "integer from 0"});
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
  expect_failure(3, quantize_arguments("out.thmb", {"--budget", "1000"}),
                 {"budget cannot be met", "not solved by GPTQ take", " B alone", "1,000 B"});
  expect_failure(3, quantize_arguments("out.thmb", {"--budget", "1000", "--code-bytes", "1000"}),
                 {"budget cannot be met", "the code takes 1,000 B"});
  expect_failure(3, quantize_arguments("out.thmb", {"--budget", "0"}), {"budget cannot be met"});
  EXPECT_FALSE(exists("out.thmb"));
  EXPECT_FALSE(exists("out.thmb.work"));
}

TEST_F(UsageTest, ABudgetThatPruningCannotMeetNamesTheSmallestSize) {
  write("old.thmb", "an older artifact");
  Arguments arguments = quantize_arguments("old.thmb", {"--budget", std::to_string(lowest_budget_tried())});
  expect_failure(3, arguments, {"budget cannot be met", "smallest artifact reached", "codes of +-1", "it may take"});
  EXPECT_EQ(as_text(contents("old.thmb")), "an older artifact");
}

TEST_F(UsageTest, BudgetOfAnArtifactOverItsLimit) {
  quantize("model.thmb");
  std::string bytes = std::to_string(size("model.thmb")), less = std::to_string(size("model.thmb") - 1);
  EXPECT_TRUE(succeed_json({"budget", "model.thmb", "--limit", bytes}).at("fits"));
  expect_failure(3, {"budget", "model.thmb", "--limit", less}, {"model.thmb", "the limit is"});
  expect_failure(3, {"budget", "model.thmb", "--limit", bytes, "--code-bytes", "1"}, {"with code"});
  expect_failure(3, {"budget", "model.thmb", "--limit", bytes, "--code", "text.txt", "config.json"}, {"with code"});
  RunResult result = thimble({"budget", "model.thmb", "--limit", less, "--json"});
  Json report = Json::parse(result.out);
  EXPECT_FALSE(report.at("fits"));
  EXPECT_EQ(report.at("total_bytes"), size("model.thmb"));
}

TEST_F(UsageTest, CodeFilesCountTheirBytes) {
  quantize("model.thmb");
  Json report = succeed_json(
      {"budget", "model.thmb", "--limit", "1000000", "--code", "text.txt", "sp.model", "--code-bytes", "10"});
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
}  // namespace thimble::testing
