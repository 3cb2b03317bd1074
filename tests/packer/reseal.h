// reseal.h: makes the checksums of a tampered artifact right again, so that tests and fuzzing reach the checks behind
// them. Tolerates any bytes: what does not fit in the file is left alone.
#pragma once

#include <algorithm>
#include <string>

#include "packer/container/container.h"
#include "packer/layout/format.h"
#include "runtime/base/hash.h"

namespace thimble {

template <typename T>
void overwrite_little_endian(ByteVector& file, size_t offset, T value) {
  ByteVector bytes;
  append_little_endian(bytes, value);
  std::ranges::copy(bytes, file.begin() + static_cast<std::ptrdiff_t>(offset));
}

// Offset of a field of entry `section`: 0 kind, 1 codec, 2 layout, 3 reserved, 4 raw bytes, 8 stored bytes, 12
// checksum.
inline size_t entry_offset(size_t section, size_t field) { return kPrefixBytes + section * kSectionEntryBytes + field; }

enum class Reseal { kChecksums, kChecksumsAndLength };

inline void reseal(ByteVector& file, Reseal what = Reseal::kChecksums) {
  if (file.size() < kPrefixBytes) return;
  if (what == Reseal::kChecksumsAndLength) overwrite_little_endian(file, kFileLengthOffset, uint64_t{file.size()});
  ByteCursor cursor(file, "reseal");
  cursor.seek(kSectionCountOffset, "section count");
  const uint64_t sections = cursor.read<uint32_t>("section count");
  uint64_t stored_offset = kPrefixBytes + sections * kSectionEntryBytes;
  for (size_t i = 0; i < sections && stored_offset <= file.size(); ++i) {
    cursor.seek(entry_offset(i, 8), "stored bytes");
    auto stored_bytes = cursor.read<uint32_t>("stored bytes");
    if (stored_bytes > file.size() - stored_offset) break;
    overwrite_little_endian(file, entry_offset(i, 12), xxh3(Bytes(file).subspan(stored_offset, stored_bytes)));
    stored_offset += stored_bytes;
  }
  overwrite_little_endian(file, kFileChecksumOffset, file_checksum(file));
}

}  // namespace thimble
