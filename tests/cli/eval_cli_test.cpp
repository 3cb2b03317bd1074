// eval_cli_test.cpp: `thimble eval`, `export`, `generate` and `audit` on a checkpoint and the artifact made from it.
#include <fmt/format.h>

#include "eval/text/text_tokens.h"
#include "eval/text/token_shard.h"
#include "quantizer/formats/safetensors.h"
#include "tests/cli/cli_fixture.h"

namespace thimble::testing::eval_cli_test {
namespace {

class EvalTest : public CliTest {
 protected:
  EvalTest() { quantize("model.thmb"); }

  Json evaluation(const std::string& model, const Arguments& options) const {
    return without_times(succeed_json(Arguments{"eval", model} + options).at("evaluations").at(0));
  }
  double bits_per_byte(const std::string& model, const Arguments& options = scoring()) const {
    return evaluation(model, options).at("bits_per_byte");
  }
  std::vector<Token> tokens() const { return parse_shard(Bytes(contents("val.bin")), "val.bin"); }
};

TEST_F(EvalTest, SeveralModelsGiveATableWithGaps) {
  Arguments both = Arguments{"eval", "model.safetensors", "model.thmb"} + scoring();
  Json evaluations = succeed_json(both).at("evaluations");
  ASSERT_EQ(evaluations.size(), 2);
  EXPECT_EQ(evaluations[0].at("model"), "model.safetensors");
  EXPECT_EQ(evaluations[1].at("model"), "model.thmb");
  EXPECT_EQ(evaluations[0].at("file_bytes"), size("model.safetensors"));
  EXPECT_EQ(evaluations[1].at("file_bytes"), size("model.thmb"));
  EXPECT_EQ(evaluations[0].at("gap_bits_per_byte"), 0);
  double before = evaluations[0].at("bits_per_byte"), after = evaluations[1].at("bits_per_byte");
  EXPECT_NE(before, after);
  EXPECT_DOUBLE_EQ(evaluations[1].at("gap_bits_per_byte"), after - before);
  EXPECT_EQ(after, bits_per_byte("model.thmb"));

  std::string text = succeed(both).out;
  for (const char* word : {"model ", "BPB", "gap", "model.safetensors", "model.thmb", "+0.000000", "context 32"})
    EXPECT_THAT(text, HasSubstr(word));
}

TEST_F(EvalTest, GapsHaveStandardErrors) {
  write_long_tokens();
  const Arguments all = Arguments{"eval", "model.safetensors", "model.thmb", "model.safetensors"} + scoring("long.bin");
  Json evaluations = succeed_json(all).at("evaluations");
  EXPECT_GE(evaluations[0].at("blocks"), 16);
  EXPECT_EQ(evaluations[0].at("gap_standard_error"), 0);
  EXPECT_EQ(evaluations[2].at("gap_standard_error"), 0);
  const double error = evaluations[1].at("gap_standard_error");
  EXPECT_GT(error, 0);
  EXPECT_LT(error, 0.1);
  EXPECT_THAT(succeed(all).out, AllOf(HasSubstr("+-"), HasSubstr(fmt::format("{:.6f}", error))));
  Json report = succeed_json(quantize_arguments("model.thmb", scoring("long.bin"))).at("evaluation");
  EXPECT_EQ(report.at("gap_bits_per_byte"), evaluations[1].at("gap_bits_per_byte"));
  EXPECT_EQ(report.at("gap_standard_error"), error);
  EXPECT_THAT(succeed(quantize_arguments("model.thmb", scoring("long.bin"))).out,
              HasSubstr(fmt::format(" +- {:.6f})", error)));

  // On a text of a few hundred targets nothing is known.
  Json few = succeed_json(Arguments{"eval", "model.safetensors", "model.thmb"} + scoring()).at("evaluations");
  EXPECT_EQ(few[1].at("blocks"), 0);
  EXPECT_TRUE(few[1].at("gap_standard_error").is_null());
}

TEST_F(EvalTest, DivergenceIsFromTheFirstModel) {
  write_long_tokens();
  const Arguments models = {"eval", "model.safetensors", "model.thmb", "model.safetensors", "--divergence"};
  const Json evaluations = succeed_json(models + scoring("long.bin")).at("evaluations");
  EXPECT_FALSE(evaluations[0].contains("divergence"));
  const Json found = evaluations[1].at("divergence"), none = evaluations[2].at("divergence");
  EXPECT_EQ(found.at("targets"), evaluations[1].at("targets"));
  EXPECT_EQ(none.at("mean_nats"), 0);
  EXPECT_EQ(none.at("same_top"), 1);
  const double mean = found.at("mean_nats");
  EXPECT_GT(mean, 0);
  EXPECT_LT(mean, 1);
  EXPECT_GE(found.at("percentile_99_nats"), mean);
  EXPECT_GE(found.at("largest_nats"), found.at("percentile_99_nats"));
  EXPECT_GT(found.at("same_top"), 0.5);
  EXPECT_GT(found.at("standard_error"), 0);
  // The same targets as the gap, however windows are cut.
  const Json few = succeed_json(models + scoring("long.bin") + Arguments{"--max-targets", "5"}).at("evaluations");
  EXPECT_EQ(few[1].at("divergence").at("targets"), 5);
  EXPECT_THAT(succeed(models + scoring("long.bin")).out,
              AllOf(HasSubstr("KL, nats"), HasSubstr("same top"), HasSubstr(fmt::format("{:.6f}", mean))));
  expect_failure(2, Arguments{"eval", "model.thmb", "--divergence"} + scoring(), {"--divergence", "original first"});
}

TEST_F(EvalTest, TheDefaultStrideFitsTheContext) {
  const Arguments text = {"--tokens", "val.bin", "--tokenizer", "sp.model", "--context"};
  EXPECT_EQ(evaluation("model.thmb", text + Arguments{"32"}).at("stride"), 32);
  EXPECT_EQ(evaluation("model.thmb", text + Arguments{"100"}).at("stride"), 64);  // a golf-gpt
  succeed(Arguments{"audit", "model.thmb"} + text + Arguments{"32", "--samples", "1"});
  EXPECT_THAT(succeed(quantize_arguments("out.thmb", text + Arguments{"32"})).out, HasSubstr("context 32, stride 32"));
}

TEST_F(EvalTest, AContextFarLongerThanTheTextIsNoted) {
  // Rotary positions of this model are scaled beyond a context of 64.
  auto arguments = [](const std::string& context) {
    return Arguments{"--tokens", "val.bin", "--tokenizer", "sp.model", "--max-targets", "100", "--context", context};
  };
  const std::string note = "of a context of 201 tokens at most 100 are in use";
  for (const char* command : {"eval", "audit"}) {
    const Arguments base = Arguments{command, "model.safetensors"};
    Json notes = succeed_json(base + arguments("201")).at("notes");
    ASSERT_EQ(notes.size(), 1);
    EXPECT_THAT(notes[0].get<std::string>(), HasSubstr(note));
    EXPECT_THAT(succeed(base + arguments("201")).out, HasSubstr("note: " + note));
    EXPECT_THAT(succeed_json(base + arguments("200")).at("notes"), IsEmpty());
    EXPECT_THAT(succeed(base + arguments("200")).out, Not(HasSubstr("note: ")));
  }
  // Within the context of its training the model scales nothing.
  EXPECT_THAT(succeed_json({"eval", "model.safetensors", "--tokens", "val.bin", "--tokenizer", "sp.model", "--context",
                            "64", "--max-targets", "10"})
                  .at("notes"),
              IsEmpty());
  const Arguments quantize = quantize_arguments("out.thmb", arguments("201"));
  EXPECT_THAT(succeed_json(quantize).at("evaluation").at("notes").at(0).get<std::string>(), HasSubstr(note));
  EXPECT_THAT(succeed(quantize).out, HasSubstr("note: " + note));
}

TEST_F(EvalTest, TheAuditedLabelIsTheOnePrinted) {
  for (const Arguments& limit : {Arguments{}, Arguments{"--max-targets", "100"}, Arguments{"--max-targets", "1"}}) {
    const Arguments options = scoring() + limit;
    Json audit = succeed_json(Arguments{"audit", "model.thmb"} + options + Arguments{"--samples", "1"});
    const Json& check = audit.at("checks").at(2);
    ASSERT_EQ(check.at("name"), "subset label");
    const std::string detail = check.at("detail");
    const std::string label = detail.substr(9, detail.find('"', 9) - 9);  // printed "..."
    EXPECT_EQ(audit.at("scored"), label);
    EXPECT_THAT(succeed(Arguments{"eval", "model.thmb"} + options).out, HasSubstr("\n" + label + ", "));
    EXPECT_THAT(succeed(quantize_arguments("out.thmb", options)).out, HasSubstr(" " + label + "\n"));
    EXPECT_THAT(label, ::testing::StartsWith(evaluation("model.thmb", options).at("scope").get<std::string>() + ", "));
    EXPECT_EQ(label.find("(subset)") == std::string::npos, limit.empty());
  }
}

TEST_F(EvalTest, AuditCountsTextsOfByteTokens) {
  for (const char* text : {"日本", "日本\n<|doc|>\n語😀"}) {
    write("bytes.txt", text);
    Json report = succeed_json({"audit", "model.safetensors", "--text", "bytes.txt", "--tokenizer", "sp.model"});
    EXPECT_EQ(report.at("passed"), true) << report.dump(1);
  }
}

TEST_F(EvalTest, OneIsSingular) {
  write("one.txt", "the x");
  const Arguments text = {"--text", "one.txt", "--tokenizer", "sp.model", "--max-targets", "1"};
  EXPECT_THAT(succeed(Arguments{"eval", "model.thmb"} + text).out,
              AllOf(HasSubstr("first 1 of 3 targets (subset)"), HasSubstr(", 1 window,")));
  write("the.txt", "the");
  const Arguments the = {"--text", "the.txt", "--tokenizer", "sp.model"};
  EXPECT_THAT(succeed(Arguments{"eval", "model.thmb"} + the).out,
              AllOf(HasSubstr("\nthe only target, "), HasSubstr("3 bytes of text, 1 window,")));
  EXPECT_THAT(succeed(Arguments{"audit", "model.thmb"} + the).out, HasSubstr("coverage: 1 target in 1 window: "));
}

TEST_F(EvalTest, ReportsEveryTargetAndItsBytes) {
  Json report = evaluation("model.thmb", scoring());
  EXPECT_EQ(report.at("targets"), tokens().size() - 1);
  EXPECT_EQ(report.at("total_targets"), tokens().size() - 1);
  EXPECT_EQ(report.at("is_subset"), false);
  EXPECT_EQ(report.at("context"), 32);
  EXPECT_EQ(report.at("stride"), 16);
  EXPECT_THAT(report.at("scope").get<std::string>(), ::testing::StartsWith("all "));
  double bits = report.at("loss_nats").get<double>() / std::log(2.0);
  EXPECT_NEAR(report.at("bits_per_byte").get<double>(), bits / report.at("text_bytes").get<double>(), 1e-12);
}

TEST_F(EvalTest, SaysHowLongLoadingTook) {
  Arguments arguments = Arguments{"eval", "model.thmb"} + scoring();
  Json report = succeed_json(arguments).at("evaluations").at(0);
  double load = report.at("load_s"), first_token = report.at("first_token_s"), seconds = report.at("seconds");
  EXPECT_GT(load, 0);
  EXPECT_GT(first_token, load);
  EXPECT_LT(first_token, load + seconds + 60);
  EXPECT_THAT(succeed(arguments).out, AllOf(HasSubstr("loaded model.thmb in "), HasSubstr("first scores ")));
}

TEST_F(EvalTest, ASubsetIsCalledOne) {
  Arguments subset = scoring() + Arguments{"--max-targets", "100"};
  Json report = evaluation("model.thmb", subset);
  EXPECT_EQ(report.at("targets"), 100);
  EXPECT_EQ(report.at("is_subset"), true);
  EXPECT_THAT(report.at("scope").get<std::string>(), AllOf(HasSubstr("first 100 of"), HasSubstr("subset")));
  EXPECT_THAT(succeed(Arguments{"eval", "model.thmb"} + subset).out, HasSubstr("subset"));
  EXPECT_THAT(succeed(quantize_arguments("out.thmb", subset)).out, HasSubstr("subset"));
}

TEST_F(EvalTest, TextAndItsTokensScoreTheSame) {
  Arguments text = {"--text", "text.txt", "--tokenizer", "sp.model", "--context", "32", "--stride", "16"};
  EXPECT_EQ(evaluation("model.thmb", text), evaluation("model.thmb", scoring()));
}

TEST_F(EvalTest, SeveralShardsAreOneStream) {
  std::vector<Token> all = tokens();
  std::span<const Token> span(all);
  size_t third = all.size() / 3;
  write_shard(path("part_0.bin"), span.first(third), kShard16Vocabulary);
  write_shard(path("part_1.bin"), span.subspan(third, 1), kShard16Vocabulary);
  write_shard(path("part_2.bin"), span.subspan(third + 1), kShard16Vocabulary);
  Json whole = evaluation("model.thmb", scoring());
  EXPECT_EQ(evaluation("model.thmb", scoring("part_?.bin")), whole);
  auto in_order = [&](const Arguments& shards) {
    Arguments arguments = {"--tokenizer", "sp.model", "--context", "32", "--stride", "16"};
    for (const std::string& shard : shards) arguments = arguments + Arguments{"--tokens", shard};
    return evaluation("model.thmb", arguments);
  };
  EXPECT_EQ(in_order({"part_0.bin", "part_1.bin", "part_2.bin"}), whole);
  EXPECT_NE(in_order({"part_2.bin", "part_0.bin", "part_1.bin"}), whole);
}

TEST_F(EvalTest, InstructionSetsAgreeUpToRounding) {
  RunOptions portable;
  portable.environment = {"THIMBLE_ISA=portable"};
  EXPECT_THAT(succeed({"doctor"}, portable).out, HasSubstr("portable"));
  Json other = Json::parse(succeed(Arguments{"eval", "model.thmb", "--json"} + scoring(), portable).out);
  EXPECT_NEAR(other.at("evaluations").at(0).at("bits_per_byte").get<double>(), bits_per_byte("model.thmb"), 1e-4);
}

TEST_F(EvalTest, ExportedFloat32ScoresTheSameToTheLastDigit) {
  Json report = succeed_json({"export", "model.thmb", "-o", "back.safetensors"});
  EXPECT_EQ(report.at("dtype"), "F32");
  EXPECT_EQ(report.at("banked"), false);
  std::filesystem::remove(path("config.json"));  // the export carries it
  EXPECT_EQ(bits_per_byte("back.safetensors"), bits_per_byte("model.thmb"));

  MappedFile file(path("back.safetensors"));
  TensorMap back = read_safetensors(file.bytes(), "back").tensors;
  for (const auto& [name, tensor] : tiny_weights()) {
    ASSERT_TRUE(back.contains(name)) << name;
    EXPECT_EQ(back.at(name).shape, tensor.shape) << name;
    EXPECT_EQ(back.at(name).dtype, DType::kF32) << name;
  }
  EXPECT_EQ(back.size(), tiny_weights().size());
}

TEST_F(EvalTest, ExportInShorterTypesIsClose) {
  for (const char* dtype : {"F16", "BF16"}) {
    succeed({"export", "model.thmb", "-o", "back.safetensors", "--dtype", dtype});
    EXPECT_NEAR(bits_per_byte("back.safetensors"), bits_per_byte("model.thmb"), 0.1) << dtype;
    MappedFile file(path("back.safetensors"));
    for (const auto& [name, tensor] : read_safetensors(file.bytes(), "back").tensors)
      EXPECT_EQ(dtype_name(tensor.dtype), dtype) << name;
  }
}

TEST_F(EvalTest, ABankedCheckpointIsExportedBanked) {
  Tensors banks = banked(tiny_weights());
  write_safetensors(path("banked.safetensors"), views_of(banks));
  succeed(quantize_arguments("banked.thmb", {}, "banked.safetensors"));
  EXPECT_EQ(succeed_json({"export", "banked.thmb", "-o", "back.safetensors"}).at("banked"), true);
  MappedFile file(path("back.safetensors"));
  TensorMap back = read_safetensors(file.bytes(), "back").tensors;
  ASSERT_EQ(back.size(), banks.size());
  for (const auto& [name, tensor] : banks) {
    ASSERT_TRUE(back.contains(name)) << name;
    EXPECT_EQ(back.at(name).shape, tensor.shape) << name;
    // Every slice lies where it came from: close to the original, which the others are not.
    std::vector<float> before = to_float32(tensor.view()), after = to_float32(back.at(name));
    double error = 0, energy = 0;
    for (size_t i = 0; i < before.size(); ++i) {
      error += std::pow(before[i] - after[i], 2);
      energy += std::pow(before[i], 2);
    }
    EXPECT_LT(error, 0.5 * energy) << name;
  }
  EXPECT_EQ(bits_per_byte("back.safetensors"), bits_per_byte("model.thmb"));
  EXPECT_EQ(bits_per_byte("banked.thmb"), bits_per_byte("model.thmb"));
  EXPECT_EQ(bits_per_byte("banked.safetensors"), bits_per_byte("model.safetensors"));
}

TEST_F(EvalTest, AnExportIsACheckpointLikeAnyOther) {
  succeed({"export", "model.thmb", "-o", "back.safetensors"});
  succeed(trace_arguments("again.thmb", {"--bits", "8", "--high", "0"}, "back.safetensors"));
  EXPECT_NEAR(bits_per_byte("again.thmb"), bits_per_byte("model.thmb"), 0.2);
}

TEST_F(EvalTest, AuditPassesOnARealModel) {
  for (const char* model : {"model.safetensors", "model.thmb"}) {
    Json report = succeed_json(Arguments{"audit", model} + scoring() + Arguments{"--source-text", "text.txt"});
    EXPECT_EQ(report.at("passed"), true) << report;
    std::vector<std::string> names;
    for (const Json& check : report.at("checks")) names.push_back(check.at("name"));
    EXPECT_THAT(names, ::testing::IsSupersetOf({"causality", "normalisation"}));
  }
  Arguments text = {"audit", "model.thmb", "--text", "text.txt", "--tokenizer", "sp.model", "--context", "32"};
  RunResult result = succeed(text + Arguments{"--stride", "32", "--max-targets", "64", "--samples", "1"});
  EXPECT_THAT(result.out, AllOf(HasSubstr("pass  "), Not(HasSubstr("FAIL"))));
}

TEST_F(EvalTest, GenerateIsDeterministicForASeed) {
  Arguments arguments = {"generate", "model.thmb", "--tokenizer", "sp.model", "--length", "40", "--prompt", "the sea"};
  Json first = succeed_json(arguments + Arguments{"--seed", "5"});
  EXPECT_EQ(succeed_json(arguments + Arguments{"--seed", "5"}), first);
  EXPECT_EQ(succeed_json(arguments + Arguments{"--seed", "5", "--threads", "1"}), first);
  EXPECT_NE(succeed_json(arguments + Arguments{"--seed", "6"}).at("tokens"), first.at("tokens"));
  EXPECT_EQ(first.at("seed"), 5);
  EXPECT_THAT(first.at("text").get<std::string>(), ::testing::StartsWith("the sea"));
  EXPECT_EQ(succeed(arguments + Arguments{"--seed", "5"}).out, first.at("text").get<std::string>() + "\n");
}

TEST_F(EvalTest, GenerateAtTemperatureZeroNeedsNoSeed) {
  Arguments arguments = {"generate", "model.safetensors", "--tokenizer", "sp.model", "--length", "20"};
  arguments = arguments + Arguments{"--temperature", "0"};
  EXPECT_EQ(succeed_json(arguments + Arguments{"--seed", "1"}).at("tokens"),
            succeed_json(arguments + Arguments{"--seed", "2"}).at("tokens"));
}

TEST_F(EvalTest, TheLongestContinuationIsTheLengthAskedFor) {
  Json result = succeed_json({"generate", "model.thmb", "--tokenizer", "sp.model", "--length", "7"});
  EXPECT_LE(result.at("tokens").size(), 7);
}

}  // namespace
}  // namespace thimble::testing::eval_cli_test
