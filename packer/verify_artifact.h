// verify_artifact.h: proves that an artifact is undamaged, decodes, and is what encoding the decoded model gives.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/byte_cursor.h"
#include "runtime/base/progress.h"

namespace thimble {

struct VerifyReport {
  bool container_ok = false;  // prefix, lengths and all checksums
  bool decodes = false;       // every rule of the format holds
  bool canonical = false;     // the decoded model, laid out again, gives the same bytes before compression
  bool identical = false;     // and compressing them again gives the same file, byte for byte
  // Sections whose compressed bytes differ although their contents are the same: they were written by another version
  // of their compression library, or with other settings. No fault.
  std::vector<size_t> recompressed_differently;
  std::string problem;  // why the first check that failed did; empty otherwise

  bool ok() const { return container_ok && decodes && canonical; }
};

// Codec and layout of each section are taken from the file. Costs as much as encoding without a cache.
// Faults of the file are reported, not thrown.
VerifyReport verify_artifact(Bytes file, const std::string& path, Progress& progress);

}  // namespace thimble
