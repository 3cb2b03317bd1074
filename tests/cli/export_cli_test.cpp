// export_cli_test.cpp: `thimble export --to hf` and `--to gguf` of checkpoints and artifacts: read again with equal
// bits, written whole or not at all, never over something else.
#include <filesystem>

#include "quantizer/checkpoints/checkpoint.h"
#include "quantizer/formats/safetensors.h"
#include "tests/cli/cli_fixture.h"
#include "tests/runtime/families/gpt2/random_gpt2.h"
#include "tests/runtime/families/llama/random_llama.h"
#include "tests/support/test_files.h"

namespace thimble::testing::export_cli_test {
namespace {

// Beside the folder's golf-gpt: hub/, a folder of Hugging Face in BF16 with a byte-level tokenizer and what belongs to
// it.
class ExportCliTest : public CliTest {
 protected:
  ExportCliTest() {
    std::filesystem::create_directory(path("hub"));
    Json config = to_json(config_);
    config["eos_token_id"] = {2, 3};
    config["bos_token_id"] = 1;
    write("hub/config.json", config.dump());
    write_safetensors(path("hub/model.safetensors"), views_of(weights_));
    std::filesystem::copy_file(source_file("tests/eval/tokenizers/golden/byte_level.json"), path("hub/tokenizer.json"));
    write("hub/tokenizer_config.json", R"({"chat_template": "{{ messages }}"})");
    write("hub/README.md", "not copied");
  }
  static LlamaConfig config_of_test() {
    LlamaConfig config = small_llama_config("qwen3");
    config.vocab_size = 363;  // as the tokenizer
    config.model_dim = 32;
    config.mlp_dim = 64;
    return config;
  }
  void expect_weights(const std::string& model) const {
    const Checkpoint opened = open_checkpoint(path(model));
    ASSERT_EQ(opened.tensors().size(), weights_.size()) << model;
    for (const auto& [name, tensor] : weights_)
      EXPECT_EQ(to_float32(opened.tensors().at(name)), to_float32(tensor.view())) << name;
  }
  std::vector<std::string> names_in(const std::string& folder) const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(path(folder)))
      found.push_back(entry.path().filename());
    std::ranges::sort(found);
    return found;
  }

  const LlamaConfig config_ = config_of_test();
  const Tensors weights_ = random_llama_tensors(config_, 2, DType::kBF16);
};

