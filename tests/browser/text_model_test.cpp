// text_model_test.cpp: the model of the page continues texts as the program does, token for token and byte for byte,
// for every family and every way that tensors are stored; whatever is wrong is a status with a text.
#include "examples/browser/module/text_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>

#include "eval/text/text_tokens.h"
#include "packer/artifact.h"
#include "quantizer/formats/safetensors.h"
#include "runtime/base/file.h"
#include "runtime/cpu/cpu_models.h"
#include "runtime/cpu/gemm.h"
#include "runtime/families/model_weights.h"
#include "tests/runtime/families/golf/random_quantized_model.h"
#include "tests/runtime/families/gpt2/random_gpt2.h"
#include "tests/runtime/families/llama/random_llama.h"
#include "tests/support/test_files.h"

namespace thimble::text_model_test {
namespace {

using ::testing::HasSubstr;

const std::string kTiny = source_file("examples/tiny/");
constexpr int64_t kTinyVocabulary = 1024;

// The portable kernels, which the page's module has; chosen before the first product.
class PortableKernels : public ::testing::Environment {
 public:
  void SetUp() override {
    setenv("THIMBLE_ISA", "portable", /*overwrite=*/1);
    ASSERT_EQ(cpu_instruction_set(), "portable");
  }
};
const auto* const kPortableKernels = ::testing::AddGlobalTestEnvironment(new PortableKernels);

std::string tiny_tokenizer() { return read_text_file(kTiny + "tokenizer.model", uint64_t{1} << 24); }

// values (rows, columns) as multiples of steps of the rows, `most` at most.
SteppedCodes stepped_codes(std::span<const float> values, int64_t rows, int32_t most) {
  SteppedCodes coded;
  const size_t columns = values.size() / static_cast<size_t>(rows);
  std::vector<int32_t> codes;
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    const std::span<const float> row = values.subspan(r * columns, columns);
    float largest = 0x1p-10f;
    for (float value : row) largest = std::max(largest, std::abs(value));
    const double step = kStepsPerOctave * std::log2(double{largest} / (2 * most));
    coded.row_steps.push_back(static_cast<int16_t>(std::ceil(step)));
    for (float value : row)
      codes.push_back(static_cast<int32_t>(std::lround(value / (2 * step_size(coded.row_steps.back())))));
  }
  coded.codes.append(codes);
  coded.column_steps.assign(columns, 0);
  return coded;
}

// Staged, with the code of 0 alone for what rounds to -0.
Nvfp4Codes nvfp4_codes(std::span<const float> values, int64_t rows) {
  Nvfp4Codes coded = stage_nvfp4(Matrix(values, rows, std::ssize(values) / rows));
  for (uint8_t& pair : coded.codes) {
    if ((pair & 0x0f) == 0x08) pair &= 0xf0;
    if ((pair & 0xf0) == 0x80) pair &= 0x0f;
  }
  return coded;
}

// Tensors take turns in how they are stored.
QuantizedModel stored_in_turns(const std::string& config, const TensorMap& tensors) {
  QuantizedModel model;
  model.config_json = config;
  size_t turn = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::vector<float> values = to_float32(tensor);
    QuantizedTensor stored{name, tensor.shape, RawTensor{DType::kF16, from_float32(DType::kF16, values)}};
    const bool is_matrix = tensor.shape.size() == 2;
    const int64_t rows = is_matrix ? tensor.shape[0] : 0;
    switch (is_matrix ? turn++ % 8 : 8) {
      case 0: stored.data = rounded_codes(values, rows, 127); break;
      case 1: stored.data = stepped_codes(values, rows, 40); break;
      case 2: stored.data = stepped_codes(values, rows, 3000); break;
      case 3: stored.data = stepped_codes(values, rows, 60000); break;
      case 4: stored.data = nvfp4_codes(values, rows); break;
      case 5: stored.data = RawTensor{DType::kF32, from_float32(DType::kF32, values)}; break;
      case 6: stored.data = RawTensor{DType::kBF16, from_float32(DType::kBF16, values)}; break;
      default: break;
    }
    model.tensors.push_back(std::move(stored));
  }
  return model;
}

// As for a page: Brotli, which is asked for otherwise, takes seconds for the bundled model.
ByteVector encode(const QuantizedModel& model) {
  SectionCache cache;
  SilentProgress progress;
  return encode_artifact(model, {.codec = CodecId::kRans, .portable = true}, cache, progress);
}

