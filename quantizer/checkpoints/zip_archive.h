// zip_archive.h: a bounded reader of zip archives whose entries are stored, as torch.save writes them.
//
// Reads the central directory (with zip64) and checks every local header, data descriptor and extent against it.
// Non-goals: compressed or encrypted entries, archives split over disks, bytes before the first entry's archive:
// each is a FormatError that names the entry.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "runtime/base/byte_cursor.h"

namespace thimble {

enum class CrcCheck : bool { kSkip, kVerify };

struct ZipEntry {
  Bytes bytes;  // the stored data, inside the archive's bytes
  uint32_t crc32 = 0;
};

class ZipArchive {
 public:
  // `file` must outlive the archive; `path` names it in errors.
  ZipArchive(Bytes file, const std::string& path);

  // Names are unique.
  const std::map<std::string_view, ZipEntry>& entries() const { return entries_; }
  bool contains(std::string_view name) const { return entries_.contains(name); }

  // The entry's data; FormatError when there is no such entry or, with kVerify, when its CRC-32 does not match.
  Bytes read(std::string_view name, CrcCheck check) const;

 private:
  std::string path_;
  std::map<std::string_view, ZipEntry> entries_;
};

}  // namespace thimble