TEST_F(ExportCliTest, AFolderComesBackAsItWas) {
  const Json report = succeed_json({"export", "hub", "--to", "hf", "-o", "out"});
  EXPECT_EQ(report.at("tensors"), weights_.size());
  EXPECT_EQ(report.at("dtype"), "BF16");
  EXPECT_EQ(report.at("shards"), 1);
  EXPECT_EQ(report.at("tokenizer_files"), (Json{"tokenizer.json", "tokenizer_config.json"}));
  EXPECT_EQ(names_in("out"),
            (std::vector<std::string>{"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}));
  expect_weights("out");
  EXPECT_EQ(contents("out/tokenizer.json"), contents("hub/tokenizer.json"));
  const Json config = parse_json(Bytes(contents("out/config.json")), "config");
  EXPECT_EQ(config.at("architectures"), Json{"Qwen3ForCausalLM"});
  EXPECT_EQ(config.at("torch_dtype"), "bfloat16");
  EXPECT_EQ(config.at("dtype"), "bfloat16");
  EXPECT_EQ(config.at("eos_token_id"), (Json{2, 3}));
  EXPECT_EQ(config.at("rope_theta"), config.at("rope_parameters").at("rope_theta"));
  EXPECT_EQ(succeed_json({"inspect", "out"}).at("config"), succeed_json({"inspect", "hub"}).at("config"));
  // Equal inputs give equal bytes.
  succeed({"export", "out", "--to", "hf", "-o", "again"});
  for (const char* name : {"/model.safetensors", "/config.json"})
    EXPECT_EQ(contents(std::string("again") + name), contents(std::string("out") + name));
}

TEST_F(ExportCliTest, ShardsHoldAtMostWhatTheyMay) {
  const Json report = succeed_json({"export", "hub", "--to", "hf", "-o", "out", "--shard-size", "10KB"});
  const auto shards = report.at("shards").get<size_t>();
  EXPECT_GT(shards, 3U);
  for (const std::string& name : names_in("out"))
    if (name.ends_with(".safetensors")) {
      const ByteVector file = contents("out/" + name);
      const CheckpointContents shard = read_safetensors(file, name);
      uint64_t bytes = 0;
      for (const auto& [tensor, shape] : shard.tensors)
        bytes += tensor_bytes_or_throw(shape.dtype, shape.shape, tensor);
      EXPECT_TRUE(bytes <= 10'000 || shard.tensors.size() == 1) << name;
    }
  expect_weights("out");
}

TEST_F(ExportCliTest, AnArtifactHasTheWeightsThatAreScored) {
  succeed({"quantize", "hub", "-o", "a.thmb", "--method", "trace", "--bits", "4", "--min-elements", "100",
           "--calibration-sequences", "2", "--calibration-length", "16"});
  succeed({"export", "a.thmb", "-o", "flat.safetensors"});
  succeed({"export", "a.thmb", "--to", "hf", "-o", "out", "--dtype", "F32", "--tokenizer", "hub"});
  succeed(
      {"export", "a.thmb", "--to", "gguf", "-o", "out.gguf", "--dtype", "F32", "--tokenizer", "hub/tokenizer.json"});
  const Checkpoint flat = open_checkpoint(path("flat.safetensors"));
  for (const char* name : {"out", "out.gguf"}) {
    const Checkpoint opened = open_checkpoint(path(name));
    ASSERT_EQ(opened.tensors().size(), flat.tensors().size());
    for (const auto& [tensor, view] : flat.tensors())
      EXPECT_EQ(to_float32(opened.tensors().at(tensor)), to_float32(view)) << name << " " << tensor;
  }
  EXPECT_EQ(names_in("out"),
            (std::vector<std::string>{"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}));
}

TEST_F(ExportCliTest, AnArtifactGoesIntoAFolderAsItIs) {
  const Json report =
      succeed_json({"quantize", "hub", "-o", "a.thmb", "--method", "trace", "--bits", "4", "--min-elements", "100",
                    "--calibration-sequences", "2", "--calibration-length", "16"});
  write("report.json", report.dump());
  std::filesystem::create_directory(path("models"));
  const Json made = succeed_json({"export", "a.thmb", "--to", "hf-thimble", "-o", "models/out/", "--tokenizer", "hub",
                                  "--report", "report.json", "--dtype", "F16"});
  EXPECT_EQ(made.at("artifact_bytes"), size("a.thmb"));
  EXPECT_EQ(names_in("models/out"), (std::vector<std::string>{"README.md", "config.json", "model.thmb",
                                                              "tokenizer.json", "tokenizer_config.json"}));
  EXPECT_EQ(contents("models/out/model.thmb"), contents("a.thmb"));
  const Json config = parse_json(Bytes(contents("models/out/config.json")), "config");
  EXPECT_EQ(config.at("quantization_config"), (Json{{"format_version", 1}, {"quant_method", "thimble"}}));
  EXPECT_EQ(config.at("dtype"), "float16");
  EXPECT_EQ(config.at("eos_token_id"), (Json{2, 3}));
  const ByteVector card = contents("models/out/README.md");
  const std::string text(as_text(card));
  EXPECT_THAT(text,
              AllOf(HasSubstr("# out\n"), HasSubstr("Bits per byte were not measured"), Not(HasSubstr("models/"))));
  succeed({"export", "a.thmb", "--to", "hf-thimble", "-o", "plain"});
  EXPECT_EQ(names_in("plain"), (std::vector<std::string>{"README.md", "config.json", "model.thmb"}));

  expect_failure(2, {"export", "hub", "--to", "hf-thimble", "-o", "x"}, {"hub is no artifact"});
  expect_failure(2, {"export", "a.thmb", "--to", "hf", "-o", "x", "--report", "report.json"},
                 {"--report", "hf-thimble"});
  expect_failure(2, {"export", "a.thmb", "--to", "hf-thimble", "-o", "x", "--shard-size", "1MB"}, {"--shard-size"});
  write("other.json", R"({"artifact_bytes": 7})");
  expect_failure(4, {"export", "a.thmb", "--to", "hf-thimble", "-o", "x", "--report", "other.json"},
                 {"other.json", "an artifact of 7 B"});
  EXPECT_FALSE(exists("x"));
}

TEST_F(ExportCliTest, AGgufFileIsTakenWhereverACheckpointIs) {
  succeed({"export", "hub", "--to", "gguf", "-o", "model.gguf"});
  expect_weights("model.gguf");
  const Json report = succeed_json({"inspect", "model.gguf"});
  EXPECT_EQ(report.at("format"), "gguf");
  EXPECT_EQ(report.at("family"), "qwen3");
  write("t.txt", "some words, and some more of them: words upon words");
  const auto loss = [&](const std::string& model, const Arguments& tokenizer) {
    return succeed_json(Arguments{"eval", model, "--text", "t.txt", "--context", "8", "--stride", "4"} + tokenizer)
        .at("evaluations")
        .at(0)
        .at("bits_per_byte");
  };
  // With the tokenizer that it holds.
  EXPECT_EQ(loss("model.gguf", {}), loss("hub", {}));
  EXPECT_EQ(loss("hub", {"--tokenizer", "model.gguf"}), loss("hub", {}));
  succeed({"quantize", "model.gguf", "-o", "a.thmb", "--method", "trace", "--min-elements", "100",
           "--calibration-sequences", "2", "--calibration-length", "16"});
  // The metadata's ids stay with the artifact.
  EXPECT_EQ(succeed_json({"inspect", "a.thmb"}).at("config").at("eos_token_id"), 2);
  succeed({"export", "model.gguf", "--to", "gguf", "-o", "again.gguf"});
  EXPECT_EQ(contents("again.gguf"), contents("model.gguf"));
}

TEST_F(ExportCliTest, Gpt2HasItsMatricesTurned) {
  Gpt2Config config = small_gpt2_config();
  Tensors stored = random_gpt2_tensors(config, 4, DType::kBF16);
  for (auto& [name, tensor] : stored)
    if (is_gpt2_projection(name)) tensor = transposed(tensor.view());
  write_safetensors(path("gpt2.safetensors"), views_of(stored), {{"config", to_json(config).dump()}});
  succeed({"export", "gpt2.safetensors", "--to", "hf", "-o", "out", "--shard-size", "5KB"});
  const Checkpoint opened = open_checkpoint(path("out"));
  ASSERT_EQ(opened.tensors().size(), stored.size());
  for (const auto& [name, tensor] : stored) {
    EXPECT_EQ(opened.tensors().at(name).shape, tensor.shape) << name;
    EXPECT_TRUE(std::ranges::equal(opened.tensors().at(name).bytes, tensor.bytes)) << name;
  }
  const Json written = parse_json(Bytes(contents("out/config.json")), "config");
  EXPECT_EQ(written.at("model_type"), "gpt2");
  EXPECT_EQ(written.at("architectures"), Json{"GPT2LMHeadModel"});
  expect_failure(2, {"export", "gpt2.safetensors", "--to", "gguf", "-o", "x.gguf", "--tokenizer", "hub"},
                 {"--to gguf", "'gpt2'"});
}

TEST_F(ExportCliTest, NothingIsReplacedByAFolder) {
  write("file", "kept");
  std::filesystem::create_directory(path("full"));
  write("full/kept", "kept");
  for (const char* output : {"file", "full", "hub", "hub/config.json"})
    expect_failure(output == std::string("hub") || output == std::string("hub/config.json") ? 2 : 5,
                   {"export", "hub", "--to", "hf", "-o", output}, {output});
  expect_failure(5, {"export", "hub", "--to", "hf", "-o", "nowhere/out"}, {"nowhere/out", "No such file"});
  EXPECT_EQ(contents("file").size(), 4U);
  EXPECT_EQ(names_in("full"), std::vector<std::string>{"kept"});
  std::filesystem::create_directory(path("empty"));
  succeed({"export", "hub", "--to", "hf", "-o", "empty/"});
  expect_weights("empty");
  // What a killed process left is removed, what is not its own stays.
  std::filesystem::create_directory(path("new.tmp123.0"));
  std::filesystem::create_directory(path("new.tmp.old"));
  write("new.tmp123.0/model.safetensors", "half");
  succeed({"export", "hub", "--to", "hf", "-o", "new"});
  EXPECT_FALSE(std::filesystem::exists(path("new.tmp123.0")));
  EXPECT_TRUE(std::filesystem::exists(path("new.tmp.old")));
}

TEST_F(ExportCliTest, AFailureLeavesNoFolder) {
  Tensors large = weights_;
  large.at(kLlamaFinalNorm).bytes = from_float32(DType::kBF16, std::vector<float>(32, 1e38F));
  write_safetensors(path("hub/model.safetensors"), views_of(large));
  const std::vector<std::string> before = names();
  expect_failure(4, {"export", "hub", "--to", "hf", "-o", "out", "--dtype", "F16"}, {"model.norm.weight", "F16"});
  EXPECT_EQ(names(), before);
}

TEST_F(ExportCliTest, OptionsOfOtherFormatsAreRefused) {
  expect_failure(2, {"export", "hub", "--to", "hf", "-o", "x", "--layout", "nvfp4"},
                 {"--layout is for --to safetensors"});
  expect_failure(2, {"export", "hub", "--to", "gguf", "-o", "x", "--shard-size", "1M"},
                 {"--shard-size is for --to hf"});
  expect_failure(2, {"export", "a.thmb", "-o", "x", "--tokenizer", "hub"},
                 {"--tokenizer is for --to hf, hf-thimble and gguf"});
  expect_failure(2, {"export", "hub", "--to", "hf", "-o", "x", "--dtype", "Q8_0"}, {"Q8_0 is for --to gguf"});
  expect_failure(2, {"export", "model.safetensors", "--to", "hf", "-o", "x"}, {"knows no 'golf-gpt' models"});
  expect_failure(2, {"export", "model.safetensors", "--to", "gguf", "-o", "x", "--tokenizer", "hub"}, {"'golf-gpt'"});
  std::filesystem::remove(path("hub/tokenizer.json"));
  expect_failure(2, {"export", "hub", "--to", "gguf", "-o", "x"}, {"--to gguf needs --tokenizer", "'hub' has none"});
  expect_failure(2, {"export", "hub", "--to", "gguf", "-o", "x", "--tokenizer", "sp.model"},
                 {"sp.model", "byte-pair encodings are written"});
  expect_failure(4, {"export", "model.safetensors", "-o", "x"}, {"not a thimble artifact"});
  for (const char* name : {"x", "x.gguf"}) EXPECT_FALSE(exists(name));
}

}  // namespace
}  // namespace thimble::testing::export_cli_test
