// gguf_checkpoint_test.cpp: models of llama.cpp's families through GGUF files: written and read again with equal bits,
// configs from metadata, and what is refused. The Python side compares with llama.cpp's converter
// (tests/python/gguf_files_test.py).
#include "quantizer/formats/gguf_checkpoint.h"

#include <random>

#include "quantizer/checkpoints/gguf_writer.h"
#include "quantizer/formats/safetensors.h"
#include "runtime/base/atomic_file.h"
#include "tests/quantizer/formats/gguf_file_builder.h"
#include "tests/quantizer/formats/reader_asserts.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/base/temporary_folder.h"
#include "tests/runtime/families/llama/random_llama.h"
#include "tests/support/test_files.h"

namespace thimble::gguf_checkpoint_test {
namespace {

const std::string kTokenizer = source_file("tests/eval/tokenizers/golden/byte_level.json");

// What llama.cpp runs too, with as many tokens as the tokenizer and rows of whole blocks.
LlamaConfig config_of(std::string_view type) {
  LlamaConfig c = small_llama_config(type);
  c.vocab_size = 400;
  c.model_dim = 32;
  c.mlp_dim = 64;
  c.head_dim = 8;
  c.num_heads = 4;
  c.query_scalar = 8;
  c.max_positions = 64;
  c.local_rope = {};
  if (c.variant->is_gemma) c.is_local = {true, true, false}, c.local_rope.theta = 20;
  if (type == "llama") c.rope = {1e6, "llama3", 8, 1, 4, 8192};
  if (type == "qwen3") c.rope = {50, "linear", 4};
  if (type == "mistral") c.is_local = {false, false, false}, c.window = 0;
  return c;
}

class GgufCheckpoint : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return folder_.file(name); }

  // model.safetensors with its config inside.
  OwnedTensors write_model(const LlamaConfig& config, DType dtype = DType::kBF16) const {
    OwnedTensors tensors = random_llama_tensors(config, 3, dtype);
    write_safetensors(file("model.safetensors"), views_of(tensors), {{"config", canonical_json(to_json(config))}});
    return tensors;
  }
  GgufReport write(const std::string& type) const {
    return write_gguf(file("model.gguf"), WeightSource(file("model.safetensors"), ""), *gguf_blocks(type), kTokenizer);
  }

  TemporaryFolder folder_;
};

TEST_F(GgufCheckpoint, WrittenAndReadAgainHasEqualBits) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "gemma3_text"}) {
    const LlamaConfig config = config_of(type);
    const OwnedTensors tensors = write_model(config);
    write("BF16");
    OpenedCheckpoint opened(file("model.gguf"), "");
    EXPECT_EQ(opened.file().format_name(), "gguf");
    ASSERT_EQ(opened.parameters().size(), tensors.size()) << type;
    for (const auto& [name, tensor] : tensors) {
      const TensorView& found = opened.parameters().at(name);
      ASSERT_EQ(found.shape, tensor.shape) << name;
      std::vector<float> expected = to_float32(tensor.view());
      // Of a Gemma, 1 + w in float32 is what llama.cpp has.
      if (config.variant->is_gemma && tensor.shape.size() == 1)
        for (float& value : expected) value = (value + 1) - 1;
      EXPECT_EQ(to_float32(found), expected) << type << " " << name;
    }
    Json expected = to_json(config);
    if (std::string(type) == "mistral") {
      expected["model_type"] = "llama";  // which it is to llama.cpp
      expected.erase("sliding_window");
      expected["attention_bias"] = expected["mlp_bias"] = false;
    }
    EXPECT_EQ(opened.runnable().config, expected);
  }
}

