// sentencepiece_bpe_test.cpp: models of byte-pair encoding read without the library, against the library.
#include "eval/tokenizers/sentencepiece_bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "eval/tokenizers/sentencepiece_model.h"
#include "runtime/base/file.h"
#include "tests/eval/tokenizers/tokenizer_builder.h"
#include "tests/support/test_files.h"

namespace thimble::sentencepiece_bpe_test {
namespace {

using namespace thimble::testing;
using ::testing::HasSubstr;

constexpr const char* kTexts[] = {
    "",
    " ",
    "   \t \n ",
    "The sea was calm, and the boats lay still.",
    "  two  spaces   and a tab\tand\nlines\r\n\r\n",
    "trailing space ",
    "\xE2\x96\x81marks \xE2\x96\x81 of\xE2\x96\x81spaces",
    "The ﬁrst ½ of Ⅷ ｆｕｌｌ ㎏ ﷺ",
    "Zürich, Łódź, Ελλάδα, Россия, 東京, 서울, हिन्दी, العربية, עברית, ไทย",
    "e\xCC\x81 a\xCC\x8A n\xCC\x83 \xE1\x84\x80\xE1\x85\xA1",
    "👩‍👩‍👧‍👦 🏳️‍🌈 😀😀",
    "a\xC2\xA0"
    "b\xE3\x80\x80"
    "c\xE2\x80\x8B"
    "d\xEF\xBB\xBF",
    "if (x < 10) { return a[i] + \"text\"; }",
    "1234567890 3.14159 -1e-10",
    "<s> </s> <unk> <0x41> <pad>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "\xFF\xFE bad \xC3 \xE2\x82 bytes \xED\xA0\x80 \xF4\x90\x80\x80 \xC0\xAF",
};

// Texts of characters of all lengths, of pieces of the model, and of any bytes.
std::string random_text(std::mt19937& random, const TokenizerModel& model) {
  auto below = [&](uint32_t count) { return static_cast<uint32_t>(random() % count); };
  std::string text;
  const uint32_t kind = below(4), parts = 1 + below(40);
  for (uint32_t i = 0; i < parts; ++i) {
    if (kind == 0) {
      text += static_cast<char>(below(256));
    } else if (kind == 1) {
      text += static_cast<char>(below(4) == 0 ? ' ' : ' ' + below(95));
    } else if (kind == 2 && below(2) == 0) {
      text += model.text_of(static_cast<Token>(below(static_cast<uint32_t>(model.vocab_size()))));
    } else {
      const uint32_t ranges[] = {0x80, 0x800, 0x3000, 0xA000, 0xFB00, 0x1F600};
      const uint32_t point = ranges[below(6)] + below(0x200);
      if (point < 0x800) {
        text += {static_cast<char>(0xC0 | point >> 6), static_cast<char>(0x80 | (point & 0x3F))};
      } else if (point < 0x10000) {
        text += {static_cast<char>(0xE0 | point >> 12), static_cast<char>(0x80 | (point >> 6 & 0x3F)),
                 static_cast<char>(0x80 | (point & 0x3F))};
      } else {
        text += {static_cast<char>(0xF0 | point >> 18), static_cast<char>(0x80 | (point >> 12 & 0x3F)),
                 static_cast<char>(0x80 | (point >> 6 & 0x3F)), static_cast<char>(0x80 | (point & 0x3F))};
      }
    }
  }
  return text;
}

// The library's reader and ours, for the same bytes.
struct Both {
  explicit Both(const std::string& file)
      : library(read_sentencepiece_model(as_bytes_of(file), "sp.model")), own(as_bytes_of(file), "sp.model") {}

  void expect_equal_text(const std::string& text) const {
    const std::vector<Token> tokens = library->encode(text);
    ASSERT_EQ(own.encode(text), tokens) << text;
    ASSERT_EQ(own.decode(tokens), library->decode(tokens)) << text;
  }

  void expect_equal(uint32_t seed, int texts) const {
    ASSERT_EQ(own.vocab_size(), library->vocab_size());
    EXPECT_EQ(own.bos_id(), library->bos_id());
    for (Token token = 0; token < own.vocab_size(); ++token) {
      ASSERT_EQ(own.piece(token), library->piece(token));
      ASSERT_EQ(own.kind(token), library->kind(token));
      ASSERT_EQ(own.text_of(token), library->text_of(token));
      ASSERT_EQ(own.begins_with_dropped_space(token), library->begins_with_dropped_space(token));
    }
    for (const char* text : kTexts) expect_equal_text(text);
    std::mt19937 random(seed);
    for (int i = 0; i < texts && !::testing::Test::HasFatalFailure(); ++i) {
      expect_equal_text(random_text(random, own));
      std::vector<Token> tokens;
      for (int count = 0; count < 20; ++count)
        tokens.push_back(static_cast<Token>(random() % static_cast<uint64_t>(own.vocab_size())));
      ASSERT_EQ(own.decode(tokens), library->decode(tokens));
    }
  }

