// text_windows.cpp: see text_windows.h.
#include "eval/text/text_windows.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <iterator>
#include <optional>
#include <vector>

#include "eval/text/text_tokens.h"
#include "eval/text/token_shard.h"
#include "eval/tokenizers/utf8.h"
#include "runtime/base/count_text.h"
#include "runtime/base/file.h"
#include "runtime/base/parallel.h"
#include "runtime/base/random.h"

namespace thimble {
namespace {

constexpr uint64_t kHeldOutShare = 16;

// Streams of uniform_at() under the seed of the run, apart from those that the model writes text with.
constexpr uint64_t kPlaceStream = 0x77696e646f777301, kOrderStream = 0x77696e646f777302;

// Of the text, in tokens or bytes.
struct TextPart {
  uint64_t begin = 0, end = 0;
  uint64_t size() const { return end - begin; }
};

// Where windows number `first` to `first` + `count` begin: each somewhere in its stretch of the part, in random order.
std::vector<uint64_t> window_places(const TextPart& part, int64_t first, int64_t count, uint64_t seed) {
  std::vector<uint64_t> places(static_cast<size_t>(count));
  for (size_t i = 0; i < places.size(); ++i) {
    const double place = (static_cast<double>(i) + uniform_at(seed, kPlaceStream, static_cast<uint64_t>(first) + i)) /
                         static_cast<double>(count);
    places[i] = part.begin + std::min(static_cast<uint64_t>(place * static_cast<double>(part.size())), part.size() - 1);
  }
  for (size_t i = places.size(); i > 1; --i)  // Fisher and Yates
    std::swap(places[i - 1],
              places[static_cast<size_t>(uniform_at(seed, kOrderStream, static_cast<uint64_t>(first) + i) *
                                         static_cast<double>(i))]);
  return places;
}

// What windows are drawn from; both the whole text where nothing is held out.
struct Split {
  TextPart part, held_out;
};

Split split_at(uint64_t all, uint64_t boundary) {
  if (boundary == 0 || boundary >= all) return {{0, all}, {0, all}};
  return {{0, boundary}, {boundary, all}};
}

// How much of the end to hold out, `least` being one window; 0 for nothing.
uint64_t held_out_size(const WindowOptions& options, uint64_t all, uint64_t least) {
  if (options.held_out == 0) return 0;
  const uint64_t size = std::max(all / kHeldOutShare, least);
  return size > all / 2 ? 0 : size;
}

// `take` gives the tokens of one window that begins at that place of the part; from several threads.
TokenSequences draw(const Split& split, const WindowOptions& options,
                    const std::function<std::vector<Token>(const TextPart& part, uint64_t place)>& take) {
  const int64_t last = std::min(options.held_out, options.count), first = options.count - last;
  std::vector<uint64_t> places = window_places(split.part, 0, first, options.seed);
  std::ranges::copy(window_places(split.held_out, first, last, options.seed), std::back_inserter(places));
  TokenSequences windows{options.count, options.length,
                         std::vector<Token>(static_cast<size_t>(options.count * options.length))};
  std::vector<std::exception_ptr> errors(places.size());
  parallel_for(options.count, [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    try {
      const std::vector<Token> tokens = take(i < first ? split.part : split.held_out, places[at]);
      std::ranges::copy(tokens, windows.tokens.begin() + i * options.length);
    } catch (...) {
      errors[at] = std::current_exception();
    }
  });
  for (const std::exception_ptr& error : errors)  // the first, whichever thread was quicker
    if (error) std::rethrow_exception(error);
  return windows;
}

[[noreturn]] void refuse_short_text(std::span<const std::string> files, uint64_t tokens, int64_t length) {
  const std::string others = files.size() > 1 ? " in " + counted(files.size(), "file") + " together" : "";
  throw FormatError(files.front(), counted(tokens, "token") + others +
                                       ", allowed is at least the calibration length, " + std::to_string(length));
}

// All shards' tokens, one after another.
class ShardStream {
 public:
  ShardStream(std::span<const std::string> files, int64_t vocab_size) {
    for (const std::string& name : files) {
      const MappedFile& file = files_.emplace_back(name);
      ends_.push_back(size() + shards_.emplace_back(file.bytes(), name, vocab_size).count());
    }
  }

  uint64_t size() const { return ends_.empty() ? 0 : ends_.back(); }

  // Appends `count` tokens from `place` on; after the part's end comes its beginning.
  void take(const TextPart& part, uint64_t place, uint64_t count, std::vector<Token>& tokens) const {
    while (count > 0) {
      const auto shard = static_cast<size_t>(std::ranges::upper_bound(ends_, place) - ends_.begin());
      const uint64_t begin = shard == 0 ? 0 : ends_[shard - 1];
      const uint64_t here = std::min(count, std::min(ends_[shard], part.end) - place);
      tokens.resize(tokens.size() + here);
      shards_[shard].read(place - begin, std::span(tokens).last(here));
      count -= here;
      place = place + here == part.end ? part.begin : place + here;
    }
  }

 private:
  std::vector<MappedFile> files_;
  std::vector<TokenShard> shards_;
  std::vector<uint64_t> ends_;  // of each shard, among all tokens
};

// A part of a file that begins a document, or goes on with one.
struct Passage {
  const MappedFile* file = nullptr;
  std::string_view text;
  bool begins_document = true;
  uint64_t begin = 0;  // its first byte's place among all

