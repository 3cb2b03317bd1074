// fuzz_seeds.cpp: writes the inputs that fuzzing starts from: small valid files of every format, one folder per target.
// In: a folder on the command line.  Out: <folder>/<target>/<name>. They come from the writers of this project and from
// the tests' builders, so that the repository holds no binary corpus.
#include <cstdio>
#include <filesystem>

#include "eval/text/token_shard.h"
#include "packer/rans/weight_coder.h"
#include "quantizer/formats/safetensors.h"
#include "runtime/base/atomic_file.h"
#include "runtime/families/gguf_text_rules.h"
#include "tests/eval/tokenizers/tokenizer_builder.h"
#include "tests/packer/layout/sample_codes.h"
#include "tests/packer/sample_models.h"
#include "tests/quantizer/formats/gguf_file_builder.h"
#include "tests/quantizer/formats/llmc_file_builder.h"
#include "tests/quantizer/formats/torch_file_builder.h"
#include "tests/runtime/families/golf/random_model.h"
#include "tests/runtime/families/llama/random_llama.h"

namespace thimble {
namespace {

using namespace std::string_view_literals;

class SeedFolder {
 public:
  SeedFolder(const std::filesystem::path& root, const std::string& target) : path_(root / target) {
    std::filesystem::create_directories(path_);
  }
  std::string path(const std::string& name) const { return (path_ / name).string(); }
  void write(const std::string& name, Bytes bytes) const { write_file_atomically(path(name), bytes); }

