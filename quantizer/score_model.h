// score_model.h: bits per byte of one model file on the text that the options name: what eval and quantize share.
#pragma once

#include <string>

#include "eval/bpb.h"
#include "eval/byte_table.h"
#include "eval/tokenizer.h"
#include "quantizer/console.h"
#include "quantizer/ranks.h"
#include "quantizer/token_source.h"
#include "runtime/device.h"

namespace thimble {

struct ScoredModel {
  std::string path;
  uint64_t file_bytes = 0;
  BpbReport report;
};

// Opens `path` (checkpoint or artifact) from disk, as a user would, and scores it on `device`, windows shared
// among the ranks. `config` is for checkpoints.
ScoredModel score_model(const std::string& path, const std::string& config, const TokenSource& source,
                        const Tokenizer& tokenizer, const ByteTable& bytes, const Device& device, Ranks& ranks,
                        Progress& progress);

}  // namespace thimble
