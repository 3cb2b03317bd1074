// cpu_text.h: one text that a model writes on the CPU, token by token over cached keys and values.
#pragma once

#include <span>

#include "runtime/cpu/cpu_pass.h"
#include "runtime/ops/generator.h"

namespace thimble {

class CpuText {
 public:
  // Continues `prompt`, at least one token; together with options.most_new_tokens at most the pass's context. The pass
  // must outlive the text, and does nothing else meanwhile.
  CpuText(CpuPass& pass, std::span<const Token> prompt, const TextOptions& options);

  // Draws the next token, at most options.most_new_tokens times. The first one runs the whole prompt.
  Token next();

 private:
  CpuPass& pass_;
  TextOptions options_;
  CpuCache cache_;
  TokenBatch batch_;  // what runs next
  int64_t drawn_ = 0;
  Matrix logits_;
};

}  // namespace thimble
