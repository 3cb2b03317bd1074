// tokenizer_test.cpp: SentencePiece models, good, damaged and hostile.
#include "eval/tokenizers/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "eval/tokenizers/tokenizer_check.h"
#include "runtime/base/file.h"
#include "tests/eval/tokenizers/tokenizer_builder.h"
#include "tests/support/test_files.h"

namespace thimble::tokenizer_test {
namespace {

using namespace thimble::testing;
using ::testing::HasSubstr;

std::string failure_of(const std::string& model) {
  try {
    Tokenizer tokenizer(as_bytes_of(model), "bad.model");
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("bad.model"));
    return error.what();
  }
  return "accepted";
}
std::string failure_of(const ModelSpec& spec) { return failure_of(spec.bytes()); }

ModelSpec small_model() {
  ModelSpec spec;
  spec.pieces = {
      {"<unk>", PieceType::kUnknown}, {"<s>", PieceType::kControl}, {"▁"}, {"a"}, {"▁a", PieceType::kNormal, 0}};
  return spec;
}

TEST(Tokenizer, EncodesAndDecodes) {
  Tokenizer tokenizer = byte_fallback_model({{"▁"}, {"the"}, {"▁the", PieceType::kNormal, 0}}).tokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), kFirstTextToken + 3);
  const std::string text = "the the é\n😀";
  std::vector<Token> tokens = tokenizer.encode(text);
  EXPECT_EQ(tokens[0], kFirstTextToken + 2);
  EXPECT_EQ(tokenizer.decode(tokens), text);
  EXPECT_TRUE(tokenizer.encode("").empty());
  EXPECT_EQ(tokenizer.decode({}), "");
}

TEST(Tokenizer, CanBeReplaced) {
  Tokenizer tokenizer = small_model().tokenizer();
  tokenizer = byte_fallback_model({{"the"}}).tokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), kFirstTextToken + 1);
}

TEST(Tokenizer, KnowsTheKindsOfPieces) {
  Tokenizer tokenizer =
      byte_fallback_model({{"a"}, {"old", PieceType::kUnused}, {"<x>", PieceType::kUserDefined}}).tokenizer();
  EXPECT_EQ(tokenizer.kind(0), PieceKind::kBoundary);
  EXPECT_EQ(tokenizer.kind(kBosToken), PieceKind::kBoundary);
  EXPECT_EQ(tokenizer.kind(kFirstByteToken + 255), PieceKind::kByte);
  EXPECT_EQ(tokenizer.kind(kFirstTextToken), PieceKind::kText);
  EXPECT_EQ(tokenizer.kind(kFirstTextToken + 1), PieceKind::kBoundary);
  EXPECT_EQ(tokenizer.kind(kFirstTextToken + 2), PieceKind::kText);
  EXPECT_EQ(tokenizer.piece(kFirstTextToken + 2), "<x>");
  EXPECT_EQ(tokenizer.bos_id(), kBosToken);
}

TEST(Tokenizer, AnotherVocabularySizeIsRefusedNamingBoth) {
  Tokenizer tokenizer = small_model().tokenizer();
  EXPECT_NO_THROW(check_vocab_size(tokenizer, 5, "model.thmb"));
  try {
    check_vocab_size(tokenizer, 1024, "model.thmb");
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("small.model"), HasSubstr("5 pieces"), HasSubstr("model.thmb"), HasSubstr("1024")));
  }
}

TEST(Tokenizer, MissingFilesAreIoErrors) { EXPECT_THROW(Tokenizer::load("/nonexistent/sp.model"), IoError); }

