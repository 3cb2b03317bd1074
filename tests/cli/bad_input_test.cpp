// bad_input_test.cpp: files whose contents are not what they must be: exit code 4, with a message that names the file,
// the object, what was found and what is allowed; never a crash, never a partial output.
#include <limits>
#include <random>

#include "eval/text/token_shard.h"
#include "packer/layout/format.h"
#include "quantizer/formats/safetensors.h"
#include "tests/cli/cli_fixture.h"

namespace thimble::testing::bad_input_test {
namespace {

class BadInputTest : public CliTest {
 protected:
  // Writes config.json with one key changed (or removed, for a null) and expects that quantizing refuses it.
  void expect_config_refused(const std::string& key, const Json& value, const std::vector<std::string>& words) const {
    Json changed = config();
    if (value.is_null())
      changed.erase(key);
    else
      changed[key] = value;
    write("changed.json", changed.dump());
    expect_failure(4, quantize_arguments("out.thmb", {"--config", "changed.json"}),
                   Arguments{"changed.json", "'" + key + "'"} + words);
    EXPECT_FALSE(exists("out.thmb"));
  }

  void expect_weights_refused(const Tensors& weights, const std::vector<std::string>& words) const {
    write_safetensors(path("bad.safetensors"), views_of(weights));
    expect_failure(4, quantize_arguments("out.thmb", {}, "bad.safetensors"), Arguments{"bad.safetensors"} + words);
    EXPECT_FALSE(exists("out.thmb"));
  }

