// gguf_tokenizer_test.cpp: tokenizers into GGUF files and out of them. Ids are those of the `tokenizers` library (the
// golden files of tests/eval/text) and of the SentencePiece library; the Python side runs llama.cpp where it is
// installed (tests/python/gguf_tokenizers_test.py).
#include "quantizer/checkpoints/gguf_tokenizer.h"

#include <gmock/gmock.h>

#include <limits>
#include <random>

#include "quantizer/checkpoints/checkpoint_files.h"
#include "quantizer/formats/gguf_tokenizer_json.h"
#include "quantizer/formats/gguf_vocabulary.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/file.h"
#include "tests/eval/tokenizers/tokenizer_builder.h"
#include "tests/quantizer/formats/gguf_file_builder.h"
#include "tests/quantizer/formats/reader_asserts.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/base/temporary_folder.h"
#include "tests/support/test_files.h"

namespace thimble::gguf_tokenizer_test {
namespace {

using testing::byte_fallback_model;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;
using testing::ModelSpec;
using testing::PieceSpec;
using testing::PieceType;

const std::string kGolden = source_file("tests/eval/tokenizers/golden/");
const std::string kMark(kSpaceMark);

Json golden_json(const std::string& name) {
  const MappedFile file(kGolden + name + ".json");
  return parse_json(file.bytes(), file.path());
}

// A byte-pair encoding of the letters of "thesa": pairs in the order of their scores.
ModelSpec letters_model() {
  std::vector<PieceSpec> pieces;
  float score = 0;
  for (const std::string& text : {std::string("th"), std::string("he"), kMark + "th", std::string("the"), kMark + "the",
                                  std::string("se"), std::string("sea"), kMark + "s", kMark + "sea", kMark + kMark})
    pieces.push_back({text, PieceType::kNormal, score -= 1});
  for (const std::string& text :
       {kMark, std::string("t"), std::string("h"), std::string("e"), std::string("s"), std::string("a")})
    pieces.push_back({text, PieceType::kNormal, score -= 1});
  ModelSpec spec = byte_fallback_model(pieces);
  spec.model_type = 2;
  spec.remove_extra_whitespaces = false;
  return spec;
}

class GgufTokenizer : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return folder_.file(name); }

  // The keys of a tokenizer as a GGUF file without tensors.
  std::string written(const std::string& tokenizer, int64_t vocabulary, const Json& config = Json::object()) const {
    GgufKeys keys;
    keys.add("general.architecture", "llama");
    add_gguf_tokenizer(tokenizer, vocabulary, config, keys);
    ByteVector bytes;
    append_bytes(bytes, as_bytes_of("GGUF"));
    append_little_endian(bytes, uint32_t{3});
    append_little_endian(bytes, uint64_t{0});
    append_little_endian(bytes, keys.count());
    append_bytes(bytes, keys.bytes());
    write_file_atomically(file("t.gguf"), bytes);
    return file("t.gguf");
  }
  std::string written(const ModelSpec& spec, int64_t padding = 0) const {
    write_file_atomically(file("tokenizer.model"), as_bytes_of(spec.bytes()));
    return written(file("tokenizer.model"), static_cast<int64_t>(spec.pieces.size()) + padding);
  }
  std::string json_file(const Json& json) const {
    write_file_atomically(file("tokenizer.json"), as_bytes_of(json.dump()));
    return file("tokenizer.json");
  }
  std::string built(const GgufBuilder& builder) const {
    write_file_atomically(file("built.gguf"), builder.build());
    return file("built.gguf");
  }

  TemporaryFolder folder_;
};

