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
  bool is_verified = false;
};

class ZipArchive {
 public:
  // `file` must outlive the archive; `path` names it in errors. kSkip leaves the CRC-32 of the entries unchecked.
  ZipArchive(Bytes file, const std::string& path, CrcCheck check = CrcCheck::kVerify);

  // Names are unique.
  const std::map<std::string_view, ZipEntry>& entries() const { return entries_; }
  bool contains(std::string_view name) const { return entries_.contains(name); }

  // The entry's data, whose CRC-32 the first read checks. FormatError when it does not match, or there is no such
  // entry.
  Bytes read(std::string_view name);

 private:
  std::string path_;
  CrcCheck check_;
  std::map<std::string_view, ZipEntry> entries_;
};

}  // namespace thimble
