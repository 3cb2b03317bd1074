// text_windows.h: calibration sequences from text that somebody gives: windows drawn at random from token shards or
// text files of any size. What is not drawn is neither tokenized nor copied.
//
// One window begins in each of as many equal stretches of the text, anywhere in it (stratified sampling), and they come
// in random order: text as long as the windows together is read about once, and any few of them are of everywhere. A
// window goes on across the ends of documents and files, and at the end of the text with its beginning.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "eval/tokenizers/tokenizer.h"
#include "runtime/ops/token_sequences.h"

namespace thimble {

struct WindowOptions {
  int64_t count = 1, length = 1;  // windows, and tokens of each
  // So many of the windows, the last ones, come from the last sixteenth of the text, and the others from what is before
  // it: of text files, from other documents where there are several. Where that part is less than one window, or more
  // than half of the text, all come from all of it.
  int64_t held_out = 0;
  uint64_t seed = 0;
};

// From these shards (expand_patterns()), one after another. FormatErrors of TokenShard, for tokens that are drawn, and
// for fewer than `length` tokens in all.
TokenSequences draw_shard_windows(std::span<const std::string> files, const WindowOptions& options, int64_t vocab_size);

// From the documents (text_tokens.h) of these files. A window that begins within a document begins with a word, or with
// a character where there is no space near; in front of each document that it comes to stands the token that
// Tokenizer::document_start() says, if any. FormatError naming file and byte where what is drawn is not UTF-8, and for
// fewer than `length` tokens in all.
TokenSequences draw_text_windows(std::span<const std::string> files, const Tokenizer& tokenizer,
                                 const WindowOptions& options);

}  // namespace thimble
