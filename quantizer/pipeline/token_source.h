// token_source.h: the options that say what text to score, shared by eval, audit and quantize.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/score/bpb.h"
#include "eval/tokenizers/tokenizer.h"
#include "quantizer/console/file_roles.h"
#include "quantizer/console/help_formatter.h"
#include "runtime/families/family.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace thimble {

constexpr int64_t kDefaultContext = 2048;

// --tokenizer: `path` becomes the file that is named, or, of a folder, the tokenizer in it; a FormatError without one.
CLI::Option* add_tokenizer(CLI::App& command, std::string& path, const std::string& description);

struct TokenSource {
  std::vector<std::string> shards;  // --tokens: files and glob patterns
  std::string text;                 // --text: a file to tokenise
  std::string tokenizer;            // --tokenizer: a tokenizer.json or SentencePiece model; empty for the folder's
  std::optional<int64_t> context;   // --context
  std::optional<int64_t> stride;    // --stride
  std::optional<int64_t> max_targets;

  enum class Need { kOptional, kRequired };
  // `details` is the heading for how the text is scored: kCommonGroup where the command does nothing else.
  void add_to(CLI::App& command, Need need, const char* details = kEvaluationGroup);
  void register_files(FileRoles& roles) const;  // throws what is wrong with patterns of --tokens, as load() does
  bool is_given() const { return !shards.empty() || !text.empty(); }
  // Without --tokenizer, that of the first of these models that is a folder with one; where text is required, a
  // UsageError when there is none.
  void find_tokenizer(std::span<const std::string> models, Need need);
  // Where text is optional: a UsageError for options that say how to score although there is none, and for text without
  // a tokenizer. `uses_tokenizer`: does the command need it for something else too?
  void check(bool uses_tokenizer) const;
  // The tokens of context for a model: as --context says, else kDefaultContext, or what the model of `path` has
  // positions for. A UsageError when that is too many for it, or below the stride.
  int64_t context_for(const Spec& spec, const std::string& path) const;
  // With a context of that length. The default stride is the family's usual one, or a shorter context.
  EvaluationOptions evaluation_options(const Spec& spec, int64_t length) const;
  // The token stream, below `vocab_size`. UsageError unless exactly one of --tokens and --text is given, FormatError
  // when it has no target to score.
  std::vector<Token> load(const Tokenizer& loaded, int64_t vocab_size) const;
};

// What to tell of a context far longer than the tokens that are scored in it, where that changes the score: some
// families scale their rotary angles by the context asked for. nullopt where there is nothing to tell.
std::optional<std::string> context_note(const Spec& spec, int64_t context, int64_t tokens);

}  // namespace thimble
