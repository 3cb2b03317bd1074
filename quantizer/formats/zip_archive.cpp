// zip_archive.cpp: the zip structures of zip_archive.h (PKWARE APPNOTE 6.3, sections 4.3 and 4.5.3).
#include "quantizer/formats/zip_archive.h"

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

// One entry as its header in the central directory or the local one tells it.
struct Entry {
  std::string_view name;
  uint16_t flags = 0, method = 0, disk = 0;
  uint32_t crc32 = 0;
  uint64_t packed_bytes = 0, data_bytes = 0;
  uint64_t begin = 0;  // of the local header; only the directory says it
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

void require_one_disk(bool is_one, const std::string& path) {
  if (!is_one) throw FormatError(path, "the zip archive is split over several disks, only one is allowed");
}

// What the end record and its zip64 form say in fields of different widths.
template <typename Disk, typename Count, typename Size>
Directory read_end_fields(ByteCursor& cursor, const char* object) {
  const bool is_first_disk = (cursor.read<Disk>(object) | cursor.read<Disk>(object)) == 0;  // this one, the directory's
  const auto entries_here = cursor.read<Count>(object);
  Directory directory;
  directory.entry_count = cursor.read<Count>(object);
  directory.size_bytes = cursor.read<Size>(object);
  directory.offset = cursor.read<Size>(object);
  require_one_disk(is_first_disk && entries_here == directory.entry_count, cursor.path());
  return directory;
}

// The zip64 end record, whose locator lies just before the plain end record. Returns where the record starts.
uint64_t read_zip64_end(Bytes file, uint64_t locator_at, const std::string& path, Directory& directory) {
  ByteCursor cursor(file, path);
  cursor.seek(locator_at, "zip64 locator");
  expect_signature(cursor, kZip64LocatorSignature, "zip64 locator");
  const auto locator_disk = cursor.read<uint32_t>("zip64 locator");
  const auto record_at = cursor.read<uint64_t>("zip64 locator");
  require_one_disk(locator_disk == 0 && cursor.read<uint32_t>("zip64 locator") <= 1, path);

  cursor = ByteCursor(file.first(locator_at), path);
  cursor.seek(record_at, "zip64 end record");
  expect_signature(cursor, kZip64EndSignature, "zip64 end record");
  const auto record_bytes = cursor.read<uint64_t>("zip64 end record");
  if (record_bytes != cursor.remaining())
    throw FormatError(path, fmt::format("zip64 end record of {} B, must be {} B to reach its locator", record_bytes,
                                        cursor.remaining()));
  cursor.take(4, "zip64 end record: versions");
  const auto wide = read_end_fields<uint32_t, uint64_t, uint64_t>(cursor, "zip64 end record");
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
  auto directory = read_end_fields<uint16_t, uint16_t, uint32_t>(cursor, "zip end record");
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

// Reads what the two kinds of headers share in the same order, and of the directory's what it has in between.
Entry read_entry_header(ByteCursor& cursor, bool is_central) {
  const char* object = is_central ? "zip directory entry" : "local header";
  expect_signature(cursor, is_central ? kCentralSignature : kLocalSignature, object);
  Entry entry;
  cursor.take(is_central ? 4 : 2, object);  // versions
  entry.flags = cursor.read<uint16_t>(object);
  entry.method = cursor.read<uint16_t>(object);
  cursor.take(4, object);  // time and date
  entry.crc32 = cursor.read<uint32_t>(object);
  entry.packed_bytes = cursor.read<uint32_t>(object);
  entry.data_bytes = cursor.read<uint32_t>(object);
  const auto name_bytes = cursor.read<uint16_t>(object), extra_bytes = cursor.read<uint16_t>(object);
  uint16_t comment_bytes = 0;
  if (is_central) {
    comment_bytes = cursor.read<uint16_t>(object);
    entry.disk = cursor.read<uint16_t>(object);
    cursor.take(6, object);  // attributes
    entry.begin = cursor.read<uint32_t>(object);
  }
  entry.name = cursor.take_text(name_bytes, "name of a zip entry");
  widen_fields(cursor.take(extra_bytes, "extra blocks of a zip entry"),
               {&entry.data_bytes, &entry.packed_bytes, &entry.begin}, where_of(cursor.path(), entry));
  cursor.take(comment_bytes, "comment of a zip entry");
  return entry;
}

void require_plainly_stored(const Entry& entry, const std::string& where) {
  if ((entry.flags & ~(kFlagDescriptor | kFlagUtf8)) != 0)
    throw FormatError(where, fmt::format("flags {:04x}: encrypted or otherwise not plainly stored", entry.flags));
  if (entry.method != 0 || entry.packed_bytes != entry.data_bytes)
    throw FormatError(
        where,
        fmt::format(
            "is compressed (method {}): a zip archive, but no checkpoint, for torch.save stores entries as they are",
            entry.method));
  if (entry.disk != 0) throw FormatError(where, "lies on another disk of a split archive");
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

// The data behind a local header, which must agree with the directory's; leaves the cursor behind the whole entry.
Bytes read_local_entry(ByteCursor& cursor, const Entry& entry) {
  cursor.seek(entry.begin, "local header of zip entry " + quoted_name(entry.name));
  const Entry local = read_entry_header(cursor, false);
  bool streamed = (entry.flags & kFlagDescriptor) != 0;  // the local header may leave what the descriptor holds at zero
  auto agrees = [&](uint64_t here, uint64_t central) { return here == central || (streamed && here == 0); };
  if (local.flags != entry.flags || local.method != 0 || local.name != entry.name ||
      !agrees(local.crc32, entry.crc32) || !agrees(local.data_bytes, entry.data_bytes) ||
      !agrees(local.packed_bytes, entry.data_bytes))
    throw FormatError(where_of(cursor.path(), entry), "its local header and the zip directory disagree");
  const Bytes data = cursor.take(entry.data_bytes, "data of zip entry " + quoted_name(entry.name));
  if (streamed) read_descriptor(cursor, entry);
  return data;
}

// The directory's entries, ascending by where they lie.
std::vector<Entry> read_central_headers(Bytes file, const std::string& path, const Directory& directory) {
  ByteCursor cursor(file.subspan(directory.offset, directory.size_bytes), path, directory.offset);
  std::vector<Entry> entries;
  entries.reserve(directory.entry_count);
  for (uint64_t i = 0; i < directory.entry_count; ++i) {
    entries.push_back(read_entry_header(cursor, true));
    require_plainly_stored(entries.back(), where_of(path, entries.back()));
  }
  if (!cursor.at_end())
    throw FormatError(path, fmt::format("{} B behind the last entry of the zip directory", cursor.remaining()));
  std::ranges::sort(entries, {}, &Entry::begin);
  return entries;
}

}  // namespace

ZipArchive::ZipArchive(Bytes file, const std::string& path, CrcCheck check) : path_(path), check_(check) {
  Directory directory = read_directory(file, path);
  ByteCursor cursor(file.first(directory.offset), path);
  std::string_view previous;
  for (const Entry& entry : read_central_headers(file, path, directory)) {
    // Every byte is read as part of one entry at most, so hostile overlaps cost no time.
    if (entry.begin < cursor.position())
      throw FormatError(where_of(path, entry), "overlaps zip entry " + quoted_name(previous));
    const Bytes data = read_local_entry(cursor, entry);
    previous = entry.name;
    if (!entries_.try_emplace(entry.name, ZipEntry{data, entry.crc32}).second)
      throw FormatError(where_of(path, entry), "appears twice");
  }
}

Bytes ZipArchive::read(std::string_view name) {
  auto found = entries_.find(name);
  if (found == entries_.end()) throw FormatError(path_, "zip entry " + quoted_name(name) + " is missing");
  ZipEntry& entry = found->second;
  if (check_ == CrcCheck::kVerify && !entry.is_verified) {
    uint64_t crc = ::crc32_z(0, reinterpret_cast<const unsigned char*>(entry.bytes.data()), entry.bytes.size());
    if (crc != entry.crc32)
      throw FormatError(path_, fmt::format("zip entry {}: CRC-32 of its data is {:08x}, the archive says {:08x}: the "
                                           "file is damaged, or was saved without checksums",
                                           quoted_name(name), crc, entry.crc32));
    entry.is_verified = true;
  }
  return entry.bytes;
}

}  // namespace thimble