TEST(Tokenizer, EveryTruncationIsRefusedOrALesserModel) {
  const std::string whole = small_model().bytes();
  int refused = 0;
  for (size_t length = 0; length < whole.size(); ++length) {
    // A cut between two fields leaves a well-formed model, with fewer pieces or default settings.
    try {
      Tokenizer tokenizer(as_bytes_of(whole.substr(0, length)), "cut.model");
      EXPECT_LE(tokenizer.vocab_size(), 5);
    } catch (const FormatError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, static_cast<int>(whole.size()) - 10);
}

TEST(Tokenizer, NotAModel) {
  EXPECT_THAT(failure_of(""), HasSubstr("is empty, not a SentencePiece model"));
  EXPECT_THAT(failure_of(std::string(100, '\xFF')), HasSubstr("varint"));
  EXPECT_THAT(failure_of("\x0B"), HasSubstr("wire type 3"));
  EXPECT_THAT(failure_of(std::string("\x0A\xFF\xFF\xFF\xFF\x0F", 6)), HasSubstr("truncated"));
  EXPECT_THAT(failure_of(std::string(kMaxTokenizerBytes + 1, '\0')), HasSubstr("at most"));
}

TEST(Tokenizer, BadPiecesAreNamed) {
  ModelSpec spec = small_model();
  spec.pieces[3].text = "";
  EXPECT_THAT(failure_of(spec), HasSubstr("piece 3 has no text"));
  spec.pieces[3].text = std::string("a\0b", 3);
  EXPECT_THAT(failure_of(spec), HasSubstr("piece 3 holds a NUL"));
  spec.pieces[3].text = "a\xC3";
  EXPECT_THAT(failure_of(spec), HasSubstr("piece 3 is not UTF-8 at its byte 1"));
  spec.pieces[3].text = std::string(kMaxPieceBytes + 1, 'a');
  EXPECT_THAT(failure_of(spec), HasSubstr("piece 3 has 4097 B"));
  spec.pieces[3] = {"a", PieceType::kNormal, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_THAT(failure_of(spec), HasSubstr("piece 3 has a score"));
  spec.pieces[3] = {"▁"};
  EXPECT_THAT(failure_of(spec), HasSubstr("already defined"));  // said by the library
}

TEST(Tokenizer, TooManyPieces) {
  ModelSpec spec = small_model();
  while (spec.pieces.size() <= kMaxPieces) spec.pieces.push_back({"p" + std::to_string(spec.pieces.size())});
  EXPECT_THAT(failure_of(spec), HasSubstr("more than 65536 pieces"));
  spec.pieces.pop_back();
  EXPECT_EQ(failure_of(spec), "accepted");
}

TEST(Tokenizer, SettingsUnderWhichBytesCannotBeCountedAreRefused) {
  ModelSpec spec = small_model();
  spec.whitespace_as_suffix = true;
  EXPECT_THAT(failure_of(spec), HasSubstr("treat_whitespace_as_suffix"));
  spec.whitespace_as_suffix = false;
  spec.escape_whitespaces = false;
  EXPECT_THAT(failure_of(spec), HasSubstr("escape_whitespaces"));
}

TEST(Tokenizer, NestedSymbolsAreBounded) {
  ModelSpec spec = small_model();
  std::string symbol;
  for (int i = 0; i < kMaxNestedSymbols; ++i) {
    symbol += 'x';
    spec.pieces.push_back({symbol, PieceType::kUserDefined});
  }
  EXPECT_EQ(spec.tokenizer().encode(symbol).size(), 2U);  // the mark, then the longest symbol
  spec.pieces.push_back({symbol + 'x', PieceType::kUserDefined});
  EXPECT_THAT(failure_of(spec), HasSubstr("prefixes of one another"));
}

TEST(Tokenizer, NestedSymbolsCannotHideBehindTheirType) {
  constexpr uint64_t kUserDefined = 4;
  auto nested = [](const std::vector<uint64_t>& types) {
    std::string model = small_model().bytes(), symbol;
    for (int i = 0; i <= kMaxNestedSymbols; ++i) {
      symbol += 'x';
      ProtoWriter piece;
      piece.text(1, symbol).fixed32(2, -1);
      for (uint64_t type : types) piece.varint(3, type);
      model += ProtoWriter().text(1, piece.bytes()).bytes();
    }
    return model;
  };
  EXPECT_EQ(failure_of(nested({1})), "accepted");
  EXPECT_THAT(failure_of(nested({kUserDefined, 99})), HasSubstr("prefixes of one another"));
  EXPECT_THAT(failure_of(nested({kUserDefined | uint64_t{1} << 32})), HasSubstr("prefixes of one another"));
}

TEST(Charsmap, AGoodMapIsAppliedByTheLibrary) {
  ModelSpec spec = small_model();
  spec.pieces.push_back({"y"});
  spec.charsmap = TrieParts().charsmap();
  Tokenizer tokenizer = spec.tokenizer();
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("axa")), "ayya");
}

