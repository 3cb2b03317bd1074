// container.cpp: reading and writing the container.
#include "packer/container/container.h"

#include <algorithm>

#include "runtime/base/count_text.h"
#include "runtime/base/format_error.h"
#include "runtime/base/hash.h"

namespace thimble {
namespace {

struct Prefix {
  uint32_t version = 0, sections = 0;
  uint64_t length = 0, checksum = 0;
};

Prefix read_prefix(ByteCursor& cursor) {
  const std::string& path = cursor.path();
  if (!std::ranges::equal(cursor.take(kMagic.size(), "magic"), std::as_bytes(std::span(kMagic))))
    throw_format_error(path, "not a thimble artifact: wrong magic");
  Prefix prefix;
  prefix.version = cursor.read<uint32_t>("format version");
  if (prefix.version < 1 || prefix.version > kFormatVersion)
    throw_format_error(path, "format version {}, this program reads versions 1 to {}", prefix.version, kFormatVersion);
  prefix.sections = cursor.read<uint32_t>("section count");
  prefix.length = cursor.read<uint64_t>("file length");
  prefix.checksum = cursor.read<uint64_t>("file checksum");
  const uint64_t room = std::max<uint64_t>(prefix.length, kPrefixBytes) - kPrefixBytes;
  if (prefix.sections < 1 || prefix.sections > kMaxSections || prefix.sections > room / kSectionEntryBytes)
    throw_format_error(path, "{} declared, 1 to {} allowed and the table must fit in the file",
                       counted(prefix.sections, "section"), kMaxSections);
  return prefix;
}

SectionEntry read_entry(ByteCursor& cursor, size_t index) {
  const std::string object = fill_text("section {}", index);
  const auto reject = [&](const std::string& what) { throw FormatError(cursor.path(), object + ": " + what); };
  const auto read_known = [&](std::string_view field, size_t known) {
    const auto value = cursor.read<uint8_t>(object);
    if (value >= known) reject(fill_text("{} {} is unknown", field, value));
    return value;
  };
  SectionEntry entry;
  entry.kind = static_cast<SectionKind>(read_known("kind", kSectionKindNames.size()));
  entry.codec = static_cast<CodecId>(read_known("codec", kCodecNames.size()));
  entry.layout = static_cast<LayoutId>(read_known("layout", kLayoutNames.size()));
  read_known("reserved byte", 1);
  entry.raw_bytes = cursor.read<uint32_t>(object);
  entry.stored_bytes = cursor.read<uint32_t>(object);
  entry.checksum = cursor.read<uint64_t>(object);
  const uint64_t allowed = entry.kind == SectionKind::kCodes ? kMaxSteppedSectionBytes : kMaxSectionContentBytes;
  if (entry.raw_bytes > allowed)
    reject(fill_text("{} B when decompressed, at most {} B allowed", entry.raw_bytes, allowed));
  if ((entry.kind == SectionKind::kHeader) != (index == 0)) reject("the header must be section 0 and nowhere else");
  return entry;
}

}  // namespace

std::string section_where(const std::string& path, size_t index, SectionKind kind) {
  return fill_text("{}: section {} ({})", path, index, section_kind_name(kind));
}

uint64_t file_checksum(Bytes file) {
  return Hasher().add(file.first(kFileChecksumOffset)).add(file.subspan(kPrefixBytes)).digest();
}

uint64_t front_bytes(Bytes first, const std::string& path) {
  ByteCursor cursor(first, path);
  const Prefix prefix = read_prefix(cursor);
  return kPrefixBytes + uint64_t{prefix.sections} * kSectionEntryBytes + read_entry(cursor, 0).stored_bytes;
}

ContainerTable read_table(Bytes front, uint64_t file_bytes, const std::string& path) {
  ByteCursor cursor(front, path);
  const Prefix prefix = read_prefix(cursor);
  if (prefix.length != file_bytes)
    throw_format_error(path, "the file has {} B, its prefix declares {} B", file_bytes, prefix.length);
  ContainerTable table{prefix.version, prefix.checksum, {}};
  for (size_t i = 0; i < prefix.sections; ++i) table.entries.push_back(read_entry(cursor, i));
  return table;
}

void check_file_checksum(uint64_t found, uint64_t expected, const std::string& path) {
  if (found != expected)
    throw_format_error(path, "checksum {}, expected {}: the file is damaged", hex64(found), hex64(expected));
}

void check_section_checksum(Bytes stored, const SectionEntry& entry, size_t index, const std::string& path) {
  if (xxh3(stored) != entry.checksum)
    throw_format_error(path, "section {}: wrong checksum, the section is damaged", index);
}

StoredContainer read_container(Bytes file, const std::string& path) {
  const ContainerTable table = read_table(file, file.size(), path);
  check_file_checksum(file_checksum(file), table.checksum, path);
  ByteCursor cursor(file, path);
  cursor.seek(kPrefixBytes + table.entries.size() * kSectionEntryBytes, "sections");
  StoredContainer container{table.version, {}};
  for (size_t i = 0; i < table.entries.size(); ++i) {
    const SectionEntry& entry = table.entries[i];
    container.sections.push_back({entry, cursor.take(entry.stored_bytes, fill_text("section {}", i))});
    check_section_checksum(container.sections.back().stored, entry, i, path);
  }
  if (!cursor.at_end()) throw_format_error(path, "{} B after the last section", cursor.remaining());
  return container;
}

uint64_t container_bytes(const PackedSections& sections) {
  uint64_t bytes = kPrefixBytes + sections.size() * kSectionEntryBytes;
  for (const auto& section : sections) bytes += section->stored.size();
  return bytes;
}

ByteVector write_container(uint32_t version, const PackedSections& sections) {
  const uint64_t file_bytes = container_bytes(sections);
  ByteVector file;
  file.reserve(file_bytes);
  for (uint8_t byte : kMagic) append_little_endian(file, byte);
  append_little_endian(file, version);
  append_little_endian(file, static_cast<uint32_t>(sections.size()));
  append_little_endian(file, file_bytes);
  append_little_endian(file, uint64_t{0});  // the checksum, below
  for (const auto& section : sections) {
    append_little_endian(file, static_cast<uint8_t>(section->entry.kind));
    append_little_endian(file, static_cast<uint8_t>(section->entry.codec));
    append_little_endian(file, static_cast<uint8_t>(section->entry.layout));
    append_little_endian(file, uint8_t{0});
    append_little_endian(file, section->entry.raw_bytes);
    append_little_endian(file, section->entry.stored_bytes);
    append_little_endian(file, section->entry.checksum);
  }
  for (const auto& section : sections) append_bytes(file, section->stored);
  ByteVector checksum;
  append_little_endian(checksum, file_checksum(file));
  std::ranges::copy(checksum, file.begin() + kFileChecksumOffset);
  return file;
}

ByteVector decompress_section(const StoredSection& section, const ContentShape& shape, const std::string& where) {
  return decompress(section.entry.codec, section.stored, section.entry.raw_bytes, shape, where);
}

}  // namespace thimble