 private:
  std::filesystem::path path_;
};

// A golf-gpt of two layers with every option on, 8 wide.
GolfConfig seed_config() {
  GolfConfig config = small_golf_config();
  config.vocab_size = 11;
  config.num_layers = 2;
  config.model_dim = 8;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.bigram_vocab_size = 5;
  config.bigram_dim = 3;
  config.ve_layers = {1};
  config.ve_dim = 3;
  return config;
}

// The same with every option off.
GolfConfig plain_config() {
  GolfConfig config = seed_config();
  config.tie_embeddings = false;
  config.bigram_vocab_size = config.bigram_dim = 0;
  config.smear_gate = config.skip_gates = false;
  config.ve_layers.clear();
  config.ve_dim = 0;
  return config;
}

void safetensors_seeds(const SeedFolder& folder) {
  write_safetensors(folder.path("empty"), {});
  ByteVector zeros(64);
  Bytes bytes(zeros);
  TensorMap tensors = {{"a.weight", {DType::kF32, {2, 3}, bytes.first(24)}},
                       {"b.gain", {DType::kBF16, {4}, bytes.first(8)}},
                       {"c.scale", {DType::kF64, {}, bytes.first(8)}},
                       {"d.mask", {DType::kBool, {0, 7}, {}}}};
  write_safetensors(folder.path("dtypes"), tensors, {{"format", "pt"}, {"config", "{\"num_layers\":1}"}});
}

// The index, and after a zero byte the headers of fuzz_index.cpp.
void index_seeds(const SeedFolder& folder) {
  const std::string index =
      R"({"metadata":{"total_size":48},"weight_map":{"a.weight":"model-00001-of-00002.safetensors",)"
      R"("b.weight":"model-00002-of-00002.safetensors","b.bias":"model-00002-of-00002.safetensors"}})";
  const std::string headers =
      "model-00001-of-00002.safetensors a.weight\nmodel-00002-of-00002.safetensors b.weight\n"
      "model-00002-of-00002.safetensors b.bias\n";
  folder.write("agrees", as_bytes_of(index));
  folder.write("headers", as_bytes_of(index + '\0' + headers));
  folder.write("one", as_bytes_of(R"({"weight_map":{"a":"model.safetensors"}})"sv));
  folder.write("leaves", as_bytes_of(R"({"weight_map":{"a":"../model.safetensors"}})"sv));
}

// Models of one layer, 32 wide: matrices of the type, vectors in F32.
void gguf_seeds(const SeedFolder& folder) {
  struct Matrices {
    const char* architecture;
    uint32_t type;
    uint64_t block_bytes;  // of 32 elements
  };
  for (const auto& [architecture, type, block_bytes] :
       {Matrices{"llama", 3, 20}, {"qwen2", kGgufTensorQ8, 34}, {"qwen3", kGgufTensorBF16, 64}, {"gemma3", 2, 18}}) {
    GgufBuilder builder;
    const std::string prefix = architecture + std::string(".");
    builder.text("general.architecture", architecture).f32(prefix + "attention.layer_norm_rms_epsilon", 1e-6F);
    for (const auto& [key, value] : {std::pair("block_count", 1U),
                                     {"context_length", 64U},
                                     {"embedding_length", 32U},
                                     {"feed_forward_length", 32U},
                                     {"attention.head_count", 2U}})
      builder.u32(prefix + key, value);
    builder.f32(prefix + "rope.freq_base", 5000).array("tokenizer.ggml.tokens", kGgufText, 2, ByteVector(16));
    builder.number("some.truth", kGgufBool, uint8_t{1}).array("some.list", kGgufI32, 2, ByteVector(8));
    if (architecture == "llama"sv)
      builder.tensor({"rope_freqs.weight", {8}, kGgufTensorF32, from_float32(DType::kF32, std::vector<float>(8, 1))});
    for (const char* norm : {"output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"})
      builder.tensor({norm, {32}, kGgufTensorF32, ByteVector(128)});
    for (const char* matrix : {"token_embd.weight", "blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight",
                               "blk.0.attn_output.weight", "blk.0.ffn_gate.weight", "blk.0.ffn_down.weight"})
      builder.tensor({matrix, {32, 32}, type, ByteVector(32 * block_bytes)});
    folder.write(architecture, builder.build());
  }
}

// Tokenizers alone: byte-level with each name of a pre-tokenizer, and with scores.
void gguf_tokenizer_seeds(const SeedFolder& folder) {
  for (const GgufTextRules& rules : gguf_text_rules()) {
    GgufBuilder builder;
    builder.text("tokenizer.ggml.model", kGgufByteLevelModel).text("tokenizer.ggml.pre", rules.name);
    builder.texts("tokenizer.ggml.tokens", {"<s>", "T", "h", "e", "Th", "The", "\u0120", "<left>"});
    builder.i32s("tokenizer.ggml.token_type", {3, 1, 1, 1, 1, 1, 1, 4});
    builder.texts("tokenizer.ggml.merges", {"T h", "Th e"}).u32("tokenizer.ggml.bos_token_id", 0);
    folder.write(std::string("pre_") + rules.name, builder.build());
  }
  for (const bool adds_space : {false, true}) {
    GgufBuilder builder;
    builder.text("tokenizer.ggml.model", kGgufSentencePieceModel).u32("tokenizer.ggml.bos_token_id", 1);
    builder.texts("tokenizer.ggml.tokens",
                  {"<unk>", "<s>", "\u2581", "s", "e", "se", "\u2581se", "<0x0A>", "  ", "[PAD]"});
    builder.i32s("tokenizer.ggml.token_type", {2, 3, 1, 1, 1, 1, 1, 6, 4, 5});
    builder.f32s("tokenizer.ggml.scores", {0, 0, -3, -4, -5, -1, -2, 0, 0, 0});
    builder.number("tokenizer.ggml.add_space_prefix", kGgufBool, static_cast<uint8_t>(adds_space));
    folder.write(adds_space ? "space" : "no_space", builder.build());
  }
}

// The storages that fuzz_pickle.cpp puts beside every pickle: "0" of 48 B and "1" of 2 B.
ByteVector state_dict(PickleBuilder& pickle) {
  pickle.op('}').op('(');
  pickle.text("model").ordered_dict().op('(');
  pickle.text("a.weight").tensor("FloatStorage", "0", 12, 0, {3, 4}, {4, 1});
  pickle.text("b.weight").tensor("FloatStorage", "0", 12, 1, {2, 3}, {1, 4});  // a transposed view
  pickle.text("c.gain").tensor("BFloat16Storage", "1", 1, 0, {}, {});
  pickle.op('u');
  pickle.text("config").op('}').op('(').text("num_layers").integer(2).text("rope").ops("G@\x24");
  pickle.little_endian(uint32_t{0}).little_endian(uint16_t{0}).text("ve").op(']').op('(').integer(1).op('e').op('u');
  pickle.text("step").integer(7).text("flags").ops("(\x88\x89Nt");
  return pickle.op('u').stop();
}

// One of every opcode that the pickles above lack.
ByteVector other_opcodes() {
  PickleBuilder pickle(4);
  pickle.op(0x95).little_endian(uint64_t{8}).ops("(J").little_endian(int32_t{-1}).ops("K\x01M\x02\x03]\x94h");
  pickle.op(0).ops("a}q\x07(\x8c\x01kNu\x8c\x01lNs0").op(0x8f).ops("(NN\x90(N\x91N\x85NN\x86NNN\x87");
  pickle.ops(
      "C\x01xU\x01x(N1)\x8c\x0b"
      "collections\x8c\x0bOrderedDict\x93)R}bc_codecs\nencode\n)RN\x85Qt");
  return pickle.stop();
}

void torch_seeds(const SeedFolder& archives, const SeedFolder& pickles) {
  PickleBuilder builder;
  const ByteVector pickle = state_dict(builder);
  pickles.write("state_dict", pickle);
  pickles.write("opcodes", other_opcodes());
  PickleBuilder untyped;
  untyped.op('}').text("w").global("torch._utils", "_rebuild_tensor_v3").op('(').storage("UntypedStorage", "1", 2);
  untyped.integer(0).integers({1}).integers({1}).op(0x89).ordered_dict().global("torch", "float16").ops("tRs");
  pickles.write("untyped", untyped.stop());

  const std::vector<ZipPart> parts = torch_parts(pickle, {{"0", ByteVector(48)}, {"1", ByteVector(2)}});
  archives.write("streamed", build_zip(parts).bytes);
  archives.write("plain", build_zip(parts, {.streamed = false, .zip64_end = false, .comment = "text"}).bytes);
  archives.write("wide", build_zip(parts, {.wide_fields = true}).bytes);
}

void shard_seeds(const SeedFolder& folder) {
  write_shard(folder.path("empty"), {}, kShard16Vocabulary);
  const std::vector<Token> tokens = {0, 1, 1023, 1024, 65535};
  write_shard(folder.path("tokens"), tokens, kShard16Vocabulary);
  write_shard(folder.path("wide"), tokens, kMostTokens);
}

void tokenizer_seeds(const SeedFolder& folder) {
  using namespace testing;
  ModelSpec words;
  words.pieces = {{"<unk>", PieceType::kUnknown},
                  {"<doc>", PieceType::kUserDefined},
                  {"<s>", PieceType::kControl},
                  {"\xE2\x96\x81"},
                  {"\xE2\x96\x81the"},
                  {"x"},
                  {"xx"},
                  {"\xC3\xA9"},
                  {"q", PieceType::kUnused}};
  folder.write("words", as_bytes_of(words.bytes()));
  words.charsmap = TrieParts().charsmap();
  words.denormalizer_charsmap = words.charsmap;
  folder.write("charsmap", as_bytes_of(words.bytes()));
  folder.write("bytes", as_bytes_of(byte_fallback_model({{"\xE2\x96\x81"}, {"x"}}).bytes()));
}

// A tokenizer.json whose tokens are `texts` from 0 on, the last ones `merges`, with these steps; and a text.
void tokenizer_json_seed(const SeedFolder& folder, const std::string& name, const std::vector<std::string>& texts,
                         const std::vector<std::pair<std::string, std::string>>& merges, const char* normalizer,
                         const char* pre_tokenizer, const char* options) {
  Json model = Json::parse(options), list = Json::array(), vocabulary = Json::object();
  for (const std::string& text : texts) vocabulary[text] = vocabulary.size();
  for (const auto& [left, right] : merges) {
    list.push_back({left, right});
    vocabulary[left + right] = vocabulary.size();
  }
  model.update({{"type", "BPE"}, {"vocab", vocabulary}, {"merges", list}});
  const Json added = {{{"id", 0}, {"content", texts[0]}, {"special", true}},
                      {{"id", vocabulary.size()}, {"content", "<word>"}, {"single_word", true}, {"lstrip", true}}};
  const Json json = {{"added_tokens", added},
                     {"normalizer", Json::parse(normalizer)},
                     {"pre_tokenizer", Json::parse(pre_tokenizer)},
                     {"model", model}};
  folder.write(name, as_bytes_of(json.dump() + std::string("\0They'd <word>  12", 17)));
}

void tokenizer_json_seeds(const SeedFolder& folder) {
  const std::vector<std::string> bytes = {"<s>", "\u0120", "t", "h", "e", "1", "\u010a", "\u00c3"};
  const std::vector<std::string> characters = {"<s>", "\u2581", "t", "h", "e", "<unk>", "<0xC3>", "<0xBC>"};
  const std::vector<std::pair<std::string, std::string>> merges = {{"t", "h"}, {"th", "e"}};
  tokenizer_json_seed(folder, "byte_level", bytes, merges, "null", R"({"type":"ByteLevel","add_prefix_space":true})",
                      "{}");
  tokenizer_json_seed(
      folder, "split", bytes, merges, R"({"type":"NFC"})",
      R"({"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated","invert":false,"pattern":{"Regex":
          "(?i:'s|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s+(?!\\S)|\\s+"}},
          {"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})",
      R"({"ignore_merges":true})");
  tokenizer_json_seed(folder, "digits", bytes, merges, R"({"type":"NFKD"})",
                      R"({"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},
                          {"type":"ByteLevel","add_prefix_space":false}]})",
                      "{}");
  tokenizer_json_seed(folder, "prepend", characters, merges,
                      R"({"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"\u2581"},
                          {"type":"Replace","pattern":{"String":" "},"content":"\u2581"}]})",
                      "null", R"({"byte_fallback":true,"fuse_unk":true,"unk_token":"<unk>"})");
  tokenizer_json_seed(folder, "metaspace", characters, merges, "null",
                      R"({"type":"Metaspace","replacement":"\u2581","prepend_scheme":"first","split":true})",
                      R"({"byte_fallback":true,"unk_token":"<unk>"})");
  tokenizer_json_seed(folder, "replace", characters, merges,
                      R"({"type":"Replace","pattern":{"Regex":"\\s+"},"content":"\u2581"})",
                      R"({"type":"Split","behavior":"MergedWithNext","invert":true,"pattern":{"String":"e"}})",
                      R"({"fuse_unk":false,"unk_token":"<unk>"})");
}