TEST_F(GgufTokenizer, ByteLevelOnesComeBackWithTheIdsOfTheReference) {
  const Json golden = golden_json("ids");
  const auto texts = golden.at("texts").get<std::vector<std::string>>();
  for (const auto& [name, pre] :
       {std::pair("byte_level", "gpt-2"), {"digits", "smollm"}, {"split", "llama-bpe"}, {"tekken", "tekken"}}) {
    const std::string path = written(kGolden + name + ".json", 400);
    const MappedFile mapped(path);
    EXPECT_EQ(read_gguf(mapped.bytes(), path).metadata.at("tokenizer.ggml.pre"), pre);
    const Tokenizer tokenizer = load_tokenizer(path), original = Tokenizer::load(kGolden + name + ".json");
    EXPECT_EQ(tokenizer.bos_id(), original.bos_id()) << name;
    EXPECT_EQ(tokenizer.separator_id(), original.separator_id()) << name;
    size_t compared = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
      // A GGUF file does not say what white space an added token takes, and whether it stands alone.
      if (texts[i].find("<word>") != std::string::npos || texts[i].find("<left>") != std::string::npos) continue;
      EXPECT_EQ(tokenizer.encode(texts[i]), golden.at(name)[i].get<std::vector<Token>>()) << name << ": " << texts[i];
      ++compared;
    }
    EXPECT_GT(compared, 12U);
    for (Token token = 0; token < 400; ++token) EXPECT_EQ(tokenizer.kind(token), original.kind(token)) << token;
  }
}

TEST_F(GgufTokenizer, ASentencePieceModelIsWrittenPieceByPiece) {
  ModelSpec spec = letters_model();
  spec.pieces.push_back({kMark + "x" + kMark, PieceType::kUserDefined, 0});
  spec.pieces.push_back({"<old>", PieceType::kUnused, -30});
  const std::string path = written(spec, 2);
  const MappedFile mapped(path);
  const GgufFile gguf = read_gguf(mapped.bytes(), path);
  EXPECT_EQ(gguf.metadata.at("tokenizer.ggml.model"), "llama");
  EXPECT_EQ(gguf.metadata.at("tokenizer.ggml.pre"), "default");
  EXPECT_EQ(gguf.metadata.at("tokenizer.ggml.bos_token_id"), 1);
  EXPECT_EQ(gguf.metadata.at("tokenizer.ggml.eos_token_id"), 2);
  EXPECT_EQ(gguf.metadata.at("tokenizer.ggml.unknown_token_id"), 0);
  EXPECT_EQ(gguf.metadata.at("tokenizer.ggml.add_bos_token"), true);
  EXPECT_EQ(gguf.metadata.at("tokenizer.ggml.add_space_prefix"), true);
  ByteCursor tokens(gguf.arrays.at("tokenizer.ggml.tokens").elements, path);
  ByteCursor types(gguf.arrays.at("tokenizer.ggml.token_type").elements, path);
  ByteCursor scores(gguf.arrays.at("tokenizer.ggml.scores").elements, path);
  for (const PieceSpec& piece : spec.pieces) {
    const std::string_view text = tokens.take_text(tokens.read<uint64_t>("length"), "text");
    // What stands in a text is spelled as there.
    EXPECT_EQ(text, piece.type == PieceType::kUserDefined ? " x " : piece.text);
    EXPECT_EQ(types.read<int32_t>("type"), static_cast<int32_t>(piece.type));
    EXPECT_EQ(std::bit_cast<float>(scores.read<uint32_t>("score")), piece.score);
  }
  const auto first_padding = static_cast<int64_t>(spec.pieces.size());
  EXPECT_EQ(tokens.take_text(tokens.read<uint64_t>("length"), "text"), "[PAD" + std::to_string(first_padding) + "]");
  EXPECT_EQ(types.read<int32_t>("type"), 5);
  EXPECT_EQ(load_tokenizer(path).kind(static_cast<Token>(first_padding)), PieceKind::kBoundary);
}