  std::unique_ptr<TokenizerModel> library;
  SentencePieceBpe own;
};

std::string file_text(const std::string& path) { return read_text_file(path, uint64_t{1} << 24); }

constexpr uint64_t kBpe = 2;

ModelSpec bpe_spec() {
  ModelSpec spec = byte_fallback_model({{"▁", PieceType::kNormal, -9},
                                        {"a", PieceType::kNormal, -9},
                                        {"b", PieceType::kNormal, -9},
                                        {"c", PieceType::kNormal, -9},
                                        {"ab", PieceType::kNormal, -1},
                                        {"bc", PieceType::kNormal, -1},
                                        {"abc", PieceType::kNormal, -3},
                                        {"▁a", PieceType::kNormal, -2},
                                        {"aa", PieceType::kUnused, -1},
                                        {"aab", PieceType::kNormal, -4},
                                        {"xy", PieceType::kNormal, -1},
                                        {"<b>", PieceType::kUserDefined},
                                        {"<b>a", PieceType::kUserDefined},
                                        {"b c", PieceType::kUserDefined}});
  spec.model_type = kBpe;
  return spec;
}

TEST(SentencePieceBpe, TinyModelIsTheLibrarys) {
  Both(file_text(source_file("examples/tiny/tokenizer.model"))).expect_equal(1, 4000);
}

TEST(SentencePieceBpe, ModelTrainedByTheLibraryIsTheLibrarys) {
  const std::string path = shared_data("text/sp1024.model");
  if (!file_exists(path)) GTEST_SKIP() << path << " is not there";
  Both(file_text(path)).expect_equal(2, 1000);
}

TEST(SentencePieceBpe, LongTextIsTheLibrarys) {
  const Both both(file_text(source_file("examples/tiny/tokenizer.model")));
  both.expect_equal_text(file_text(source_file("examples/tiny/text.txt")));
}

TEST(SentencePieceBpe, SettingsAreTheLibrarys) {
  const char* texts[] = {"abcabc aab xyxy", " a  b c <b>a<b>", "aaab aa", "axa", "x y<b>a b", "  <b>  "};
  for (int settings = 0; settings < 16; ++settings) {
    ModelSpec spec = bpe_spec();
    spec.add_dummy_prefix = (settings & 1) != 0;
    spec.remove_extra_whitespaces = (settings & 2) != 0;
    if (settings & 4) {
      spec.byte_fallback = false;
      std::erase_if(spec.pieces, [](const PieceSpec& piece) { return piece.type == PieceType::kByte; });
    }
    if (settings & 8) spec.charsmap = TrieParts().charsmap();
    const Both both(spec.bytes());
    for (const char* text : texts) both.expect_equal_text(text);
    both.expect_equal(static_cast<uint32_t>(settings), 300);
  }
}

TEST(SentencePieceBpe, TextComesInWholeCharacters) {
  const SentencePieceBpe model(as_bytes_of(bpe_spec().bytes()), "sp.model");
  SentencePieceBpe::Text text(model);
  auto byte = [](int value) { return kFirstByteToken + value; };
  EXPECT_EQ(text.add(kFirstTextToken + 7), "a");  // "▁a"
  EXPECT_EQ(text.add(kFirstTextToken + 7), " a");
  EXPECT_EQ(text.add(byte(0xE2)), "");
  EXPECT_EQ(text.add(byte(0x82)), "");
  EXPECT_EQ(text.add(byte(0xAC)), "€");
  EXPECT_EQ(text.add(byte(0xE2)), "");
  EXPECT_EQ(text.add(kFirstTextToken + 1),
            "\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(text.add(byte(0xFF)), "");
  EXPECT_EQ(text.end(), "\xEF\xBF\xBD");
  EXPECT_EQ(text.end(), "");
}

std::string failure_of(const std::string& file) {
  try {
    SentencePieceBpe model(as_bytes_of(file), "bad.model");
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("bad.model"));
    return error.what();
  }
  return "accepted";
}

TEST(SentencePieceBpe, UnusableModelsAreRefused) {
  EXPECT_EQ(failure_of(bpe_spec().bytes()), "accepted");
  ModelSpec spec = bpe_spec();
  spec.model_type = 1;
  EXPECT_THAT(failure_of(spec.bytes()), HasSubstr("'unigram'"));
  spec = bpe_spec();
  spec.denormalizer_charsmap = TrieParts().charsmap();
  EXPECT_THAT(failure_of(spec.bytes()), HasSubstr("decodes"));
  spec = bpe_spec();
  spec.pieces.push_back({"ab"});
  EXPECT_THAT(failure_of(spec.bytes()), HasSubstr("'ab' twice"));
  spec = bpe_spec();
  spec.pieces[0].type = PieceType::kControl;
  EXPECT_THAT(failure_of(spec.bytes()), HasSubstr("no unknown piece"));
  spec = bpe_spec();
  spec.pieces[1].type = PieceType::kUnknown;
  EXPECT_THAT(failure_of(spec.bytes()), HasSubstr("two unknown pieces"));
  spec = bpe_spec();
  spec.pieces[kFirstByteToken].type = PieceType::kControl;
  EXPECT_THAT(failure_of(spec.bytes()), HasSubstr("255 byte pieces"));
  spec.pieces[kFirstByteToken] = {"<0xGG>", PieceType::kByte};
  EXPECT_THAT(failure_of(spec.bytes()), HasSubstr("names no byte"));
  spec = bpe_spec();
  spec.byte_fallback = false;
  EXPECT_THAT(failure_of(spec.bytes()), HasSubstr("spells nothing in bytes"));
  EXPECT_THAT(failure_of(""), HasSubstr("no pieces"));
}

TEST(SentencePieceBpe, DamagedModelsAreRefusedOrRead) {
  const std::string whole = bpe_spec().bytes();
  std::mt19937 random(3);
  for (int i = 0; i < 3000; ++i) {
    std::string file = whole.substr(0, i % 2 == 0 ? whole.size() : random() % whole.size());
    for (uint32_t flips = 1 + static_cast<uint32_t>(random() % 4); flips > 0 && !file.empty(); --flips)
      file[random() % file.size()] = static_cast<char>(random());
    try {
      const SentencePieceBpe model(as_bytes_of(file), "bad.model");
      for (const char* text : kTexts) model.decode(model.encode(text));
    } catch (const FormatError&) {
    }
  }
}

}  // namespace
}  // namespace thimble::sentencepiece_bpe_test