QuantizedModel quantized(const GolfConfig& config) {
  QuantizedModel model;
  model.config_json = canonical_json(to_json(config));
  for (const auto& [name, shape] : golf_tensor_shapes(config))
    model.tensors.push_back(shape.size() == 2 ? random_tensor(name, shape[0], shape[1], 15)
                                              : raw_tensor(name, shape, DType::kF16));
  return model;
}

// The first byte is the mode of artifact_input.h; fuzz_decode.cpp has one more, the read that fails.
void artifact_seeds(const SeedFolder& artifacts, const SeedFolder& decoding) {
  const auto write = [&](const std::string& name, Bytes bytes) {
    artifacts.write(name, bytes);
    for (int fails : {0, 3}) {
      ByteVector input = {static_cast<std::byte>(fails)};
      append_bytes(input, bytes);
      decoding.write(name + "_" + std::to_string(fails), input);
    }
  };
  for (const char* codec : {"none", "brotli", "zstd", "xz", "rans", "auto"}) {
    ByteVector input = {std::byte{0}};
    append_bytes(input, encode(sample_model(), encode_options_from(codec)));
    write(std::string("sample_") + codec, input);
  }
  QuantizedModel blocked = sample_model();
  blocked.tensors.push_back(nvfp4_tensor("f.weight", 3, 17));
  for (const char* codec : {"none", "rans"}) {
    ByteVector input = {std::byte{0}};
    append_bytes(input, encode(blocked, encode_options_from(codec)));
    write(std::string("nvfp4_") + codec, input);
  }
  ByteVector golf = {std::byte{0}};
  append_bytes(golf, encode(quantized(seed_config()), encode_options_from("none")));
  write("golf", golf);

  // JSON, a zero byte, then per section: kind, layout, codec, length, contents.
  write("header", as_bytes_of("\1{\"banked\":false,\"config\":{},\"provenance\":{},\"tensors\":[[\"a\",[2,3],15],"
                              "[\"b\",[2],\"F16\"]]}\0\1\0\0\6\1\2\3\4\5\6\2\0\0\4\0<\0<\3\0\0\4\0\0\0\0"sv));
  // Two tensors (rows, columns, max_code, dtype), then per section: layout, codec, contents.
  write("table", as_bytes_of("\2\2\2\2\2\0\2\2\0\0\0\0\1\2\0\1\0\0\0<\0<\0\0\1\2\3\4\5\6\7\x08"sv));
}