  // Runs the command on `name` with each of these contents: only the given exit codes may come.
  void expect_codes(const Arguments& arguments, const std::string& name, const std::vector<ByteVector>& variants,
                    const std::vector<int>& codes) const {
    for (size_t i = 0; i < variants.size(); ++i) {
      write(name, variants[i]);
      RunResult result = thimble(arguments + Arguments{"--quiet"});
      EXPECT_THAT(codes, ::testing::Contains(result.exit_code))
          << ::testing::PrintToString(arguments) << ", variant " << i << ": " << result.err;
      if (result.exit_code != 0) {
        EXPECT_THAT(result.err, ::testing::StartsWith("thimble: ")) << "variant " << i;
      }
    }
  }
};

std::vector<ByteVector> truncations(const ByteVector& whole) {
  std::vector<ByteVector> cut;
  for (size_t kept : {size_t{0}, size_t{1}, size_t{7}, whole.size() / 3, whole.size() - 1})
    cut.push_back(without_end(whole, whole.size() - kept));
  return cut;
}

std::vector<ByteVector> bit_flips(const ByteVector& whole, int count) {
  std::vector<ByteVector> flipped;
  std::mt19937_64 random(7);
  for (int i = 0; i < count; ++i) flipped.push_back(with_flipped_bit(whole, random() % whole.size()));
  return flipped;
}

TEST_F(BadInputTest, GarbageInEveryPlaceOfAFile) {
  write("garbage", "this is no file of ours, whatever it is named");
  std::vector<Arguments> commands = {
      quantize_arguments("out.thmb", {}, "garbage"),
      quantize_arguments("out.thmb", {"--config", "garbage"}),
      quantize_arguments("out.thmb", {"--calibration-tokens", "garbage"}),
      quantize_arguments("out.thmb", {"--calibration-text", "text.txt", "--tokenizer", "garbage"}),
      quantize_arguments("out.thmb", {"--hessians", "garbage"}),
      quantize_arguments("out.thmb", {"--tokens", "val.bin", "--tokenizer", "garbage"}),
      Arguments{"eval", "garbage"} + scoring(),
      Arguments{"eval", "model.safetensors"} + scoring("garbage"),
      {"eval", "model.safetensors", "--tokens", "val.bin", "--tokenizer", "garbage"},
      {"generate", "garbage", "--tokenizer", "sp.model"},
      {"budget", "garbage", "--limit", "1000000"},
      {"inspect", "garbage"},
      {"export", "garbage", "-o", "out.safetensors"}};
  for (const Arguments& command : commands) expect_failure(4, command, {"garbage: "});
  EXPECT_EQ(thimble({"verify", "garbage"}).exit_code, 4);
  EXPECT_EQ(names(), (Arguments{"config.json", "garbage", "model.safetensors", "sp.model", "text.txt", "val.bin"}));
}

TEST_F(BadInputTest, TruncatedCheckpoints) {
  Arguments arguments = quantize_arguments("out.thmb", {"--config", "config.json"}, "cut");
  expect_codes(arguments, "cut", truncations(contents("model.safetensors")), {4});
  write_torch_file(path("model.pt"), tiny_weights());
  expect_codes(arguments, "cut", truncations(contents("model.pt")), {4});
  EXPECT_FALSE(exists("out.thmb"));
}

TEST_F(BadInputTest, FlippedBitsOfACheckpoint) {
  // Weights of .safetensors have no checksum: a flipped one may be another valid weight, so 0 is allowed there. Reading
  // is what matters here, hence a single calibration sequence.
  Arguments arguments = Arguments{"quantize", "bad", "-o", "out.thmb", "--config", "config.json", "--codec", "none"} +
                        Arguments{"--calibration-sequences", "1", "--calibration-length", "4"};
  ByteVector whole = contents("model.safetensors");
  expect_codes(arguments, "bad", bit_flips(whole, 10), {0, 4});
  std::vector<ByteVector> in_header;
  for (size_t at = 0; at < 8; ++at) in_header.push_back(with_flipped_bit(whole, at));
  in_header.push_back(with_flipped_bit(whole, 9));
  expect_codes(arguments, "bad", in_header, {4});
  // Those of a .pt have one each.
  write_torch_file(path("model.pt"), tiny_weights());
  whole = contents("model.pt");
  expect_codes(arguments, "bad", {with_flipped_bit(whole, 5000), with_flipped_bit(whole, whole.size() / 2)}, {4});
}

TEST_F(BadInputTest, DamagedArtifacts) {
  quantize("model.thmb");
  ByteVector whole = contents("model.thmb");
  std::vector<ByteVector> damaged = truncations(whole);
  for (ByteVector& flipped : bit_flips(whole, 10)) damaged.push_back(std::move(flipped));
  ByteVector longer = whole;
  longer.push_back(std::byte{0});
  damaged.push_back(longer);
  expect_codes({"budget", "bad", "--limit", "1000000"}, "bad", damaged, {4});
  expect_codes({"verify", "bad"}, "bad", damaged, {4});
  expect_codes({"export", "bad", "-o", "out.safetensors"}, "bad", damaged, {4});
  expect_codes(Arguments{"eval", "bad"} + scoring(), "bad", damaged, {4});
  EXPECT_FALSE(exists("out.safetensors"));
}

TEST_F(BadInputTest, VerifySaysWhatIsWrong) {
  quantize("model.thmb");
  ByteVector whole = contents("model.thmb");
  write("bad.thmb", with_flipped_bit(whole, whole.size() - 1));
  RunResult result = thimble({"verify", "bad.thmb"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.out, HasSubstr("checksums      FAILED"));
  EXPECT_THAT(result.err, AllOf(HasSubstr("bad.thmb"), HasSubstr("checksum")));
  Json report = Json::parse(thimble({"verify", "bad.thmb", "--json"}).out);
  EXPECT_FALSE(report.at("checksums"));
  EXPECT_THAT(report.at("problem").get<std::string>(), HasSubstr("checksum"));
  EXPECT_TRUE(succeed_json({"verify", "model.thmb"}).at("identical"));
}

TEST_F(BadInputTest, AnArtifactOfALaterVersionIsNamedSo) {
  quantize("model.thmb");
  ByteVector later = contents("model.thmb");
  later.at(kVersionOffset) = std::byte{99};
  write("later.thmb", later);
  expect_failure(4, {"inspect", "later.thmb"}, {"later.thmb", "version", "99", "1"});
}

TEST_F(BadInputTest, DamagedTokenizers) {
  ByteVector whole = contents("sp.model");
  Arguments arguments = {"eval", "model.safetensors", "--tokens", "val.bin", "--tokenizer", "bad"};
  arguments = arguments + Arguments{"--context", "32", "--stride", "32", "--max-targets", "32"};
  expect_codes(arguments, "bad", truncations(whole), {4});
  expect_codes(arguments, "bad", bit_flips(whole, 10), {0, 4});
}

TEST_F(BadInputTest, DamagedShards) {
  ByteVector whole = contents("val.bin");
  Arguments arguments = Arguments{"eval", "model.safetensors"} + scoring("bad");
  std::vector<ByteVector> damaged = truncations(whole);
  for (size_t at : {0, 4, 8, 11, 500, 1023}) damaged.push_back(with_flipped_bit(whole, at));
  expect_codes(arguments, "bad", damaged, {4});
  write_shard(path("foreign.bin"), std::vector<Token>{1, 2, 264, 3}, kShard16Vocabulary);
  write_shard(path("none.bin"), {}, kShard16Vocabulary);
  write_shard(path("short.bin"), std::vector<Token>(31, 5), kShard16Vocabulary);
  write_shard(path("odd.bin"), std::vector<Token>(64, 264), kShard16Vocabulary);
  expect_failure(4, Arguments{"eval", "model.safetensors"} + scoring("foreign.bin"),
                 {"foreign.bin", "token 264", "position 2", "264 tokens"});
  expect_failure(4, quantize_arguments("out.thmb", {"--calibration-tokens", "val.bin"}),
                 {"val.bin", "multiple of the calibration length 32", "--calibration-sequences"});
  for (const char* file : {"none.bin", "short.bin"})
    expect_failure(4, quantize_arguments("out.thmb", {"--calibration-tokens", file, "--calibration-sequences", "3"}),
                   {file, "at least the calibration length, 32"});
  expect_failure(4, quantize_arguments("out.thmb", {"--calibration-tokens", "odd.bin", "--calibration-sequences", "3"}),
                 {"odd.bin", "token 264", "264 tokens"});
}

TEST_F(BadInputTest, TextWithoutTargetsIsNamed) {
  write_shard(path("none.bin"), {}, kShard16Vocabulary);
  write_shard(path("one.bin"), std::vector<Token>{5}, kShard16Vocabulary);
  write("empty.txt", "");
  write("lines.txt", "\n<|doc|>\n\n");
  for (const char* command : {"eval", "audit"}) {
    expect_failure(4, Arguments{command, "model.safetensors"} + scoring("none.bin"),
                   {"none.bin: no token", "at least 2"});
    expect_failure(4, Arguments{command, "model.safetensors"} + scoring("one.bin"),
                   {"one.bin: 1 token;", "at least 2"});
    for (const std::string text : {"empty.txt", "lines.txt"})
      expect_failure(4, {command, "model.safetensors", "--text", text, "--tokenizer", "sp.model"},
                     {text + ": no token"});
  }
  expect_failure(4, Arguments{"eval", "model.safetensors", "--tokens", "none.bin"} + scoring("one.bin"),
                 {"none.bin: 1 token in 2 shards together"});
  // Known before anything is calibrated.
  expect_failure(4, quantize_arguments("out.thmb", scoring("one.bin")), {"one.bin: 1 token;"});
  expect_failure(4, quantize_arguments("out.thmb", {"--calibration-tokens", "none.bin"}), {"none.bin", "0 tokens"});
  EXPECT_FALSE(exists("out.thmb"));
}

TEST_F(BadInputTest, CalibrationTextThatIsTooShortOrNotUtf8) {
  auto quantize_on = [](const std::string& file) {
    return quantize_arguments("out.thmb", {"--calibration-text", file, "--tokenizer", "sp.model"});
  };
  write("few.txt", "ab ab\n");
  write("empty.txt", "");
  write("latin1.txt", "caf\xe9\n");
  for (const char* file : {"few.txt", "empty.txt"})
    expect_failure(4, quantize_on(file), {file, "at least the calibration length, 32"});
  expect_failure(4, quantize_on("latin1.txt"), {"latin1.txt", "not UTF-8 at byte 3"});
  expect_failure(5, quantize_on("nothing-*.txt"), {"nothing-*.txt", "no text file has this name"});
  EXPECT_FALSE(exists("out.thmb"));
}

TEST_F(BadInputTest, TextThatIsNotUtf8) {
  write("latin1.txt", "caf\xe9\n");
  expect_failure(4, {"eval", "model.safetensors", "--text", "latin1.txt", "--tokenizer", "sp.model"},
                 {"latin1.txt", "UTF-8", "byte 3"});
}

TEST_F(BadInputTest, DamagedConfigs) {
  ByteVector whole = contents("config.json");
  expect_codes(quantize_arguments("out.thmb", {"--config", "bad"}), "bad", truncations(without_end(whole, 1)), {4});
  for (const char* text : {"[]", "3", "null", "\"golf-gpt\"", "{\"a\":1,\"a\":2}", "{} {}"}) {
    write("bad", text);
    expect_failure(4, quantize_arguments("out.thmb", {"--config", "bad"}), {"bad: "});
  }
}

TEST_F(BadInputTest, MissingConfigKeysAreNamed) {
  for (const char* key : {"architecture", "logit_softcap", "rope_base", "rope_dims", "rope_train_seq_len", "ln_scale",
                          "xsa_last_n", "ve_layers", "mlp_activation"})
    expect_config_refused(key, nullptr, {"missing", "tensors cannot prove it"});
}

TEST_F(BadInputTest, ContradictingConfigKeysAreNamed) {
  expect_config_refused("num_layers", 3, {"is 3", "blocks.1.attn.c_q.weight", "proves 2"});
  expect_config_refused("vocab_size", 1024, {"is 1024", "tok_emb.weight", "proves 264"});
  expect_config_refused("num_heads", 4, {"is 4", "q_gain", "proves 2"});
  expect_config_refused("smear_gate", false, {"is false", "smear.gate", "proves true"});
  expect_config_refused("mlp_mult", 3.5, {"is 3.5", "an MLP width of 64", "blocks.0.mlp.fc.weight"});
  expect_config_refused("ve_layers", Json::array({0, 1}), {"[0,1]", "1 layer, one for"});
  expect_config_refused("rope_dims", 7, {"is 7", "even number"});
  expect_config_refused("rope_base", "ten thousand", {"ten thousand", "a number"});
  expect_config_refused("mlp_activation", "gelu", {"gelu", "leaky_relu_0.5_squared"});
}

// 61 / 56 * 56 is 60.999... in float64: the width follows from the tensors all the same.
TEST_F(BadInputTest, AConfigMayLeaveOutWhatTensorsProve) {
  Tensors weights = tiny_weights();
  for (auto& [name, tensor] : weights) {
    Shape shape = tensor.shape;
    for (int64_t& dimension : shape)
      dimension = dimension == 64 ? 61 : dimension == 32 && name != "bigram.embed.weight" ? 56 : dimension;
    if (name.starts_with("ve_shared.proj") || name.ends_with("c_k.weight") || name.ends_with("c_v.weight"))
      shape[0] = 28;
    tensor = random_tensor(shape, 0.5f, 1);
  }
  write_safetensors(path("odd.safetensors"), views_of(weights));
  Json minimal = config();
  for (const char* key : {"vocab_size", "num_layers", "model_dim", "num_heads", "num_kv_heads", "mlp_mult",
                          "tie_embeddings", "bigram_vocab_size", "bigram_dim", "smear_gate", "skip_gates", "ve_dim"})
    minimal.erase(key);
  write("config.json", minimal.dump());
  succeed(quantize_arguments("out.thmb", scoring(), "odd.safetensors"));
  EXPECT_EQ(succeed_json({"inspect", "out.thmb"}).at("config").at("model_dim"), 56);
}

TEST_F(BadInputTest, NoConfigAnywhere) {
  std::filesystem::remove(path("config.json"));
  expect_failure(4, quantize_arguments("out.thmb"), {"model.safetensors", "no config given", "'architecture'"});
}

TEST_F(BadInputTest, TensorsThatDoNotFitAreNamed) {
  Tensors weights = tiny_weights();
  weights.erase("blocks.1.mlp.proj.weight");
  expect_weights_refused(weights, {"blocks.1.mlp.proj.weight", "missing", "[32, 64]"});

  weights = tiny_weights();
  weights["blocks.1.mlp.proj.weight"] = random_tensor({32, 65}, 1, 1);
  expect_weights_refused(weights, {"blocks.1.mlp.proj.weight", "[32, 65]", "expected [32, 64]"});

  weights = tiny_weights();
  weights["blocks.0.extra"] = random_tensor({3}, 1, 1);
  expect_weights_refused(weights, {"blocks.0.extra", "not part of a golf-gpt"});

  weights = tiny_weights();
  weights["blocks.0.attn_scale"].dtype = DType::kI32;
  expect_weights_refused(weights, {"blocks.0.attn_scale", "I32", "floating"});
}

TEST_F(BadInputTest, WeightsThatAreNotFiniteAreNamed) {
  for (const char* name : {"blocks.1.attn.c_v.weight", "blocks.0.attn_scale", "bigram.scale"}) {
    for (float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      Tensors weights = tiny_weights();
      std::vector<float> values = to_float32(weights[name].view());
      values.back() = value;
      weights[name].bytes = from_float32(DType::kF32, values);
      expect_weights_refused(weights, {name, "not finite"});
    }
  }
}

TEST_F(BadInputTest, AVocabularyOfAnotherSizeIsRefused) {
  Tensors weights = tiny_weights();
  weights["tok_emb.weight"] = random_tensor({300, 32}, 0.5f, 1);
  weights["ve_shared.embed.weight"] = random_tensor({300, 8}, 0.5f, 2);
  write_safetensors(path("wide.safetensors"), views_of(weights));
  Json wide = config();
  wide["vocab_size"] = 300;
  write("config.json", wide.dump());
  const std::vector<std::string> words = {"sp.model", "264 pieces", "wide.safetensors", "300"};
  expect_failure(4, Arguments{"eval", "wide.safetensors"} + scoring(), words);
  expect_failure(4, Arguments{"audit", "wide.safetensors"} + scoring(), words);
  expect_failure(4, {"generate", "wide.safetensors", "--tokenizer", "sp.model"}, words);
  expect_failure(4, quantize_arguments("out.thmb", scoring(), "wide.safetensors"), words);
  EXPECT_FALSE(exists("out.thmb"));
}

TEST_F(BadInputTest, AnUnknownFamilyNeedsHessians) {
  write_safetensors(path("other.safetensors"), views_of({{"first.weight", random_tensor({24, 16}, 1, 1)}}));
  write("other.json", R"({"architecture":"two-matrices"})");
  expect_failure(4, quantize_arguments("out.thmb", {"--config", "other.json"}, "other.safetensors"),
                 {"other.safetensors", "two-matrices", "golf-gpt", "--hessians"});
  expect_failure(4, Arguments{"eval", "other.safetensors", "--config", "other.json"} + scoring(),
                 {"other.safetensors", "two-matrices", "cannot be run"});
  write("other.json", R"({"model_type":"bert"})");
  expect_failure(4, quantize_arguments("out.thmb", {"--config", "other.json"}, "other.safetensors"), {"bert"});
}

}  // namespace
}  // namespace thimble::testing::bad_input_test
