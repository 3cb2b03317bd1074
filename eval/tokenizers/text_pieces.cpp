// text_pieces.cpp: the steps that tokenizers of language models use.
#include "eval/tokenizers/text_pieces.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "eval/tokenizers/json_step.h"
#include "eval/tokenizers/text_regex.h"
#include "eval/tokenizers/tokenizer_model.h"
#include "eval/tokenizers/unicode_versions.h"
#include "eval/tokenizers/utf8.h"
#include "runtime/base/error.h"

namespace thimble {
namespace {

constexpr size_t kMostSteps = 16;             // of each kind
constexpr size_t kMostReplacementBytes = 16;  // what one replacement or prefix puts in
constexpr size_t kMostGrowth = 16;            // of a text under all normalizers; NFKC makes 33 bytes of 3

// What the ByteLevel step uses by itself.
constexpr const char* kByteLevelExpression =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// A part of a text that an expression matched, or that lies between matches.
struct Part {
  TextSpan span;
  bool is_match = false;
};
using Finder = std::function<std::vector<TextSpan>(std::string_view, const MatchTime&)>;

Finder find_text(std::string pattern) {
  return [pattern](std::string_view text, const MatchTime&) {
    std::vector<TextSpan> found;
    for (size_t at = text.find(pattern); at != std::string_view::npos; at = text.find(pattern, at + pattern.size()))
      found.push_back({at, at + pattern.size()});
    return found;
  };
}

// Each character that is a number.
std::vector<TextSpan> find_digits(std::string_view text, const MatchTime&) {
  std::vector<TextSpan> found;
  for (size_t at = 0; at < text.size();) {
    const CodePoint next = decode_utf8(text.substr(at));
    if (is_numeric(next.value)) found.push_back({at, at + next.length});
    at += next.length;
  }
  return found;
}

Finder find_regex(const std::string& expression, const JsonStep& step) {
  return [regex = TextRegex(expression, step.path(), step.object())](std::string_view text, const MatchTime& time) {
    return regex.matches(text, time);
  };
}

Finder read_pattern(JsonStep& step) {
  const Json& value = step.get("pattern");
  if (!value.is_object()) step.refuse("pattern", "{\"Regex\": ...}, {\"String\": ...}");
  JsonStep pattern(value, step.path(), step.object() + " pattern");
  const bool is_regex = value.contains("Regex");
  const std::string text = pattern.text(is_regex ? "Regex" : "String");
  pattern.finish();
  if (text.empty()) step.refuse("pattern", "a pattern that is not empty");
  if (!is_regex) return find_text(text);
  return find_regex(text, step);
}

std::vector<Part> parts_of(std::string_view text, const std::vector<TextSpan>& matches) {
  std::vector<Part> parts;
  size_t end = 0;
  for (const TextSpan& match : matches) {
    if (end < match.begin) parts.push_back({{end, match.begin}, false});
    parts.push_back({match, true});
    end = match.end;
  }
  if (end < text.size()) parts.push_back({{end, text.size()}, false});
  return parts;
}

// What becomes of matches: the behaviours of `tokenizers`.
std::vector<Part> arranged(std::vector<Part> parts, std::string_view behaviour) {
  std::vector<Part> result;
  bool was_match = false;
  auto join = [&](const Part& part, bool joins) {
    if (joins && !result.empty())
      result.back().span = {std::min(result.back().span.begin, part.span.begin),
                            std::max(result.back().span.end, part.span.end)};
    else
      result.push_back(part);
    was_match = part.is_match;
  };
  if (behaviour == "Removed") {
    std::erase_if(parts, [](const Part& part) { return part.is_match; });
    return parts;
  }
  if (behaviour == "MergedWithNext") std::ranges::reverse(parts);
  for (const Part& part : parts) {
    if (behaviour == "Contiguous")
      join(part, part.is_match == was_match);
    else
      join(part, behaviour != "Isolated" && part.is_match && !was_match);
  }
  if (behaviour == "MergedWithNext") std::ranges::reverse(result);
  return result;
}

PreTokenizer split_by(Finder finder, std::string behaviour, bool invert = false) {
  return [=](const std::vector<TextPiece>& pieces, const MatchTime& time) {
    std::vector<TextPiece> result;
    for (const TextPiece& piece : pieces) {
      std::vector<Part> parts = parts_of(piece.text, finder(piece.text, time));
      if (invert)
        for (Part& part : parts) part.is_match = !part.is_match;
      for (const Part& part : arranged(std::move(parts), behaviour))
        result.push_back({piece.text.substr(part.span.begin, part.span.end - part.span.begin),
                          piece.begins_text && part.span.begin == 0});
    }
    return result;
  };
}

std::string replaced(const std::string& text, const std::vector<TextSpan>& matches, std::string_view content) {
  std::string result;
  size_t end = 0;
  for (const TextSpan& match : matches) {
    result.append(text, end, match.begin - end).append(content);
    end = match.end;
  }
  return result.append(text, end);
}

// Unicode's normal form of a stretch that utf8proc knows as `tokenizers` does.
void add_normal_form(std::string_view text, utf8proc_option_t options, std::string& result) {
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                               static_cast<utf8proc_ssize_t>(text.size()), &made, options);
  if (length < 0) throw std::bad_alloc();  // the text is UTF-8, so memory is all that can be missing
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, &std::free);
  result.append(reinterpret_cast<const char*>(made), static_cast<size_t>(length));
}

