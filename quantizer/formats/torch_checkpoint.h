// torch_checkpoint.h: state dicts as torch.save writes them since PyTorch 1.6: a zip archive of stored entries with
//   <prefix>/data.pkl      a pickle: the dict, with tensors as references to storages
//   <prefix>/data/<key>    the bytes of one storage
//   <prefix>/byteorder     "little" when present
//   <prefix>/version       archive version, a number
// Nothing in the file is executed; whatever is not a plain state dict is a FormatError.
//
// The state dict is the top-level dict, or the first of these keys (searched in this order, at every level) that leads
// to a dict with tensors: model, state_dict, model_state_dict, module, model_ema, ema, ema_state_dict, weights.
// Other values beside the tensors (optimizer state, counters, texts) are ignored.
//
// Non-goals: files of PyTorch before 1.6, TorchScript archives, big-endian files.
#pragma once

#include <string>

#include "quantizer/formats/checkpoint_contents.h"
#include "quantizer/formats/zip_archive.h"

namespace thimble {

constexpr size_t kMaxTorchRank = 32;

// The bytes start like a pickle or a tar archive: what torch.save wrote before 1.6, or another pickle.
bool looks_like_legacy_torch(Bytes file);

// Tensors under the names that the file spells, and the config: the plain scalars, texts, lists and dicts of the first
// dict found in the top-level dict under config, model_config, model_args or args; what JSON cannot hold is left out.
// `path` names the file in errors. kSkip leaves the CRC-32 of the entries unchecked (for fuzzing).
CheckpointContents read_torch_checkpoint(Bytes file, const std::string& path, CrcCheck check = CrcCheck::kVerify);

}  // namespace thimble
