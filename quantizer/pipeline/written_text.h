// written_text.h: what a model is given where it writes its own calibration text.
// In: a checkpoint, and the tokenizer and chat template in its folder.  Out: TextScript.
#pragma once

#include "quantizer/checkpoints/model_source.h"
#include "runtime/ops/generator.h"

namespace thimble {

// - A model without a tokenizer in its folder, or whose family does not write documents: the first token of each
//   sequence is uniform over the vocabulary.
// - With one: texts begin as documents do (Tokenizer::document_start()), or else with the BOS that the config names, or
// else
//   with nothing. The token that follows is uniform over those that stand for text, and three times out of four over
//   the scripts that these are written in. Others (special, control, padding) are never drawn.
// - With a chat template of a known form besides: every second sequence is a conversation, whose marks are given and
//   whose turns the model writes, each as long as chance has it; the user's open with such a token too.
// The checkpoint must run. Throws as Tokenizer::load(), check_vocab_size() and find_special_tokens() do, and a
// FormatError for a chat template that cannot be read.
TextScript script_for(const OpenedCheckpoint& checkpoint, const CalibrationOptions& options);

}  // namespace thimble