std::string normal_form(const std::string& text, bool is_compatible, bool is_composed) {
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::ranges::all_of(text, is_ascii)) return text;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (is_compatible ? UTF8PROC_COMPAT : 0) |
                                                      (is_composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE));
  const std::string_view view = text;
  std::string result;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint next = decode_utf8(view.substr(at));
    if (is_unknown_to_normal_forms(next.value)) {
      add_normal_form(view.substr(done, at - done), options, result);
      result.append(view.substr(at, next.length));
      done = at + next.length;
    }
    at += next.length;
  }
  add_normal_form(view.substr(done), options, result);
  return result;
}

// A text that a step puts in.
std::string read_content(JsonStep& step, const std::string& key) {
  std::string text = step.text(key);
  if (text.size() > kMostReplacementBytes) step.refuse(key, "at most " + std::to_string(kMostReplacementBytes) + " B");
  return text;
}

// Visits the steps of a Sequence, or the one step, or none for null.
void for_each_step(const Json& value, const std::string& list_key, const std::string& path, const std::string& object,
                   const std::function<void(JsonStep&, const std::string&)>& visit) {
  if (value.is_null()) return;
  JsonStep step(value, path, object);
  const std::string type = step.text("type");
  if (type != "Sequence") {
    visit(step, type);
    return step.finish();
  }
  const Json& list = step.get(list_key);
  if (!list.is_array() || list.size() > kMostSteps)
    step.refuse(list_key, "an array of at most " + std::to_string(kMostSteps));
  step.finish();
  for (size_t i = 0; i < list.size(); ++i) {
    JsonStep inner(list[i], path, object + " " + std::to_string(i));
    const std::string inner_type = inner.text("type");
    visit(inner, inner_type);
    inner.finish();
  }
}

class StepReader {
 public:
  explicit StepReader(TextSteps& steps) : steps_(steps) {}

  void read_normalizer(JsonStep& step, const std::string& type) {
    if (type == "Prepend") {
      const std::string prefix = read_content(step, "prepend");
      if (prefix != kSpaceMark) step.refuse("prepend", "\"\u2581\"");
      steps_.puts_space_in_front = steps_.has_marks = true;
      steps_.normalizers.emplace_back(
          [prefix](const std::string& text, const MatchTime&) { return text.empty() ? text : prefix + text; });
    } else if (type == "Replace") {
      Finder finder = read_pattern(step);
      const std::string content = read_content(step, "content");
      if (content == kSpaceMark) steps_.has_marks = true;
      steps_.normalizers.emplace_back([finder, content](const std::string& text, const MatchTime& time) {
        return replaced(text, finder(text, time), content);
      });
    } else if (type == "NFC" || type == "NFKC" || type == "NFD" || type == "NFKD") {
      const bool is_compatible = type[2] == 'K', is_composed = type.back() == 'C';
      steps_.normalizers.emplace_back([is_compatible, is_composed](const std::string& text, const MatchTime&) {
        return normal_form(text, is_compatible, is_composed);
      });
    } else {
      step.refuse("type", "Sequence, Prepend, Replace, NFC, NFD, NFKC, NFKD");
    }
  }