TEST_F(GgufCheckpoint, EveryTypeOfMatrixIsWritten) {
  const OwnedTensors tensors = write_model(config_of("qwen2"), DType::kF32);
  const std::string name = llama_name(1, "mlp.down_proj.weight");
  const std::vector<float> values = to_float32(tensors.at(name).view());
  for (const auto& [type, dtype] :
       {std::pair("F32", DType::kF32), {"F16", DType::kF16}, {"BF16", DType::kBF16}, {"Q8_0", DType::kF32}}) {
    const GgufReport report = write(type);
    EXPECT_EQ(report.tensors, tensors.size());
    EXPECT_EQ(report.narrower, 0U);
    const Checkpoint opened = open_checkpoint(file("model.gguf"));
    const TensorView& found = opened.tensors().at(name);
    EXPECT_EQ(found.dtype, dtype) << type;
    std::vector<float> expected(values.size());
    if (type == std::string("Q8_0"))
      dequantize_gguf(*gguf_blocks(std::string_view("Q8_0")), quantize_gguf_q8_0(values), expected);
    else
      expected = to_float32(dtype, from_float32(dtype, values));
    EXPECT_EQ(to_float32(found), expected) << type;
    EXPECT_EQ(opened.tensors().at(kLlamaFinalNorm).dtype, DType::kF32);
  }
}

// In memory or in a temporary file, and without values where nobody asks for them.
TEST_F(GgufCheckpoint, WhatIsMadeIsTheSameWhereverItLies) {
  write_model(config_of("llama"));
  for (const char* type : {"Q8_0", "F16"}) {
    write(type);
    const MappedFile mapped(file("model.gguf"));
    auto read = [&](Contents contents, uint64_t most_in_memory) {
      return read_gguf_checkpoint(mapped.bytes(), mapped.path(), contents, most_in_memory);
    };
    const CheckpointContents in_memory = read(Contents::kBytes, kMostGgufScratchInMemory);
    const CheckpointContents in_file = read(Contents::kBytes, 0), shapes = read(Contents::kShapes, 0);
    ASSERT_EQ(in_file.tensors.size(), in_memory.tensors.size());
    ASSERT_EQ(shapes.tensors.size(), in_memory.tensors.size());
    EXPECT_TRUE(shapes.gathered.empty());
    int64_t without_bytes = 0;
    for (const auto& [name, tensor] : in_memory.tensors) {
      EXPECT_TRUE(std::ranges::equal(in_file.tensors.at(name).bytes, tensor.bytes)) << name;
      for (const CheckpointContents* other : {&in_file, &shapes}) {
        EXPECT_EQ(other->tensors.at(name).shape, tensor.shape) << name;
        EXPECT_EQ(other->tensors.at(name).dtype, tensor.dtype) << name;
      }
      without_bytes += shapes.tensors.at(name).bytes.empty();
    }
    // Queries and keys are reordered; all matrices but those in F16 are quantized.
    const int64_t layers = config_of("llama").num_layers;
    EXPECT_EQ(without_bytes,
              type == std::string("F16") ? 2 * layers : 7 * layers + 1 + !config_of("llama").tie_embeddings);
  }
}

// Two matrices that differ by less than a step.
TEST_F(GgufCheckpoint, AQuantizedHeadThatRepeatsTheTableIsOne) {
  LlamaConfig config = config_of("llama");
  config.tie_embeddings = false;
  OwnedTensors tensors = random_llama_tensors(config, 3, DType::kBF16);
  Tensor &table = tensors.at(kLlamaEmbedding), &head = tensors.at(kLlamaHead);
  table.bytes[0] = table.bytes[1] = std::byte{0};
  head.bytes = table.bytes;
  head.bytes[0] = std::byte{0x80}, head.bytes[1] = std::byte{0x38};  // 2^-14
  write_safetensors(file("model.safetensors"), views_of(tensors), {{"config", canonical_json(to_json(config))}});
  write("Q8_0");
  OpenedCheckpoint opened(file("model.gguf"), "");
  EXPECT_FALSE(opened.parameters().contains(kLlamaHead));
  EXPECT_EQ(opened.parameters().size(), opened.runnable().network->parameters.size());
  EXPECT_NO_THROW(opened.weights());
}

