// given_text.cpp: see given_text.h.
#include "quantizer/pipeline/given_text.h"

#include "eval/text/text_windows.h"
#include "eval/text/token_shard.h"
#include "quantizer/formats/gguf_tokenizer_json.h"
#include "runtime/base/count_text.h"
#include "runtime/base/file.h"

namespace thimble {
namespace {

// Of a shard that holds whole sequences, one after another.
int64_t whole_sequences(const std::string& path, int64_t length) {
  const MappedFile file(path);
  const auto tokens = static_cast<int64_t>(TokenShard(file.bytes(), path).count());
  if (tokens == 0 || tokens % length != 0)
    throw FormatError(path, counted(tokens, "token") + ", allowed is a positive multiple of the calibration length " +
                                std::to_string(length) +
                                "; with --calibration-sequences windows are drawn from any number");
  return tokens / length;
}

}  // namespace

std::vector<std::string> GivenText::files() const {
  return shards.empty() ? expand_patterns(texts, "text file") : expand_patterns(shards, kTokenShardFiles);
}

void GivenText::register_files(FileRoles& roles) const {
  if (!is_given()) return;
  const std::string role = shards.empty() ? "the --calibration-text" : "the --calibration-tokens";
  for (const std::string& file : files()) roles.input(role, file);
}

void plan_given_text(GivenText& text, CalibrationOptions& options, int64_t usual_sequences) {
  const std::vector<std::string> files = text.files();
  text.is_drawn = text.shards.empty() || files.size() > 1 || options.sequences != 0;
  if (!text.is_drawn)
    options.sequences = whole_sequences(files.front(), options.length);
  else if (options.sequences == 0)
    options.sequences = usual_sequences;
}

TokenSequences read_given_text(const GivenText& text, const CalibrationOptions& options, int64_t vocabulary,
                               const std::string& checkpoint, int64_t held_out) {
  const std::vector<std::string> files = text.files();
  if (!text.is_drawn)
    return {options.sequences, options.length,
            parse_shard(MappedFile(files.front()).bytes(), files.front(), vocabulary)};
  const WindowOptions windows = {options.sequences, options.length, held_out, options.seed};
  if (text.texts.empty()) return draw_shard_windows(files, windows, vocabulary);
  const Tokenizer tokenizer = load_tokenizer(text.tokenizer);
  check_vocab_size(tokenizer, vocabulary, checkpoint);
  return draw_text_windows(files, tokenizer, windows);
}

}  // namespace thimble