// The first byte is the mode of fuzz_weights.cpp and its trellis, then rows (a multiple of 8 with one) and columns.
void weight_seeds(const SeedFolder& folder) {
  for (auto [name, rows, columns, scale] :
       {std::tuple{"small", 3, 5, 1.0}, {"zeros", 40, 30, 0.01}, {"wide", 80, 256, 1.5}, {"escapes", 20, 60, 100.0}}) {
    const SampleCodes sample =
        normal_codes(static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), scale, 0.7, 0.7);
    ByteVector input = {std::byte{0}, static_cast<std::byte>(rows - 1), static_cast<std::byte>(columns - 1)};
    append_bytes(input, encode_weights(sample.codes, sample.rows, sample.columns, 0));
    folder.write(name, input);
  }
  for (auto [name, rows, columns, scale, bits] : {std::tuple{"trellis2", 8, 5, 1.0, 2},
                                                  {"trellis3_two_lanes", 520, 40, 0.6, 3},
                                                  {"trellis8_escapes", 24, 20, 100.0, 8}}) {
    const SampleCodes sample =
        trellis_codes(static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), scale, 0.7, 0.7, bits);
    ByteVector input = {static_cast<std::byte>(4 * (bits - 1)), static_cast<std::byte>(rows / 8 - 1),
                        static_cast<std::byte>(columns - 1)};
    append_bytes(input, encode_weights(sample.codes, sample.rows, sample.columns, bits));
    folder.write(name, input);
  }
  folder.write("codes", as_bytes_of("\2\2\3\0\0\0\0\1\0\0\0\xff\xff\xff\xff\2\0\0\0\0\1\0\0"sv));
  folder.write("narrow_codes", as_bytes_of("\3\2\3\0\1\xff\2\0\0\0\3"sv));
  folder.write("trellis_codes", as_bytes_of("\12\2\3\0\0\0\0\1\0\0\0\xff\xff\xff\xff\2\0\0\0\0\1\0\0"sv));
}