TEST_F(GgufCheckpoint, RowsThatAreNoWholeBlocksAreInF16) {
  LlamaConfig config = config_of("qwen2");
  config.mlp_dim = 40;
  write_model(config);
  EXPECT_EQ(write("Q8_0").narrower, 3U);  // down_proj of three layers
  EXPECT_EQ(open_checkpoint(file("model.gguf")).tensors().at(llama_name(0, "mlp.down_proj.weight")).dtype, DType::kF16);
}

TEST_F(GgufCheckpoint, AWindowBecomesTheContext) {
  LlamaConfig config = config_of("mistral");
  config.window = 10;
  config.is_local = {true, true, true};
  write_model(config);
  write("F16");
  const OpenedCheckpoint opened(file("model.gguf"), "");
  EXPECT_EQ(opened.runnable().config.at("max_position_embeddings"), 10);
}

TEST_F(GgufCheckpoint, WhatLlamaCppDoesNotRunIsNotWritten) {
  auto expect_refused = [&](const LlamaConfig& config, const std::string& part) {
    write_model(config);
    expect_error<UsageError>([&] { write("F16"); }, {"--to gguf", part});
    EXPECT_FALSE(file_exists(file("model.gguf")));
  };
  LlamaConfig config = config_of("gemma3_text");
  config.query_scalar = 9;
  expect_refused(config, "query_pre_attn_scalar of 8, the model 9");
  config = config_of("gemma3_text");
  config.is_local = {false, true, true};
  expect_refused(config, "global layer");
  config = config_of("qwen2");
  config.rope = {50, "llama3", 8, 1, 4, 8192};
  expect_refused(config, "'qwen2' has no rotary scaling of type 'llama3'");
  config = config_of("qwen3");
  config.attention_bias = true;
  expect_refused(config, "no such biases");
  config = config_of("qwen3");
  config.vocab_size = 90;
  expect_refused(config, "tokens, the model has 90");
}

// A Llama of one layer, 4 wide, with two heads.
struct LlamaFile {
  Json metadata = {{"block_count", 1},
                   {"context_length", 16},
                   {"embedding_length", 4},
                   {"feed_forward_length", 6},
                   {"attention.head_count", 2}};
  std::vector<GgufTensorSpec> tensors = {
      {"token_embd.weight", {5, 4}},   {"output_norm.weight", {4}},          {"blk.0.attn_norm.weight", {4}},
      {"blk.0.ffn_norm.weight", {4}},  {"blk.0.attn_q.weight", {4, 4}},      {"blk.0.attn_k.weight", {4, 4}},
      {"blk.0.attn_v.weight", {4, 4}}, {"blk.0.attn_output.weight", {4, 4}}, {"blk.0.ffn_gate.weight", {6, 4}},
      {"blk.0.ffn_up.weight", {6, 4}}, {"blk.0.ffn_down.weight", {4, 6}}};
  std::string architecture = "llama";
  float epsilon = 1e-5F;

  ByteVector build() const {
    GgufBuilder builder;
    builder.text("general.architecture", architecture).f32(architecture + ".attention.layer_norm_rms_epsilon", epsilon);
    for (const auto& [key, value] : metadata.items()) {
      if (value.is_string())
        builder.text(architecture + "." + key, value);
      else if (value.is_number_float())
        builder.f32(architecture + "." + key, value);
      else
        builder.u32(architecture + "." + key, value);
    }
    for (GgufTensorSpec tensor : tensors) {
      if (tensor.bytes.empty()) {
        std::vector<float> values(static_cast<size_t>(element_count(tensor.shape)));
        for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
        tensor.bytes = from_float32(DType::kF32, values);
      }
      builder.tensor(std::move(tensor));
    }
    return builder.build();
  }
  LlamaFile with(const std::string& key, const Json& value) const {
    LlamaFile changed = *this;
    changed.metadata[key] = value;
    return changed;
  }
  LlamaFile with_factors(const std::vector<float>& factors) const {
    LlamaFile changed = *this;
    changed.tensors.push_back({"rope_freqs.weight",
                               {static_cast<int64_t>(factors.size())},
                               kGgufTensorF32,
                               from_float32(DType::kF32, factors)});
    return changed;
  }
};