TEST_F(GgufTokenizer, SentencePieceOnesComeBackWithTheIdsOfTheLibrary) {
  for (const bool adds_space : {true, false}) {
    ModelSpec spec = letters_model();
    spec.add_dummy_prefix = adds_space;
    const Tokenizer tokenizer = load_tokenizer(written(spec)), original = spec.tokenizer();
    EXPECT_EQ(tokenizer.vocab_size(), original.vocab_size());
    EXPECT_EQ(tokenizer.bos_id(), original.bos_id());
    for (const char* text :
         {"the sea", " the  sea", "thethe sea", "seathe ", "he sat, Küste 海 😀", "t\n\nh", "", "   "}) {
      EXPECT_EQ(tokenizer.encode(text), original.encode(text)) << text;
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
    }
    for (Token token = 0; token < tokenizer.vocab_size(); ++token) {
      EXPECT_EQ(tokenizer.kind(token), original.kind(token)) << token;
      EXPECT_EQ(tokenizer.text_of(token), original.text_of(token)) << token;
      EXPECT_EQ(tokenizer.begins_with_dropped_space(token), adds_space && original.begins_with_dropped_space(token));
    }
  }
}

// What an exported folder holds: files that need nothing of the GGUF file.
TEST_F(GgufTokenizer, BecomesTheFilesOfAFolder) {
  auto tokenizer_in = [&](const std::map<std::string, std::string>& files) {
    EXPECT_THAT(files, ElementsAre(Key("tokenizer.json"), Key("tokenizer_config.json")));
    return Tokenizer::load(json_file(parse_json(as_bytes_of(files.at("tokenizer.json")), "tokenizer.json")));
  };
  const Json golden = golden_json("ids");
  const auto texts = golden.at("texts").get<std::vector<std::string>>();
  const std::string byte_level =
      written(kGolden + "byte_level.json", 400, {{"eos_token_id", 1U}, {"pad_token_id", 2U}});
  const std::map<std::string, std::string> files = gguf_tokenizer_files(byte_level);
  const Tokenizer original = load_tokenizer(byte_level), found = tokenizer_in(files);
  for (const std::string& text : texts) EXPECT_EQ(found.encode(text), original.encode(text)) << text;
  for (Token token = 0; token < 400; ++token) EXPECT_EQ(found.kind(token), original.kind(token)) << token;
  const Json json = parse_json(as_bytes_of(files.at("tokenizer.json")), "tokenizer.json");
  for (const Json& added : json.at("added_tokens"))
    EXPECT_EQ(json.at("model").at("vocab").at(added.at("content").get<std::string>()), added.at("id"));
  const Json config = parse_json(as_bytes_of(files.at("tokenizer_config.json")), "tokenizer_config.json");
  EXPECT_EQ(config.at("eos_token"), "<s>");
  EXPECT_EQ(config.at("pad_token"), "</s>");

  const std::string marks = written(letters_model());
  const Tokenizer letters = load_tokenizer(marks), again = tokenizer_in(gguf_tokenizer_files(marks));
  for (const char* text : {"the sea", " the  sea", "thethe sea", "he sat, Küste 海"}) {
    EXPECT_EQ(again.encode(text), letters.encode(text)) << text;
    EXPECT_EQ(again.decode(again.encode(text)), text);
  }
  EXPECT_TRUE(gguf_tokenizer_files(built(GgufBuilder())).empty());
  EXPECT_TRUE(gguf_tokenizer_files(json_file(json)).empty());
}

