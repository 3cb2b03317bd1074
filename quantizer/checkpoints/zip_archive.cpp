// zip_archive.cpp: the zip structures of zip_archive.h (PKWARE APPNOTE 6.3, sections 4.3 and 4.5.3).
#include "quantizer/checkpoints/zip_archive.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "quantizer/console/quoted_name.h"
#include "runtime/base/checked.h"

namespace thimble {
namespace {

constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint32_t kCentralSignature = 0x02014b50;
constexpr uint32_t kDescriptorSignature = 0x08074b50;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kZip64EndSignature = 0x06064b50;
constexpr uint32_t kZip64LocatorSignature = 0x07064b50;

constexpr uint64_t kEndBytes = 22;
constexpr uint64_t kZip64LocatorBytes = 20;
constexpr uint64_t kCentralBytes = 46;
constexpr uint64_t kMaxCommentBytes = 0xffff;
constexpr uint64_t kIn64Bits16 = 0xffff;      // a 16-bit field with this value is given by the zip64 record
constexpr uint64_t kIn64Bits32 = 0xffffffff;  // likewise for 32 bits
constexpr uint16_t kZip64ExtraId = 1;

constexpr uint16_t kFlagDescriptor = 1u << 3;  // sizes and CRC-32 follow the data
constexpr uint16_t kFlagUtf8 = 1u << 11;

struct Directory {
  uint64_t offset = 0;
  uint64_t size_bytes = 0;
  uint64_t entry_count = 0;
};

// One entry as the central directory and its local header agree on it.
struct Entry {
  std::string_view name;
  uint16_t flags = 0;
  uint32_t crc32 = 0;
  uint64_t data_bytes = 0;
  uint64_t begin = 0;  // of the local header
  uint64_t end = 0;    // behind the data and its descriptor
  Bytes data;
};

std::string where_of(const std::string& path, const Entry& entry) {
  return path + ": zip entry " + quoted_name(entry.name);
}

void expect_signature(ByteCursor& cursor, uint32_t signature, const char* object) {
  uint64_t at = cursor.position();
  auto found = cursor.read<uint32_t>(object);
  if (found != signature)
    throw FormatError(cursor.path(),
                      fmt::format("{} at byte {} starts with {:08x}, must be {:08x}", object, at, found, signature));
}

uint64_t find_end_record(Bytes file, const std::string& path) {
  uint64_t window = std::min<uint64_t>(file.size(), kEndBytes + kMaxCommentBytes);
  for (uint64_t tail = kEndBytes; tail <= window; ++tail) {
    ByteCursor cursor(file.last(tail), path);
    if (cursor.read<uint32_t>("signature") != kEndSignature) continue;
    cursor.seek(kEndBytes - sizeof(uint16_t), "comment length");
    if (cursor.read<uint16_t>("comment length") == tail - kEndBytes) return file.size() - tail;
  }
  throw FormatError(path, "no end of a zip archive found: the file is truncated or not a zip archive");
}

void check_one_disk(uint64_t disk, uint64_t directory_disk, bool all_entries_here, const std::string& path) {
  if (disk != 0 || directory_disk != 0 || !all_entries_here)
    throw FormatError(path, "the zip archive is split over several disks, only one is allowed");
}

// The zip64 end record, whose locator lies just before the plain end record. Returns where the record starts.
uint64_t read_zip64_end(Bytes file, uint64_t locator_at, const std::string& path, Directory& directory) {
  ByteCursor cursor(file, path);
  cursor.seek(locator_at, "zip64 locator");
  expect_signature(cursor, kZip64LocatorSignature, "zip64 locator");
  auto locator_disk = cursor.read<uint32_t>("zip64 locator");
  auto record_at = cursor.read<uint64_t>("zip64 locator");
  check_one_disk(locator_disk, 0, cursor.read<uint32_t>("zip64 locator") <= 1, path);

  cursor = ByteCursor(file.first(locator_at), path);
  cursor.seek(record_at, "zip64 end record");
  expect_signature(cursor, kZip64EndSignature, "zip64 end record");
  auto record_bytes = cursor.read<uint64_t>("zip64 end record");
  if (record_bytes != cursor.remaining())
    throw FormatError(path, fmt::format("zip64 end record of {} B, must be {} B to reach its locator", record_bytes,
                                        cursor.remaining()));
  cursor.take(4, "zip64 end record: versions");
  auto disk = cursor.read<uint32_t>("zip64 end record");
  auto directory_disk = cursor.read<uint32_t>("zip64 end record");
  auto entries_here = cursor.read<uint64_t>("zip64 end record");
  Directory wide;
  wide.entry_count = cursor.read<uint64_t>("zip64 end record");
  wide.size_bytes = cursor.read<uint64_t>("zip64 end record");
  wide.offset = cursor.read<uint64_t>("zip64 end record");
  check_one_disk(disk, directory_disk, entries_here == wide.entry_count, path);
  auto agree = [](uint64_t narrow, uint64_t full, uint64_t escape) { return narrow == escape || narrow == full; };
  if (!agree(directory.entry_count, wide.entry_count, kIn64Bits16) ||
      !agree(directory.size_bytes, wide.size_bytes, kIn64Bits32) || !agree(directory.offset, wide.offset, kIn64Bits32))
    throw FormatError(path, "the zip end record and the zip64 end record disagree");
  directory = wide;
  return record_at;
}

Directory read_directory(Bytes file, const std::string& path) {
  uint64_t end = find_end_record(file, path);
  ByteCursor cursor(file, path);
  cursor.seek(end + sizeof(uint32_t), "zip end record");
  Directory directory;
  auto disk = cursor.read<uint16_t>("zip end record");
  auto directory_disk = cursor.read<uint16_t>("zip end record");
  auto entries_here = cursor.read<uint16_t>("zip end record");
  directory.entry_count = cursor.read<uint16_t>("zip end record");
  directory.size_bytes = cursor.read<uint32_t>("zip end record");
  directory.offset = cursor.read<uint32_t>("zip end record");
  check_one_disk(disk, directory_disk, entries_here == directory.entry_count, path);
  if (end >= kZip64LocatorBytes) {
    cursor.seek(end - kZip64LocatorBytes, "zip64 locator");
    if (cursor.read<uint32_t>("zip64 locator") == kZip64LocatorSignature)
      end = read_zip64_end(file, end - kZip64LocatorBytes, path, directory);
  }
  if (add_or_throw(directory.offset, directory.size_bytes, path + ": zip directory") != end)
    throw FormatError(path, fmt::format("zip directory at byte {} of {} B, must end at byte {}", directory.offset,
                                        directory.size_bytes, end));
  if (directory.entry_count > directory.size_bytes / kCentralBytes)
    throw FormatError(
        path, fmt::format("zip directory of {} B cannot hold {} entries", directory.size_bytes, directory.entry_count));
  return directory;
}

// Replaces each field that reads 0xffffffff by its 64-bit value from the zip64 extra block, which lists them in order.
void widen_fields(Bytes extra, std::initializer_list<uint64_t*> fields, const std::string& where) {
  if (std::none_of(fields.begin(), fields.end(), [](const uint64_t* field) { return *field == kIn64Bits32; })) return;
  ByteCursor cursor(extra, where);
  while (!cursor.at_end()) {
    auto id = cursor.read<uint16_t>("extra block");
    Bytes block = cursor.take(cursor.read<uint16_t>("extra block"), "extra block");
    if (id != kZip64ExtraId) continue;
    ByteCursor values(block, where);
    for (uint64_t* field : fields)
      if (*field == kIn64Bits32) *field = values.read<uint64_t>("zip64 extra block");
    return;
  }
  throw FormatError(where, "a field is ffffffff, but there is no zip64 extra block");
}

Entry read_central_header(ByteCursor& cursor) {
  expect_signature(cursor, kCentralSignature, "zip directory entry");
  Entry entry;
  cursor.take(4, "zip directory entry: versions");
  entry.flags = cursor.read<uint16_t>("zip directory entry");
  auto method = cursor.read<uint16_t>("zip directory entry");
  cursor.take(4, "zip directory entry: time and date");
  entry.crc32 = cursor.read<uint32_t>("zip directory entry");
  uint64_t packed_bytes = cursor.read<uint32_t>("zip directory entry");
  entry.data_bytes = cursor.read<uint32_t>("zip directory entry");
  auto name_bytes = cursor.read<uint16_t>("zip directory entry");
  auto extra_bytes = cursor.read<uint16_t>("zip directory entry");
  auto comment_bytes = cursor.read<uint16_t>("zip directory entry");
  auto disk = cursor.read<uint16_t>("zip directory entry");
  cursor.take(6, "zip directory entry: attributes");
  entry.begin = cursor.read<uint32_t>("zip directory entry");
  entry.name = cursor.take_text(name_bytes, "name of a zip entry");
  std::string where = where_of(cursor.path(), entry);
  widen_fields(cursor.take(extra_bytes, "extra blocks of a zip entry"),
               {&entry.data_bytes, &packed_bytes, &entry.begin}, where);
  cursor.take(comment_bytes, "comment of a zip entry");

  if ((entry.flags & ~(kFlagDescriptor | kFlagUtf8)) != 0)
    throw FormatError(where, fmt::format("flags {:04x}: encrypted or otherwise not plainly stored", entry.flags));
  if (method != 0 || packed_bytes != entry.data_bytes)
    throw FormatError(
        where,
        fmt::format(
            "is compressed (method {}): a zip archive, but no checkpoint, for torch.save stores entries as they are",
            method));
  if (disk != 0) throw FormatError(where, "lies on another disk of a split archive");
  return entry;
}

// Behind the data of a streamed entry: signature, CRC-32, and both sizes in 4 bytes each or, with zip64, in 8.
void read_descriptor(ByteCursor& cursor, const Entry& entry) {
  expect_signature(cursor, kDescriptorSignature, "data descriptor");
  auto crc = cursor.read<uint32_t>("data descriptor");
  uint64_t sizes_at = cursor.position();
  bool agrees = cursor.read<uint32_t>("data descriptor") == entry.data_bytes &&
                cursor.read<uint32_t>("data descriptor") == entry.data_bytes;
  if (!agrees) {
    cursor.seek(sizes_at, "data descriptor");
    agrees = cursor.read<uint64_t>("data descriptor") == entry.data_bytes &&
             cursor.read<uint64_t>("data descriptor") == entry.data_bytes;
  }
  if (crc != entry.crc32 || !agrees)
    throw FormatError(where_of(cursor.path(), entry), "its data descriptor and the zip directory disagree");
}

// Checks the local header against the directory and finds the data. `entries` ends where the directory starts.
void read_local_header(Bytes entries, const std::string& path, Entry& entry) {
  ByteCursor cursor(entries, path);
  cursor.seek(entry.begin, "local header of zip entry " + quoted_name(entry.name));
  expect_signature(cursor, kLocalSignature, "local header");
  cursor.take(2, "local header: version");
  auto flags = cursor.read<uint16_t>("local header");
  auto method = cursor.read<uint16_t>("local header");
  cursor.take(4, "local header: time and date");
  auto crc = cursor.read<uint32_t>("local header");
  uint64_t packed_bytes = cursor.read<uint32_t>("local header");
  uint64_t data_bytes = cursor.read<uint32_t>("local header");
  auto name_bytes = cursor.read<uint16_t>("local header");
  auto extra_bytes = cursor.read<uint16_t>("local header");
  std::string_view name = cursor.take_text(name_bytes, "local header: name");
  widen_fields(cursor.take(extra_bytes, "local header: extra blocks"), {&data_bytes, &packed_bytes},
               where_of(path, entry));

  bool streamed = (entry.flags & kFlagDescriptor) != 0;  // the local header may leave what the descriptor holds at zero
  auto agrees = [&](uint64_t local, uint64_t central) { return local == central || (streamed && local == 0); };
  if (flags != entry.flags || method != 0 || name != entry.name || !agrees(crc, entry.crc32) ||
      !agrees(data_bytes, entry.data_bytes) || !agrees(packed_bytes, entry.data_bytes))
    throw FormatError(where_of(cursor.path(), entry), "its local header and the zip directory disagree");
  entry.data = cursor.take(entry.data_bytes, "data of zip entry " + quoted_name(entry.name));
  if (streamed) read_descriptor(cursor, entry);
  entry.end = cursor.position();
}

// The directory's entries, ascending by where they lie.
std::vector<Entry> read_central_headers(Bytes file, const std::string& path, const Directory& directory) {
  ByteCursor cursor(file.subspan(directory.offset, directory.size_bytes), path, directory.offset);
  std::vector<Entry> entries;
  entries.reserve(directory.entry_count);
  for (uint64_t i = 0; i < directory.entry_count; ++i) entries.push_back(read_central_header(cursor));
  if (!cursor.at_end())
    throw FormatError(path, fmt::format("{} B behind the last entry of the zip directory", cursor.remaining()));
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.begin < b.begin; });
  return entries;
}

}  // namespace