void expect_refused(const LlamaFile& file, const std::string& part) {
  const ByteVector bytes = file.build();
  expect_format_error(part, [&] { read_gguf_checkpoint(bytes, "x.gguf"); });
}

TEST(GgufMetadata, RowsOfQueriesAndKeysComeInTheOrderOfHuggingFace) {
  LlamaFile file;
  file.metadata["attention.head_count"] = 1;
  const ByteVector bytes = file.build();
  const CheckpointContents contents = read_gguf_checkpoint(bytes, "x.gguf");
  const std::vector<float> query = to_float32(contents.tensors.at(llama_name(0, "self_attn.q_proj.weight")));
  const std::vector<float> value = to_float32(contents.tensors.at(llama_name(0, "self_attn.v_proj.weight")));
  // Rows 0, 2, 1, 3 of the file.
  EXPECT_EQ(query, (std::vector<float>{0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15}));
  EXPECT_EQ(value[4], 4);
  EXPECT_EQ(*contents.config, (Json{{"model_type", "llama"},
                                    {"num_hidden_layers", 1},
                                    {"hidden_size", 4},
                                    {"intermediate_size", 6},
                                    {"num_attention_heads", 1},
                                    {"num_key_value_heads", 1},
                                    {"head_dim", 4},
                                    {"rms_norm_eps", 1e-5},
                                    {"rope_theta", 10000.0},
                                    {"max_position_embeddings", 16}}));
}

TEST(GgufMetadata, WhatChangesTheModelIsRefusedByItsKey) {
  for (const auto& [key, value, part] : std::vector<std::tuple<std::string, Json, std::string>>{
           {"block_count", 0, "'llama.block_count' is 0, allowed is 1 to 1024"},
           {"block_count", 1000000, "'llama.block_count' is 1000000"},
           {"block_count", "two", "'llama.block_count' is \"two\""},
           {"attention.head_count", 3, "'llama.attention.head_count' is 3, allowed is a divisor"},
           {"attention.head_count_kv", 3, "'llama.attention.head_count_kv' is 3, allowed is 1 to 2"},
           {"attention.key_length", 0, "'llama.attention.key_length' is 0"},
           {"attention.value_length", 3, "'llama.attention.value_length' is 3, allowed is 2"},
           {"rope.dimension_count", 1, "'llama.rope.dimension_count' is 1, allowed is 2"},
           {"rope.scaling.type", "yarn", "'llama.rope.scaling.type' is \"yarn\", allowed is 'none' or 'linear'"},
           {"rope.scaling.attn_factor", 2.0, "'llama.rope.scaling.attn_factor' is 2.0, allowed is absent"},
           {"expert_count", 8, "'llama.expert_count' is 8, allowed is 0"},
           {"attention.sliding_window", 8, "'llama.attention.sliding_window' is 8, allowed is absent"},
           {"attention.causal", 0, "'llama.attention.causal'"},
           {"logit_scale", 2.0, "'llama.logit_scale'"},
           {"final_logit_softcapping", 30.0, "'llama.final_logit_softcapping'"}})
    expect_refused(LlamaFile().with(key, value), part);
  for (const char* key : {"block_count", "embedding_length", "feed_forward_length", "attention.head_count"}) {
    LlamaFile file;
    file.metadata.erase(key);
    expect_refused(file, "config key 'llama." + std::string(key) + "' is missing");
  }
  LlamaFile other;
  other.architecture = "mamba";
  expect_refused(other, "'general.architecture' is 'mamba', read are 'llama', 'qwen2', 'qwen3', 'gemma3'");
  GgufBuilder none;
  expect_format_error("key 'general.architecture' is missing",
                      [&, bytes = none.build()] { read_gguf_checkpoint(bytes, "x.gguf"); });
}

