// cpu_text.cpp: see cpu_text.h.
#include "runtime/cpu/cpu_text.h"

#include <cassert>

#include "runtime/base/random.h"

namespace thimble {

CpuText::CpuText(CpuPass& pass, std::span<const Token> prompt, const TextOptions& options)
    : pass_(pass),
      options_(options),
      cache_(pass.network(), 1, static_cast<int64_t>(prompt.size()) + options.most_new_tokens),
      batch_(window_batch(prompt)),
      logits_(1, pass.network().vocabulary()) {
  assert(!prompt.empty() && cache_.capacity() <= pass.context_length());
}

Token CpuText::next() {
  assert(drawn_ < options_.most_new_tokens);
  pass_.logits(pass_.run(batch_, &cache_, batch_.shape.positions - 1), logits_);
  const Token token =
      sample_token(logits_.values(), options_.temperature, uniform_at(options_.seed, 0, static_cast<uint64_t>(drawn_)));
  ++drawn_;
  batch_.shape = {1, 1, batch_.shape.first_position + batch_.shape.positions};
  batch_.previous = {batch_.tokens.back()};
  batch_.tokens = {token};
  return token;
}

}  // namespace thimble