  void read_pre_tokenizer(JsonStep& step, const std::string& type) {
    if (steps_.is_byte_level) step.refuse("type", "nothing after ByteLevel");
    if (type == "Split") {
      Finder finder = read_pattern(step);
      const std::string behaviour =
          step.choice("behavior", {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"}, "");
      const bool invert = step.flag("invert", false);
      steps_.pre_tokenizers.push_back(split_by(finder, behaviour, invert));
    } else if (type == "Digits") {
      const bool individual = step.flag("individual_digits", false);
      steps_.pre_tokenizers.push_back(split_by(find_digits, individual ? "Isolated" : "Contiguous"));
    } else if (type == "ByteLevel") {
      read_byte_level(step);
    } else if (type == "Metaspace") {
      read_metaspace(step);
    } else {
      step.refuse("type", "Sequence, Split, Digits, ByteLevel, Metaspace");
    }
  }

 private:
  void read_byte_level(JsonStep& step) {
    step.ignore("trim_offsets");  // of offsets, which nobody asks for here
    steps_.is_byte_level = true;
    if (step.flag("add_prefix_space", true)) {
      steps_.puts_space_in_front = true;
      steps_.pre_tokenizers.emplace_back([](std::vector<TextPiece> pieces, const MatchTime&) {
        for (TextPiece& piece : pieces)
          if (!piece.text.starts_with(' ')) piece.text.insert(0, 1, ' ');
        return pieces;
      });
    }
    if (!step.flag("use_regex", true)) return;
    steps_.pre_tokenizers.push_back(split_by(find_regex(kByteLevelExpression, step), "Isolated"));
  }

  void read_metaspace(JsonStep& step) {
    if (step.text("replacement") != kSpaceMark) step.refuse("replacement", "\"\u2581\"");
    step.ignore("str_rep");  // an older spelling of the replacement
    const bool old_prefix = step.flag("add_prefix_space", true);
    const std::string scheme =
        step.choice("prepend_scheme", {"always", "first", "never"}, old_prefix ? "always" : "never");
    const bool splits = step.flag("split", true);
    steps_.has_marks = true;
    steps_.puts_space_in_front |= scheme != "never";
    steps_.pre_tokenizers.emplace_back(
        [scheme, spaces = find_text(" ")](std::vector<TextPiece> pieces, const MatchTime& time) {
          for (TextPiece& piece : pieces) {
            piece.text = replaced(piece.text, spaces(piece.text, time), kSpaceMark);
            const bool takes_prefix = scheme == "always" || (scheme == "first" && piece.begins_text);
            if (takes_prefix && !piece.text.starts_with(kSpaceMark)) piece.text.insert(0, kSpaceMark);
          }
          return pieces;
        });
    if (splits) steps_.pre_tokenizers.push_back(split_by(find_text(std::string(kSpaceMark)), "MergedWithNext"));
  }

  TextSteps& steps_;
};

}  // namespace

TextSteps read_text_steps(const Json& normalizer, const Json& pre_tokenizer, const std::string& path) {
  TextSteps steps;
  steps.path = path;
  StepReader reader(steps);
  for_each_step(normalizer, "normalizers", path, "normalizer",
                [&](JsonStep& step, const std::string& type) { reader.read_normalizer(step, type); });
  for_each_step(pre_tokenizer, "pretokenizers", path, "pre_tokenizer",
                [&](JsonStep& step, const std::string& type) { reader.read_pre_tokenizer(step, type); });
  return steps;
}

std::string normalized(const TextSteps& steps, std::string text, const MatchTime& time) {
  const size_t most_bytes = (text.size() + 1) * kMostGrowth;
  for (const Normalizer& change : steps.normalizers) {
    text = change(std::move(text), time);
    if (text.size() > most_bytes)
      throw FormatError(steps.path,
                        "the normalizers make a text more than " + std::to_string(kMostGrowth) + " times as long");
  }
  return text;
}

std::vector<TextPiece> split(const TextSteps& steps, TextPiece piece, const MatchTime& time) {
  std::vector<TextPiece> pieces;
  if (!piece.text.empty()) pieces.push_back(std::move(piece));
  for (const PreTokenizer& step : steps.pre_tokenizers) pieces = step(std::move(pieces), time);
  return pieces;
}

}  // namespace thimble