// A GPT-2 of two layers, 8 wide.
Gpt2Config gpt2_seed_config(bool tied) {
  Gpt2Config config = small_gpt2_config();
  config.vocab_size = 11;
  config.num_positions = 5;
  config.num_layers = 2;
  config.model_dim = 8;
  config.num_heads = 2;
  config.mlp_dim = 12;
  config.tie_embeddings = tied;
  return config;
}

void llmc_seeds(const SeedFolder& folder) {
  const Gpt2Config config = llmc_config(gpt2_seed_config(true));
  folder.write("float32", llmc_file(3, config, random_gpt2_tensors(config, 1, DType::kF32), 16));
  folder.write("bfloat16", llmc_file(5, config, random_gpt2_tensors(config, 1, DType::kBF16), 11));
}

void config_seed(const SeedFolder& folder, const std::string& name, const Json& config, const OwnedTensors& tensors) {
  std::string text = canonical_json(config) + '\0';
  for (const auto& [tensor_name, tensor] : tensors) {
    text += tensor_name + " BF16";
    for (int64_t dimension : tensor.shape) text += " " + std::to_string(dimension);
    text += "\n";
  }
  folder.write(name, as_bytes_of(text));
}

void hessian_seeds(const SeedFolder& folder) {
  const ByteVector identity = from_float32(DType::kF32, std::vector<float>{1, 0.5, 0.5, 1});
  const ByteVector one = from_float32(DType::kF64, std::vector<float>{2});
  TensorMap tensors = {{"a.weight", {DType::kF32, {2, 2}, identity}}, {"b.weight", {DType::kF64, {1, 1}, one}}};
  write_safetensors(folder.path("plain"), tensors);
  write_safetensors(folder.path("shared"), tensors,
                    {{"tokens", "64"}, {"sequences", "2"}, {"shared", "{\"c.weight\":\"a.weight\"}"}});
  const ByteVector counts(8, std::byte{1});
  tensors["head_hessian/tok_emb.weight"] = {DType::kF32, {2, 2}, identity};
  tensors["output_fisher/a.weight"] = {DType::kF32, {4}, identity};
  tensors["lookup_fisher/tok_emb.weight"] = {DType::kF64, {1}, one};
  tensors["row_counts/tok_emb.weight"] = {DType::kI64, {1}, counts};
  write_safetensors(folder.path("loss"), tensors);
}