  uint64_t end() const { return begin + text.size(); }
};

// The nearest place from `at` on where a character begins.
size_t character_at(std::string_view text, size_t at) {
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
  return at;
}

// And where a word does, if there is a space near.
size_t word_at(std::string_view text, size_t at) {
  constexpr size_t kNear = 64;
  const size_t space = text.substr(at, kNear).find_first_of(" \n\t");
  return space == std::string_view::npos ? character_at(text, at) : at + space + 1;
}

// The documents of all files, one after another. A place is a byte of theirs.
class TextStream {
 public:
  TextStream(std::span<const std::string> files, const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    for (const std::string& name : files) files_.emplace_back(name);
    for (const MappedFile& file : files_)
      for (std::string_view document : split_documents(as_text(file.bytes())))
        passages_.push_back({&file, document, true, size()});
  }

  uint64_t size() const { return passages_.empty() ? 0 : passages_.back().end(); }

  // A place near `size` bytes before the end where a document begins or, where one is that long, a word.
  uint64_t boundary_before_end(uint64_t size_held_out) {
    if (size_held_out == 0) return size();
    const uint64_t place = size() - size_held_out;
    const auto passage = passages_.begin() + static_cast<ptrdiff_t>(passage_at(place));
    if (place - passage->begin <= size_held_out && passage->begin > 0) return passage->begin;
    const size_t at = word_at(passage->text, static_cast<size_t>(place - passage->begin));
    if (at == passage->text.size()) return passage->end();
    const Passage rest = {passage->file, passage->text.substr(at), false, passage->begin + at};
    passage->text = passage->text.substr(0, at);
    passages_.insert(passage + 1, rest);
    return rest.begin;
  }

  // Appends up to `count` tokens from `place` on; after the part's end comes its beginning. How many there were: fewer
  // when the whole part has none at all, or where it `stops` at the end.
  uint64_t take(const TextPart& part, uint64_t place, uint64_t count, std::vector<Token>& tokens,
                bool stops = false) const {
    const size_t first = tokens.size();
    size_t passage = passage_at(place), at = static_cast<size_t>(place - passages_[passage].begin);
    if (at > 0) at = word_at(passages_[passage].text, at);
    std::optional<size_t> at_begin;  // how many tokens there were when the part was begun
    for (; tokens.size() - first < count; at = 0) {
      append(passages_[passage], at, first + count, tokens);
      if (++passage < passages_.size() && passages_[passage].begin < part.end) continue;
      if (stops || at_begin == tokens.size()) break;
      passage = passage_at(part.begin);
      at_begin = tokens.size();
    }
    return tokens.size() - first;
  }

 private:
  size_t passage_at(uint64_t place) const {
    return static_cast<size_t>(std::ranges::upper_bound(passages_, place, {}, &Passage::end) - passages_.begin());
  }

  // Tokens of a passage from byte `at` on, until there are `wanted` in all.
  void append(const Passage& passage, size_t at, size_t wanted, std::vector<Token>& tokens) const {
    // More bytes than most tokens have, and more tokens than the text's end, where it is cut off, can change.
    constexpr size_t kBytesPerToken = 8, kEndTokens = 16;
    if (at == 0 && passage.begins_document)
      if (const auto start = tokenizer_.document_start()) tokens.push_back(*start);
    const std::string_view rest = passage.text.substr(at);
    const size_t needed = wanted - tokens.size();
    if (needed == 0) return;
    for (size_t bytes = kBytesPerToken * (needed + kEndTokens);; bytes *= 2) {
      const std::string_view piece = bytes < rest.size() ? rest.substr(0, character_at(rest, bytes)) : rest;
      if (const auto invalid = first_invalid_utf8(piece)) refuse_invalid_utf8(*passage.file, piece, *invalid);
      std::vector<Token> part = tokenizer_.encode(piece);
      if (piece.size() < rest.size() && part.size() < needed + kEndTokens) continue;
      tokens.insert(tokens.end(), part.begin(), part.begin() + static_cast<ptrdiff_t>(std::min(part.size(), needed)));
      return;
    }
  }

  [[noreturn]] static void refuse_invalid_utf8(const MappedFile& file, std::string_view piece, uint64_t at) {
    const auto before = static_cast<uint64_t>(piece.data() - as_text(file.bytes()).data());
    throw FormatError(file.path(), not_utf8_text(before + at));
  }

  const Tokenizer& tokenizer_;
  std::vector<MappedFile> files_;
  std::vector<Passage> passages_;  // none empty
};

}  // namespace

TokenSequences draw_shard_windows(std::span<const std::string> files, const WindowOptions& options,
                                  int64_t vocab_size) {
  const ShardStream stream(files, vocab_size);
  const auto length = static_cast<uint64_t>(options.length);
  if (stream.size() < length) refuse_short_text(files, stream.size(), options.length);
  const Split split = split_at(stream.size(), stream.size() - held_out_size(options, stream.size(), length));
  return draw(split, options, [&](const TextPart& part, uint64_t place) {
    std::vector<Token> tokens;
    stream.take(part, place, length, tokens);
    return tokens;
  });
}

TokenSequences draw_text_windows(std::span<const std::string> files, const Tokenizer& tokenizer,
                                 const WindowOptions& options) {
  constexpr uint64_t kBytesPerToken = 8;  // more than most have: so much is a window
  TextStream stream(files, tokenizer);
  const auto length = static_cast<uint64_t>(options.length);
  std::vector<Token> beginning;
  const uint64_t least = stream.size() == 0 ? 0 : stream.take({0, stream.size()}, 0, length, beginning, /*stops=*/true);
  if (least < length) refuse_short_text(files, least, options.length);
  const Split split = split_at(
      stream.size(), stream.boundary_before_end(held_out_size(options, stream.size(), kBytesPerToken * length)));
  return draw(split, options, [&](const TextPart& part, uint64_t place) {
    std::vector<Token> tokens;
    if (stream.take(part, place, length, tokens) < length) refuse_short_text(files, 0, options.length);
    return tokens;
  });
}

}  // namespace thimble