ByteVector tiny_artifact() {
  const MappedFile file(kTiny + "model.safetensors");
  const std::string config = read_text_file(kTiny + "config.json", 4096);
  const Json parsed = parse_json(as_bytes_of(config), "config.json");
  const MappedTensors mapped =
      find_family(parsed, {})
          ->from_file(read_safetensors(file.bytes(), file.path()).tensors, Contents::kBytes, file.path());
  return encode(stored_in_turns(canonical_json(parsed), mapped.tensors));
}

struct Continued {
  std::vector<Token> tokens;
  std::string text;
  bool operator==(const Continued&) const = default;
};

struct Asked {
  std::string prompt;
  double temperature = 0;
  uint64_t seed = 0;
  uint32_t length = 200;
};

// By the page's model. The first error is kept, and nothing is done after it.
class Model {
 public:
  Model(Bytes file, const std::string& tokenizer) {
    note(thimble_open_memory(file.data(), file.size(), "test.thmb", &artifact_, &error_));
    if (ok()) note(thimble_text_create(artifact_, tokenizer.data(), tokenizer.size(), &model_, &error_));
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  ~Model() {
    thimble_text_close(model_);
    thimble_close(artifact_);
  }

  // As a page does it while the file comes in.
  Model& load_levels() {
    for (size_t i = 0; ok() && i < thimble_tensor_count(artifact_); ++i) {
      int32_t taken = 0;
      thimble_tensor tensor{};
      note(thimble_text_load_levels(model_, i, &taken, &error_));
      if (ok()) note(thimble_tensor_at(artifact_, i, &tensor, &error_));
      if (taken) {
        EXPECT_TRUE(tensor.has_levels);
        ++levels_taken_;
      }
    }
    return *this;
  }
  size_t levels_taken() const { return levels_taken_; }

  // From the last one to the first: the order does not matter.
  Model& load() {
    if (!ok()) return *this;
    for (size_t i = thimble_tensor_count(artifact_); ok() && i-- > 0;) {
      EXPECT_EQ(thimble_text_missing(model_), i + 1);
      note(thimble_text_load(model_, i, &error_));
      if (ok()) note(thimble_text_load(model_, i, &error_));  // nothing is done
    }
    if (!ok()) return *this;
    EXPECT_EQ(thimble_text_missing(model_), 0u);
    thimble_close(artifact_);
    artifact_ = nullptr;
    return *this;
  }

  Continued continued(const Asked& asked) {
    Continued all;
    begin(asked);
    while (ok()) {
      thimble_text_step_result result{};
      note(thimble_text_step(model_, &result, &error_));
      if (!ok()) break;
      all.text.append(result.text, result.text_bytes);
      if (result.is_end) break;
      all.tokens.push_back(result.token);
    }
    return all;
  }
  void begin(const Asked& asked) {
    if (ok())
      note(thimble_text_begin(model_, asked.prompt.data(), asked.prompt.size(), asked.seed, asked.temperature,
                              asked.length, &error_));
  }

  std::vector<Token> encoded(const std::string& text) {
    std::vector<Token> tokens(4 * text.size() + 4);
    size_t count = 0;
    note(thimble_text_encode(model_, text.data(), text.size(), tokens.data(), tokens.size(), &count, &error_));
    tokens.resize(count);
    return tokens;
  }

  bool ok() const { return status_ == THIMBLE_OK; }
  thimble_status status() const { return status_; }
  std::string text() const { return error_.text; }
  thimble_text_model* get() { return model_; }

 private:
  void note(thimble_status status) {
    status_ = status;
    EXPECT_EQ(error_.text[0] == '\0', status == THIMBLE_OK) << error_.text;
  }

  thimble_artifact* artifact_ = nullptr;
  thimble_text_model* model_ = nullptr;
  size_t levels_taken_ = 0;
  thimble_status status_ = THIMBLE_OK;
  thimble_error error_{};
};

// By the program, as `thimble generate` does it.
Continued expected(Bytes file, const std::string& tokenizer_file, const Asked& asked) {
  const Tokenizer tokenizer(as_bytes_of(tokenizer_file), "tokenizer.model");
  const RunnableModel model = dequantize_model(decode_artifact(file, "test.thmb"), "test.thmb");
  std::vector<Token> tokens = {document_start_token(tokenizer)};
  for (Token token : tokenizer.encode(asked.prompt)) tokens.push_back(token);
  std::vector<Token> text(tokens.begin() + 1, tokens.end());
  const std::string before = tokenizer.decode(text);
  const auto context = static_cast<int64_t>(tokens.size()) + asked.length;
  Continued all;
  make_cpu_generator(model.weights, Numerics::kFp32, context)
      ->text(tokens, {asked.length, asked.temperature, asked.seed}, [&](Token token) {
        if (tokenizer.kind(token) == PieceKind::kBoundary) return false;
        text.push_back(token);
        all.tokens.push_back(token);
        return true;
      });
  const std::string whole = tokenizer.decode(text);
  EXPECT_TRUE(whole.starts_with(before));
  all.text = whole.substr(before.size());
  return all;
}

void expect_equal_texts(Bytes file, const std::vector<Asked>& all, bool levels_first = false) {
  const std::string tokenizer = tiny_tokenizer();
  Model model(file, tokenizer);
  if (levels_first) {
    model.load_levels();
    EXPECT_GT(model.levels_taken(), 0u);
  }
  model.load();
  ASSERT_TRUE(model.ok()) << model.text();
  for (const Asked& asked : all) {
    const Continued found = model.continued(asked);
    ASSERT_TRUE(model.ok()) << model.text();
    EXPECT_EQ(found, expected(file, tokenizer, asked)) << asked.prompt << ", seed " << asked.seed;
  }
}

TEST(TextModel, TinyModelWritesWhatTheProgramWrites) {
  expect_equal_texts(tiny_artifact(), {{"The sea", 0, 0},
                                       {"The sea", 0.8, 1},
                                       {"", 1.2, 2},
                                       {"Zürich 東京 😀", 2, 3, 250},
                                       {"once upon a time", 100, uint64_t{1} << 63}});
}

TEST(TextModel, EveryFamilyWritesWhatTheProgramWrites) {
  const std::vector<Asked> asked = {{"a b", 0, 0, 30}, {"a b", 1, 5, 30}};
  GolfConfig golf = small_golf_config();
  golf.vocab_size = kTinyVocabulary;
  expect_equal_texts(encode(random_quantized_model(golf)), asked);
  Gpt2Config gpt2 = small_gpt2_config();
  gpt2.vocab_size = kTinyVocabulary;
  expect_equal_texts(encode(stored_in_turns(canonical_json(to_json(gpt2)), views_of(random_gpt2_tensors(gpt2)))),
                     asked);
  for (const char* name : {"llama", "mistral", "qwen2", "qwen3", "gemma3_text"}) {
    LlamaConfig llama = small_llama_config(name);
    llama.vocab_size = kTinyVocabulary;
    expect_equal_texts(encode(stored_in_turns(canonical_json(to_json(llama)), views_of(random_llama_tensors(llama)))),
                       asked);
  }
}

TEST(TextModel, LevelsMayComeBeforeTheirScales) {
  expect_equal_texts(tiny_artifact(), {{"The sea", 0.8, 1, 40}}, /*levels_first=*/true);
  LlamaConfig llama = small_llama_config("llama");
  llama.vocab_size = kTinyVocabulary;
  expect_equal_texts(encode(stored_in_turns(canonical_json(to_json(llama)), views_of(random_llama_tensors(llama)))),
                     {{"a b", 1, 5, 30}}, /*levels_first=*/true);
}

TEST(TextModel, SaysWhatItIs) {
  const ByteVector file = tiny_artifact();
  Model model(file, tiny_tokenizer());
  ASSERT_TRUE(model.ok()) << model.text();
  EXPECT_EQ(thimble_text_vocabulary(model.get()), kTinyVocabulary);
  EXPECT_EQ(thimble_text_most_tokens(model.get()), 0u);
  const Tokenizer tokenizer = Tokenizer::load(kTiny + "tokenizer.model");
  for (const std::string text : {"", "The sea", "Zürich 東京 😀 <s>"})
    EXPECT_EQ(model.encoded(text), tokenizer.encode(text));
  size_t count = 0;
  thimble_error error;
  EXPECT_EQ(thimble_text_encode(model.get(), "The sea", 7, nullptr, 0, &count, &error), THIMBLE_USAGE);
  EXPECT_EQ(count, tokenizer.encode("The sea").size());
}

TEST(TextModel, CallsInTheWrongOrderAreErrors) {
  const ByteVector file = tiny_artifact();
  const std::string tokenizer = tiny_tokenizer();
  Model model(file, tokenizer);
  model.begin({"a"});
  EXPECT_EQ(model.status(), THIMBLE_USAGE);
  EXPECT_THAT(model.text(), HasSubstr("before all tensors are loaded"));
  Model unloaded(file, tokenizer);
  unloaded.load();
  thimble_error error;
  thimble_text_step_result result;
  EXPECT_EQ(thimble_text_step(unloaded.get(), &result, &error), THIMBLE_USAGE);
  for (double temperature : {-1.0, 101.0, std::nan("")})
    EXPECT_EQ(thimble_text_begin(unloaded.get(), "a", 1, 0, temperature, 10, &error), THIMBLE_USAGE);
  EXPECT_EQ(thimble_text_begin(unloaded.get(), "a", 1, 0, 1, 0, &error), THIMBLE_USAGE);
  EXPECT_EQ(thimble_text_begin(unloaded.get(), "a", 1, 0, 1, 1, nullptr), THIMBLE_OK);
  EXPECT_EQ(thimble_text_step(unloaded.get(), &result, nullptr), THIMBLE_OK);
  EXPECT_FALSE(result.is_end);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(thimble_text_step(unloaded.get(), &result, nullptr), THIMBLE_OK);
    EXPECT_TRUE(result.is_end);
    EXPECT_EQ(result.token, -1);
  }
  EXPECT_EQ(thimble_text_load(unloaded.get(), 0, &error), THIMBLE_OK);
  thimble_text_close(nullptr);
}