TEST(Charsmap, OffsetsThatLeaveTheTrieAreRefused) {
  TrieParts parts;
  parts.units[0] = trie_unit(0, 512);
  EXPECT_THROW(check_charsmap(as_bytes_of(parts.charsmap()), "bad"), FormatError);
  parts = TrieParts();
  parts.units[256 ^ 'x'] = trie_unit('x', 4096);
  EXPECT_THROW(check_charsmap(as_bytes_of(parts.charsmap()), "bad"), FormatError);
  parts = TrieParts();
  parts.units.resize(511);  // a byte of 0xFF would be looked up behind the end
  EXPECT_THROW(check_charsmap(as_bytes_of(parts.charsmap()), "bad"), FormatError);
}

TEST(Charsmap, ReplacementsMustLieInsideAndEnd) {
  TrieParts parts;
  parts.units[1] = trie_leaf(3);
  EXPECT_THROW(check_charsmap(as_bytes_of(parts.charsmap()), "bad"), FormatError);
  parts = TrieParts();
  parts.replacements = "yy";
  EXPECT_THROW(check_charsmap(as_bytes_of(parts.charsmap()), "bad"), FormatError);
  parts.replacements = std::string(kMaxReplacementBytes, 'y') + '\0';
  EXPECT_THROW(check_charsmap(as_bytes_of(parts.charsmap()), "bad"), FormatError);
  parts.replacements = std::string(kMaxReplacementBytes - 1, 'y') + '\0';
  EXPECT_NO_THROW(check_charsmap(as_bytes_of(parts.charsmap()), "good"));
}

TEST(Charsmap, LoopsAreRefused) {
  TrieParts parts;
  parts.units[256 ^ 'x'] = trie_unit('x', 'x', true);  // its children are found at base 256 again
  parts.units[256] = trie_leaf(0);
  EXPECT_THROW(check_charsmap(as_bytes_of(parts.charsmap()), "bad"), FormatError);
}

// One block of units per character of "xxx...": every prefix is a rule.
std::string nested_charsmap(int rules) {
  TrieParts parts;
  parts.units.assign((rules + 2) * 256, 0xFFU | 1U << 31);
  parts.units[0] = trie_unit(0, 256);
  for (int i = 0; i < rules; ++i) {
    uint32_t position = static_cast<uint32_t>(256 * (i + 1)) ^ 'x', next_base = static_cast<uint32_t>(256 * (i + 2));
    if (i + 1 == rules) next_base = 1;
    parts.units[position] = trie_unit('x', position ^ next_base, true);
    parts.units[next_base] = trie_leaf(0);
  }
  return parts.charsmap();
}

TEST(Charsmap, NestedRulesAreBounded) {
  EXPECT_NO_THROW(check_charsmap(as_bytes_of(nested_charsmap(kMaxNestedRules)), "good"));
  EXPECT_THROW(check_charsmap(as_bytes_of(nested_charsmap(kMaxNestedRules + 1)), "bad"), FormatError);
}

TEST(Charsmap, SizesMustAgree) {
  EXPECT_THROW(check_charsmap(as_bytes_of("abc"), "bad"), FormatError);
  EXPECT_THROW(check_charsmap(as_bytes_of(std::string(4, '\0')), "bad"), FormatError);
  EXPECT_THROW(check_charsmap(as_bytes_of(std::string("\x06\0\0\0abcdefgh", 12)), "bad"), FormatError);
  EXPECT_THROW(check_charsmap(as_bytes_of(std::string("\xFF\xFF\xFF\xFF"
                                                      "abcdefgh",
                                                      12)),
                              "bad"),
               FormatError);
}

TEST(Charsmap, BothNormalisersOfAModelAreChecked) {
  TrieParts parts;
  parts.units[1] = trie_leaf(1000);
  ModelSpec spec = small_model();
  spec.charsmap = parts.charsmap();
  EXPECT_THAT(failure_of(spec), HasSubstr("replacement byte 1000"));
  spec.charsmap.clear();
  spec.denormalizer_charsmap = parts.charsmap();
  EXPECT_THAT(failure_of(spec), HasSubstr("replacement byte 1000"));
}

TEST(TokenizerData, AModelTrainedByTheLibraryIsAccepted) {
  const std::string file = shared_data("text/sp1024.model");
  if (!file_exists(file)) GTEST_SKIP() << file << " is not there";
  Tokenizer tokenizer = Tokenizer::load(file);
  EXPECT_EQ(tokenizer.vocab_size(), 1024);
  EXPECT_EQ(tokenizer.bos_id(), 1);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("The ﬁrst ½")), "The first 1⁄2");  // its map is NFKC
}

}  // namespace
}  // namespace thimble::tokenizer_test
