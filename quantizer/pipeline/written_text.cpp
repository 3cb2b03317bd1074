// written_text.cpp: see written_text.h.
#include "quantizer/pipeline/written_text.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "eval/text/chat_form.h"
#include "eval/text/script.h"
#include "eval/text/special_tokens.h"
#include "eval/text/text_tokens.h"
#include "eval/tokenizers/tokenizer.h"
#include "quantizer/checkpoints/chat_template.h"
#include "quantizer/checkpoints/checkpoint_files.h"
#include "quantizer/formats/gguf_tokenizer_json.h"
#include "runtime/base/random.h"

namespace thimble {
namespace {

// Tokens of a turn, at least and at most.
struct TurnLength {
  int64_t least, most;
};
constexpr TurnLength kUserTurn{16, 96}, kAssistantTurn{64, 320};
// Streams of random numbers that no sequence draws its tokens from.
constexpr uint64_t kTurnStreams = uint64_t{1} << 62, kOpeningStreams = uint64_t{1} << 61;

// Of texts, those that open in a script drawn for them; and of these, those in Latin beyond ASCII, which stands for
// more languages than any other. Measured: docs/measurements/2026-11-23-h200.md.
constexpr double kScriptShare = 0.75, kLatinBeyondAsciiShare = 0.4;

// The tokens that texts open with. Left to itself a model opens nearly all of its texts alike, and the calibration
// would see little of its languages and subjects. So a quarter is uniform over the tokens that stand for text, nearly
// all of which belong to one language in most vocabularies, and the rest over the scripts that tokens are written in,
// of which most have few, and within the script.
class Openings {
 public:
  // `never_drawn` is ascending, and not all of the vocabulary.
  Openings(uint64_t seed, const Tokenizer& tokenizer, int64_t vocabulary, std::span<const Token> never_drawn)
      : seed_(seed) {
    for (Token token = 0; token < vocabulary; ++token) {
      if (std::ranges::binary_search(never_drawn, token)) continue;
      all_.push_back(token);
      if (const std::optional<Script> script = script_of(tokenizer.text_of(token)))
        by_script_[*script].push_back(token);
    }
  }

  Token of(uint64_t sequence, uint64_t text) const {
    auto uniform = [&](uint64_t index) { return uniform_at(seed_, kOpeningStreams + sequence, 3 * text + index); };
    auto draw = [&](uint64_t index, size_t count) {
      return static_cast<size_t>(uniform(index) * static_cast<double>(count));
    };
    const double kind = uniform(0);
    if (by_script_.empty() || kind >= kScriptShare) return all_[draw(1, all_.size())];
    auto script = by_script_.find(Script::kLatinBeyondAscii);
    if (script == by_script_.end() || kind >= kScriptShare * kLatinBeyondAsciiShare)
      script = std::next(by_script_.begin(), static_cast<ptrdiff_t>(draw(1, by_script_.size())));
    return script->second[draw(2, script->second.size())];
  }

 private:
  uint64_t seed_;
  std::vector<Token> all_;
  std::map<Script, std::vector<Token>> by_script_;
};

// Fills `text` with turns: the marks and what each of the user's opens with given, the rest for the model to draw.
class Conversation {
 public:
  Conversation(const Tokenizer& tokenizer, const ChatForm& form)
      : user_begin_(tokenizer.encode(form.user_begin)),
        answer_begin_(tokenizer.encode(std::string(form.user_end).append(form.assistant_begin))),
        answer_end_(tokenizer.encode(form.assistant_end)) {}

  // False: not within the model's vocabulary.
  bool is_below(int64_t vocabulary) const {
    for (const std::vector<Token>* mark : {&user_begin_, &answer_begin_, &answer_end_})
      if (std::ranges::any_of(*mark, [&](Token token) { return token >= vocabulary; })) return false;
    return true;
  }

  void write(uint64_t seed, uint64_t sequence, const Openings& openings, size_t begin, std::span<Token> text) const {
    size_t at = begin;
    uint64_t turn = 0;
    auto give = [&](const std::vector<Token>& mark) {
      for (Token token : mark)
        if (at < text.size()) text[at++] = token;
    };
    auto leave = [&](TurnLength length) {
      const double uniform = uniform_at(seed, kTurnStreams + sequence, turn++);
      at += static_cast<size_t>(length.least) +
            static_cast<size_t>(uniform * static_cast<double>(length.most - length.least + 1));
    };
    while (at < text.size()) {
      give(user_begin_);
      if (at < text.size()) text[at] = openings.of(sequence, turn);
      leave(kUserTurn);
      give(answer_begin_);
      leave(kAssistantTurn);
      give(answer_end_);
    }
  }

 private:
  std::vector<Token> user_begin_, answer_begin_, answer_end_;
};

}  // namespace

TextScript script_for(const OpenedCheckpoint& checkpoint, const CalibrationOptions& options) {
  const int64_t vocabulary = checkpoint.runnable().vocabulary();
  TextScript script = uniform_script(vocabulary, options);
  const std::string tokenizer_path = find_checkpoint_files(checkpoint.path()).tokenizer_path();
  if (tokenizer_path.empty() || !checkpoint.runnable().family->writes_documents()) return script;
  const Tokenizer tokenizer = load_tokenizer(tokenizer_path);
  check_vocab_size(tokenizer, vocabulary, checkpoint.path());
  const SpecialTokens special =
      find_special_tokens(tokenizer, vocabulary, checkpoint.config_json(), checkpoint.config_path());
  script.never_drawn = special.all;
  if (static_cast<int64_t>(script.never_drawn.size()) == vocabulary)
    throw FormatError(tokenizer_path, "none of its tokens stands for text");

  std::optional<Conversation> conversation;
  if (const std::optional<ChatForm> form = chat_form_of(chat_template_of(tokenizer_path))) {
    conversation.emplace(tokenizer, *form);
    if (!conversation->is_below(vocabulary)) conversation.reset();
  }
  const std::optional<Token> bos = tokenizer.bos_id(), document = tokenizer.document_start();
  const std::optional<Token> start = document ? document : special.bos;
  const Openings openings(options.seed, tokenizer, vocabulary, script.never_drawn);
  const auto length = static_cast<size_t>(options.length);
  for (size_t s = 0; s < static_cast<size_t>(options.sequences); ++s) {
    const std::span text = std::span(script.given).subspan(s * length, length);
    const bool talks = conversation && s % 2 == 1;
    const std::optional<Token> first = talks ? bos : start;
    const size_t begin = first ? 1 : 0;
    if (first) text[0] = *first;
    if (talks)
      conversation->write(options.seed, s, openings, begin, text);
    else if (begin < length)
      text[begin] = openings.of(s, 0);
  }
  return script;
}

}  // namespace thimble