TEST(TextModel, AContextThatIsTooLongIsRefused) {
  Gpt2Config gpt2 = small_gpt2_config();
  gpt2.vocab_size = kTinyVocabulary;
  const ByteVector file = encode(stored_in_turns(canonical_json(to_json(gpt2)), views_of(random_gpt2_tensors(gpt2))));
  Model model(file, tiny_tokenizer());
  model.load();
  EXPECT_EQ(thimble_text_most_tokens(model.get()), static_cast<uint64_t>(gpt2.num_positions));
  model.begin({"a", 0, 0, 1000});
  EXPECT_EQ(model.status(), THIMBLE_USAGE);
  EXPECT_THAT(model.text(), HasSubstr("at most 40"));
}

TEST(TextModel, DamagedTokenizersAreRefused) {
  const ByteVector file = tiny_artifact();
  const std::string whole = tiny_tokenizer();
  for (const std::string& tokenizer : {std::string(), whole.substr(0, whole.size() / 2), "\xFF\xFF" + whole}) {
    const Model model(file, tokenizer);
    EXPECT_EQ(model.status(), THIMBLE_BAD_INPUT);
    EXPECT_THAT(model.text(), HasSubstr("tokenizer"));
  }
}

TEST(TextModel, TokenizersOfOtherModelsAreRefused) {
  GolfConfig golf = small_golf_config();
  golf.vocab_size = kTinyVocabulary + 1;
  const Model model(encode(random_quantized_model(golf)), tiny_tokenizer());
  EXPECT_EQ(model.status(), THIMBLE_BAD_INPUT);
  EXPECT_THAT(model.text(), AllOf(HasSubstr("1024"), HasSubstr("1025")));
}