void write_all(const std::filesystem::path& root) {
  safetensors_seeds({root, "fuzz_safetensors"});
  torch_seeds({root, "fuzz_torch_checkpoint"}, {root, "fuzz_pickle"});
  shard_seeds({root, "fuzz_shard"});
  tokenizer_seeds({root, "fuzz_tokenizer"});
  tokenizer_json_seeds({root, "fuzz_tokenizer_json"});
  artifact_seeds({root, "fuzz_artifact"}, {root, "fuzz_decode"});
  weight_seeds({root, "fuzz_weights"});
  SeedFolder configs(root, "fuzz_config");
  auto golf_seed = [&](const std::string& name, const GolfConfig& config, bool banked) {
    const OwnedTensors tensors = random_golf_tensors(config, 1, DType::kBF16);
    config_seed(configs, name, to_json(config), banked ? with_banks(tensors, config.num_layers) : tensors);
  };
  golf_seed("full", seed_config(), false);
  golf_seed("banked", seed_config(), true);
  golf_seed("plain", plain_config(), false);
  for (bool tied : {true, false}) {
    const Gpt2Config config = gpt2_seed_config(tied);
    OwnedTensors tensors = random_gpt2_tensors(config, 1, DType::kBF16);
    for (auto& [name, tensor] : tensors)  // as files have them
      if (is_gpt2_projection(name)) tensor = transposed(tensor.view());
    config_seed(configs, tied ? "gpt2" : "gpt2_untied", to_json(config), tensors);
  }
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "gemma3_text"}) {
    const LlamaConfig config = small_llama_config(type);
    config_seed(configs, type, to_json(config), random_llama_tensors(config, 1, DType::kBF16));
  }
  index_seeds({root, "fuzz_index"});
  gguf_seeds({root, "fuzz_gguf"});
  gguf_tokenizer_seeds({root, "fuzz_gguf"});
  llmc_seeds({root, "fuzz_llmc"});
  hessian_seeds({root, "fuzz_hessians"});
}

}  // namespace
}  // namespace thimble

int main(int argument_count, char** arguments) {
  if (argument_count != 2) {
    std::fprintf(stderr, "usage: fuzz_seeds FOLDER\n");
    return 2;
  }
  thimble::write_all(arguments[1]);
  return 0;
}
