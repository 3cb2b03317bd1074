// given_text.h: calibration text that somebody gives, instead of what the model writes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quantizer/console/file_roles.h"
#include "runtime/families/family.h"
#include "runtime/ops/generator.h"
#include "runtime/ops/token_sequences.h"

namespace thimble {

struct GivenText {
  std::vector<std::string> shards;  // --calibration-tokens: files and glob patterns
  std::vector<std::string> texts;   // --calibration-text, likewise; only one of the two
  std::string tokenizer;            // of the texts
  // Are sequences drawn at random (text_windows.h)? Otherwise the text is one shard of whole sequences, as
  // --save-calibration writes it.
  bool is_drawn = false;

  bool is_given() const { return !shards.empty() || !texts.empty(); }
  // Throws as expand_patterns().
  std::vector<std::string> files() const;
  void register_files(FileRoles& roles) const;
};

// Decides how it is read, and then how many sequences there are: a shard is read as it stands where it is the only one
// and no number of sequences was asked for (0 in `options`). FormatError when such a shard is not one of whole
// sequences of the length asked for; `usual_sequences` are drawn where none were asked for.
void plan_given_text(GivenText& text, CalibrationOptions& options, int64_t usual_sequences);

// The sequences of a text so planned. The last `held_out`, those that tuning holds out (distill_input.h), are drawn
// from other parts of the text than the rest. FormatErrors of text_windows.h, load_tokenizer() and check_vocab_size(),
// which names `checkpoint`.
TokenSequences read_given_text(const GivenText& text, const CalibrationOptions& options, int64_t vocabulary,
                               const std::string& checkpoint, int64_t held_out);

}  // namespace thimble