TEST(TextModel, ConfigsThatDescribeNothingAreRefused) {
  GolfConfig golf = small_golf_config();
  golf.vocab_size = kTinyVocabulary;
  const QuantizedModel whole = random_quantized_model(golf);
  QuantizedModel other = whole;
  other.config_json = R"({"architecture":"bert"})";
  EXPECT_THAT(Model(encode(other), tiny_tokenizer()).text(), HasSubstr("\"bert\" cannot be run"));
  other.config_json = "{}";
  EXPECT_THAT(Model(encode(other), tiny_tokenizer()).text(), HasSubstr("cannot be run"));
  other = whole;
  other.tensors.pop_back();
  const Model model(encode(other), tiny_tokenizer());
  EXPECT_EQ(model.status(), THIMBLE_BAD_INPUT);
}

// Every fault of an artifact is found when it is opened, or when the tensor that it lies in is loaded; faults of
// sections' checksums are.
TEST(TextModel, DamagedArtifactsAreRefused) {
  const ByteVector whole = tiny_artifact();
  const std::string tokenizer = tiny_tokenizer();
  std::mt19937 random(7);
  for (int i = 0; i < 30; ++i) {
    ByteVector file = whole;
    file[64 + random() % (file.size() - 64)] ^= std::byte{1};
    Model model(file, tokenizer);
    model.load();
    EXPECT_EQ(model.status(), THIMBLE_BAD_INPUT);
  }
  Model cut(Bytes(whole).first(whole.size() / 2), tokenizer);
  EXPECT_EQ(cut.status(), THIMBLE_BAD_INPUT);
}

}  // namespace
}  // namespace thimble::text_model_test