// The same encoding as a tokenizer.json: merges in the order of scores.
TEST_F(GgufTokenizer, MergesOfATokenizerJsonBecomeScores) {
  const ModelSpec spec = letters_model();
  const std::string from_model = written(spec);
  const MappedFile mapped(from_model);
  Json json = gguf_tokenizer_json(read_gguf(mapped.bytes(), from_model), from_model);
  const Json merges = json.at("model").at("merges");
  EXPECT_EQ(merges[0], (Json{"t", "h"}));
  const std::string path = written(json_file(json), static_cast<int64_t>(spec.pieces.size()));
  const Tokenizer tokenizer = load_tokenizer(path), original = spec.tokenizer();
  for (const char* text : {"the sea", " the  sea", "thethe sea", "he sat, Küste 海"})
    EXPECT_EQ(tokenizer.encode(text), original.encode(text)) << text;

  auto expect_refused = [&](const Json& changed, const std::string& part) {
    expect_error<UsageError>([&] { written(json_file(changed), 400); }, {"tokenizer.json: --to gguf: ", part});
  };
  Json changed = json;
  changed["model"]["merges"].erase(0);  // of 't' and 'h', which make 'th'
  expect_refused(changed, "llama.cpp merges 't' and 'h', which this tokenizer does not");
  changed = json;
  for (Json& merge : changed["model"]["merges"])
    if (merge == Json{"t", "he"}) std::swap(merge, changed["model"]["merges"][0]);  // 'th', 'e' makes 'the' too
  expect_refused(changed, "the merges that make 'the' lie apart");
  changed = json;
  changed["normalizer"]["normalizers"].push_back({{"type", "NFC"}});
  expect_refused(changed, "llama.cpp only makes marks of spaces");
  changed = json;
  changed["pre_tokenizer"] = {{"type", "Digits"}, {"individual_digits", true}};
  expect_refused(changed, "llama.cpp only makes marks of spaces");
  changed = json;
  changed["model"]["byte_fallback"] = false;
  expect_refused(changed, "a token for each of the 256 bytes");
  changed = json;
  changed["model"]["ignore_merges"] = true;
  expect_refused(changed, "llama.cpp does not ignore merges");
  // Merges of a tokenizer that was trained as such: each token is made of one pair only.
  expect_error<UsageError>([&] { written(kGolden + "marks.json", 500); }, {"--to gguf: ", "llama.cpp"});
}

TEST_F(GgufTokenizer, SentencePieceModelsThatLlamaCppRunsOtherwiseAreRefused) {
  auto expect_refused = [&](const ModelSpec& spec, const std::string& part) {
    expect_error<UsageError>([&] { written(spec); }, {"tokenizer.model: --to gguf: ", part});
  };
  ModelSpec spec = letters_model();
  spec.model_type = 1;
  expect_refused(spec, "this one is of type 'unigram'");
  spec.model_type.reset();
  expect_refused(spec, "this one is of type 'unigram'");
  spec = letters_model();
  spec.remove_extra_whitespaces = true;
  expect_refused(spec, "removes spaces");
  spec = letters_model();
  spec.charsmap = testing::TrieParts().charsmap();
  expect_refused(spec, "replaces characters");
  spec = letters_model();
  spec.pieces[10].type = PieceType::kNormal;
  spec.byte_fallback = false;
  expect_refused(spec, "a token for each of the 256 bytes");
  spec = letters_model();
  spec.pieces.push_back({std::string(300, 'a'), PieceType::kNormal, -30});
  expect_refused(spec, "has 300 B, at most 256 are written");
}

TEST_F(GgufTokenizer, TokenizerConfigSaysWhetherATextBeginsWithBos) {
  write_file_atomically(file("tokenizer_config.json"), as_bytes_of(R"({"add_bos_token":false,"add_eos_token":true})"));
  const std::string path = written(letters_model());
  const MappedFile mapped(path);
  const Json metadata = read_gguf(mapped.bytes(), path).metadata;
  EXPECT_EQ(metadata.at("tokenizer.ggml.add_bos_token"), false);
  EXPECT_EQ(metadata.at("tokenizer.ggml.add_eos_token"), true);
  EXPECT_FALSE(load_tokenizer(path).bos_id());
}

// Without the program's writer: tokens <unk>, <s>, a b ab (a byte) and an added one.
GgufBuilder small_file(const std::string& model = "llama") {
  GgufBuilder builder;
  builder.text("tokenizer.ggml.model", model);
  return builder;
}
const std::vector<std::string> kTexts = {"<unk>", "<s>", "a", "b", "ab", "<0x0A>", "  ", "[PAD7]"};
const std::vector<int32_t> kTypes = {2, 3, 1, 1, 1, 6, 4, 5};
const std::vector<float> kScores = {0, 0, -3, -3, -1, 0, 0, 0};