TEST(GgufMetadata, TensorsOfOtherModelsAreRefused) {
  LlamaFile file;
  file.tensors.push_back({"blk.0.ffn_gate_exps.weight", {4}});
  expect_refused(file, "tensor 'blk.0.ffn_gate_exps.weight' of shape [4] is not part of a 'llama' model of 1 layers");
  file = {};
  file.tensors.push_back({"blk.1.ffn_gate.weight", {6, 4}});
  expect_refused(file, "tensor 'blk.1.ffn_gate.weight'");
  file = {};
  file.tensors[4].shape = {3, 4};
  expect_refused(file, "tensor 'blk.0.attn_q.weight' of shape [3, 4]: rows must be 2 heads");
}

TEST(GgufMetadata, RotaryFactorsAreThoseOfLlama3OrRefused) {
  LlamaRope rope = {500000, "llama3", 32, 1, 4, 8192};
  LlamaFile file;
  file.metadata.update({{"attention.key_length", 64}, {"rope.freq_base", 500000.0}});
  for (size_t i : {4U, 5U, 6U}) file.tensors[i].shape = {128, 4};
  file.tensors[7].shape = {4, 128};
  LlamaRope plain = rope;
  plain.type = "default";
  std::vector<float> factors;
  for (size_t k = 0; k < 32; ++k)
    factors.push_back(static_cast<float>(plain.frequencies(64)[k] / rope.frequencies(64)[k]));
  const ByteVector bytes = file.with_factors(factors).build();
  EXPECT_EQ(read_gguf_checkpoint(bytes, "x.gguf").config->at("rope_scaling"),
            (Json{{"rope_type", "llama3"},
                  {"factor", 32.0},
                  {"low_freq_factor", 1.0},
                  {"high_freq_factor", 4.0},
                  {"original_max_position_embeddings", 8192}}));
  const ByteVector ones = file.with_factors(std::vector<float>(32, 1)).build();
  EXPECT_FALSE(read_gguf_checkpoint(ones, "x.gguf").config->contains("rope_scaling"));
  factors[20] *= 1.01F;
  expect_refused(file.with_factors(factors), "tensor 'rope_freqs.weight': scales rotary frequencies otherwise");
  for (const float last : {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN()}) {
    factors.back() = last;
    expect_refused(file.with_factors(factors), "rope_freqs.weight");
  }
  expect_refused(file.with_factors({1, 2}), "rope_freqs.weight': is F32 of shape [2], expected F32 of [32]");
}

// 600 files with a few bytes changed, cut or repeated: each opens as a model whose tensors fit its config, or is a
// FormatError that names the file. Most changes in the data are of values alone, so they go into the header.
TEST(GgufMetadata, DamagedModelsOpenOrAreRefused) {
  const TemporaryFolder folder;
  const std::string path = folder.file("damaged.gguf");
  const LlamaFile model = LlamaFile().with("attention.key_length", 2).with("rope.scaling.type", "linear");
  const ByteVector whole = model.with("rope.scaling.factor", 2.0).build();
  const size_t header = whole.size() * 3 / 4;
  std::mt19937 random(5);
  size_t refused = 0;
  for (int seed = 0; seed < 600; ++seed) {
    ByteVector bytes = whole;
    const auto changes = 1 + random() % 4;
    for (size_t i = 0; i < changes; ++i) bytes[random() % header] = static_cast<std::byte>(random() % 3 * 127);
    if (seed % 3 == 1) bytes.resize(random() % bytes.size());
    if (seed % 3 == 2) std::copy_n(whole.begin(), 40, bytes.begin() + static_cast<ptrdiff_t>(random() % (header - 40)));
    write_file_atomically(path, bytes);
    try {
      OpenedCheckpoint opened(path, "");
      EXPECT_EQ(opened.runnable().config.at("num_hidden_layers"), 1);
      for (const auto& [name, tensor] : opened.parameters())
        EXPECT_EQ(tensor.bytes.size(), tensor_bytes_or_throw(tensor.dtype, tensor.shape, name));
    } catch (const FormatError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("damaged.gguf"));
      ++refused;
    }
  }
  EXPECT_GT(refused, 400U);
}

}  // namespace
}  // namespace thimble::gguf_checkpoint_test