ZipArchive::ZipArchive(Bytes file, const std::string& path) : path_(path) {
  Directory directory = read_directory(file, path);
  uint64_t free_from = 0;  // every byte is read as part of one entry at most, so hostile overlaps cost no time
  std::string_view previous;
  for (Entry& entry : read_central_headers(file, path, directory)) {
    if (entry.begin < free_from)
      throw FormatError(where_of(path, entry), "overlaps zip entry " + quoted_name(previous));
    read_local_header(file.first(directory.offset), path, entry);
    free_from = entry.end;
    previous = entry.name;
    if (!entries_.try_emplace(entry.name, ZipEntry{entry.data, entry.crc32}).second)
      throw FormatError(where_of(path, entry), "appears twice");
  }
}

Bytes ZipArchive::read(std::string_view name, CrcCheck check) const {
  auto found = entries_.find(name);
  if (found == entries_.end()) throw FormatError(path_, "zip entry " + quoted_name(name) + " is missing");
  const ZipEntry& entry = found->second;
  if (check == CrcCheck::kVerify) {
    uint64_t crc = ::crc32_z(0, reinterpret_cast<const unsigned char*>(entry.bytes.data()), entry.bytes.size());
    if (crc != entry.crc32)
      throw FormatError(path_, fmt::format("zip entry {}: CRC-32 of its data is {:08x}, the archive says {:08x}: the "
                                           "file is damaged, or was saved without checksums",
                                           quoted_name(name), crc, entry.crc32));
  }
  return entry.bytes;
}

}  // namespace thimble