TEST_F(GgufTokenizer, TypesSayWhatTokensStandFor) {
  GgufBuilder builder = small_file();
  builder.texts("tokenizer.ggml.tokens", kTexts).i32s("tokenizer.ggml.token_type", kTypes);
  builder.f32s("tokenizer.ggml.scores", kScores).u32("tokenizer.ggml.bos_token_id", 1);
  const Tokenizer tokenizer = load_tokenizer(built(builder));
  EXPECT_EQ(tokenizer.bos_id(), 1);
  EXPECT_EQ(tokenizer.kind(0), PieceKind::kBoundary);
  EXPECT_EQ(tokenizer.kind(1), PieceKind::kBoundary);
  EXPECT_EQ(tokenizer.kind(5), PieceKind::kByte);
  EXPECT_EQ(tokenizer.kind(7), PieceKind::kBoundary);
  EXPECT_EQ(tokenizer.text_of(5), "\n");
  EXPECT_EQ(tokenizer.text_of(6), "  ");
  // The mark in front is unknown here, as is 'x'; unknown ones in a row are one.
  EXPECT_THAT(tokenizer.encode("abba\n"), ElementsAre(0, 4, 3, 2, 5));
  EXPECT_THAT(tokenizer.encode("ab  bxx"), ElementsAre(0, 4, 6, 0, 3, 0));
  builder.number("tokenizer.ggml.add_bos_token", kGgufBool, uint8_t{0});
  EXPECT_FALSE(load_tokenizer(built(builder)).bos_id());
}

TEST_F(GgufTokenizer, WhatIsNotKnownIsNamedWithTheWayOut) {
  const std::string none = built(GgufBuilder().text("general.architecture", "llama"));
  EXPECT_FALSE(holds_gguf_tokenizer(none));
  EXPECT_EQ(find_checkpoint_files(none).tokenizer_path(), "");
  EXPECT_EQ(tokenizer_of_models(std::vector{none}, false), "");
  expect_error<UsageError>([&] { tokenizer_of_models(std::vector{none}, true); },
                           {"--tokenizer is required: '", "built.gguf' holds no tokenizer"});
  expect_format_error("holds no tokenizer: give the model's with --tokenizer FILE", [&] { load_tokenizer(none); });
  const std::string other = built(small_file("t5"));
  expect_error<UsageError>([&] { tokenizer_of_models(std::vector{other}, true); },
                           {"key 'tokenizer.ggml.model' is 't5', known are 'gpt2' and 'llama'"});
  GgufBuilder builder = small_file("gpt2");
  const std::string cut = built(builder.text("tokenizer.ggml.pre", "falcon"));
  expect_error<UsageError>([&] { tokenizer_of_models(std::vector{cut}, true); },
                           {"key 'tokenizer.ggml.pre' is 'falcon', known are 'gpt-2', 'smollm', 'llama-bpe'"});
  expect_format_error("known are 'gpt-2', 'smollm'", [&] { load_tokenizer(cut); });
  const std::string known = built(small_file());
  EXPECT_EQ(tokenizer_of_models(std::vector{known}, true), known);
}

