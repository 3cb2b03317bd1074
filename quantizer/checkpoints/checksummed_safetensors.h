// checksummed_safetensors.h: safetensors files that notice when they are damaged: the metadata key "xxh3" holds the
// XXH3-64 of everything else in them. Used for what this program writes and reads again: Hessians, finished work.
#pragma once

#include <map>
#include <string>

#include "quantizer/checkpoints/safetensors.h"

namespace thimble {

// write_safetensors() with the checksum added to the metadata.
void write_checksummed_safetensors(const std::string& path, const TensorMap& tensors,
                                   std::map<std::string, std::string> metadata);

// Whether the contents carry a checksum. One that does not agree with them is a FormatError(path).
bool verify_checksum(const SafetensorsContents& contents, const std::string& path);

}  // namespace thimble