TEST_F(GgufTokenizer, ContradictionsAreRefusedByTheirKey) {
  struct Case {
    std::string part;
    std::function<void(GgufBuilder&)> add;
  };
  auto tokens = [](GgufBuilder& b) { b.texts("tokenizer.ggml.tokens", kTexts); };
  auto with_types = [&](std::vector<int32_t> types) {
    return [=](GgufBuilder& b) { tokens(b), b.i32s("tokenizer.ggml.token_type", types); };
  };
  auto with_scores = [&](std::vector<float> scores) {
    return [=](GgufBuilder& b) { tokens(b), b.f32s("tokenizer.ggml.scores", scores); };
  };
  auto with_texts = [&](std::vector<std::string> texts) {
    return [=](GgufBuilder& b) {
      b.texts("tokenizer.ggml.tokens", texts).f32s("tokenizer.ggml.scores", std::vector<float>(texts.size()));
    };
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::string many;  // all of its parts are tokens
  std::vector<std::string> nested;
  for (int i = 0; i < 200; ++i) nested.push_back(many += 'a');
  const std::vector<Case> cases = {
      {"key 'tokenizer.ggml.tokens' is missing or no array", [](GgufBuilder&) {}},
      {"key 'tokenizer.ggml.tokens' is missing", [](GgufBuilder& b) { b.text("tokenizer.ggml.tokens", "a"); }},
      {"key 'tokenizer.ggml.tokens' has elements of type 5, must be 8",
       [](GgufBuilder& b) { b.i32s("tokenizer.ggml.tokens", {1}); }},
      {"key 'tokenizer.ggml.tokens' has 0 texts", with_texts({})},
      {"key 'tokenizer.ggml.tokens': tokens 0 and 2 are both 'a'", with_texts({"a", "b", "a"})},
      {"key 'tokenizer.ggml.tokens': text 1 is not UTF-8", with_texts({"a", "\xff"})},
      {"token 0 has 300 B, at most 256 are read", with_texts({std::string(300, 'a')})},
      {"more than 16 pairs of tokens make a token for each of 200", with_texts(nested)},
      {"key 'tokenizer.ggml.token_type' has 2 elements, there are 8 tokens", with_types({1, 1})},
      {"token 3 is of type 7, known are 1 to 6", with_types({1, 1, 1, 7, 1, 1, 1, 1})},
      {"token 0 is of type -1, known are 1 to 6", with_types({-1, 1, 1, 1, 1, 1, 1, 1})},
      {"key 'tokenizer.ggml.scores' is missing", tokens},
      {"key 'tokenizer.ggml.scores' has 1 elements, there are 8 tokens", with_scores({1})},
      {"the score of token 1 is not finite", with_scores({0, nan, 0, 0, 0, 0, 0, 0})},
      {"key 'tokenizer.ggml.bos_token_id' is 8, allowed are 0 to 7",
       [&](GgufBuilder& b) { with_scores(kScores)(b), b.u32("tokenizer.ggml.bos_token_id", 8); }},
      {"key 'tokenizer.ggml.add_bos_token' is 1, must be a truth value",
       [&](GgufBuilder& b) { with_scores(kScores)(b), b.u32("tokenizer.ggml.add_bos_token", 1); }}};
  for (const Case& one : cases) {
    GgufBuilder builder = small_file();
    one.add(builder);
    expect_format_error(one.part, [&] { load_tokenizer(built(builder)); });
  }
  GgufBuilder merges = small_file("gpt2");
  merges.text("tokenizer.ggml.pre", "smollm").texts("tokenizer.ggml.tokens", {"a", "b"});
  expect_format_error("key 'tokenizer.ggml.merges' is missing", [&] { load_tokenizer(built(merges)); });
  merges.texts("tokenizer.ggml.merges", {"a b"});
  expect_format_error("merges 0", [&] { load_tokenizer(built(merges)); });
}

// 400 files with bytes changed, cut or repeated: each holds a tokenizer that works, or is a FormatError with its path.
TEST_F(GgufTokenizer, DamagedOnesWorkOrAreRefused) {
  GgufBuilder builder = small_file();
  builder.texts("tokenizer.ggml.tokens", kTexts).i32s("tokenizer.ggml.token_type", kTypes);
  builder.f32s("tokenizer.ggml.scores", kScores).u32("tokenizer.ggml.bos_token_id", 1);
  const ByteVector whole = builder.build();
  std::mt19937 random(9);
  size_t refused = 0;
  for (int seed = 0; seed < 400; ++seed) {
    ByteVector bytes = whole;
    const auto changes = 1 + random() % 3;
    for (size_t i = 0; i < changes; ++i) bytes[random() % bytes.size()] = static_cast<std::byte>(random() % 256);
    if (seed % 4 == 1) bytes.resize(random() % bytes.size());
    write_file_atomically(file("damaged.gguf"), bytes);
    try {
      const Tokenizer tokenizer = load_tokenizer(file("damaged.gguf"));
      for (const Token token : tokenizer.encode("ab  ba\n")) ASSERT_LT(token, tokenizer.vocab_size());
    } catch (const FormatError& error) {
      ++refused;
      EXPECT_THAT(error.what(), HasSubstr("damaged.gguf")) << seed;
    }
  }
  EXPECT_GT(refused, 200U);
  EXPECT_LT(refused, 400U);
}

}  // namespace
}  // namespace thimble::gguf_tokenizer_test
