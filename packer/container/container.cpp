// container.cpp: reading and writing the container.
#include "packer/container/container.h"

#include <algorithm>

#include "runtime/base/count_text.h"
#include "runtime/base/file_kind.h"
#include "runtime/base/hash.h"

namespace thimble {
namespace {

void check_magic(ByteCursor& cursor) {
  Bytes magic = cursor.take(kMagic.size(), "magic");
  if (!std::ranges::equal(magic, std::as_bytes(std::span(kMagic))))
    throw FormatError(cursor.path(), "not a thimble artifact: wrong magic");
}

SectionEntry read_entry(ByteCursor& cursor, size_t index) {
  const std::string object = "section " + std::to_string(index);
  auto kind = cursor.read<uint8_t>(object);
  auto codec = cursor.read<uint8_t>(object);
  auto layout = cursor.read<uint8_t>(object);
  auto reserved = cursor.read<uint8_t>(object);
  auto reject = [&](std::string_view field, uint8_t value) {
    throw FormatError(cursor.path(), object + ": " + std::string(field) + " " + std::to_string(value) + " is unknown");
  };
  if (!section_kind_from(kind)) reject("kind", kind);
  if (codec >= all_codecs().size()) reject("codec", codec);
  if (!layout_from(layout)) reject("layout", layout);
  if (reserved != 0) reject("reserved byte", reserved);
  SectionEntry entry{*section_kind_from(kind), static_cast<CodecId>(codec), *layout_from(layout)};
  entry.raw_bytes = cursor.read<uint32_t>(object);
  entry.stored_bytes = cursor.read<uint32_t>(object);
  entry.checksum = cursor.read<uint64_t>(object);
  const uint64_t allowed = entry.kind == SectionKind::kCodes ? kMaxSteppedSectionBytes : kMaxSectionContentBytes;
  if (entry.raw_bytes > allowed)
    throw FormatError(cursor.path(), object + ": " + std::to_string(entry.raw_bytes) +
                                         " B when decompressed, at most " + std::to_string(allowed) + " B allowed");
  if ((entry.kind == SectionKind::kHeader) != (index == 0))
    throw FormatError(cursor.path(), object + ": the header must be section 0 and nowhere else");
  return entry;
}

}  // namespace

std::string section_where(const std::string& path, size_t index, SectionKind kind) {
  return path + ": section " + std::to_string(index) + " (" + std::string(section_kind_name(kind)) + ")";
}

uint64_t file_checksum(Bytes file) {
  return Hasher().add(file.first(kFileChecksumOffset)).add(file.subspan(kPrefixBytes)).digest();
}

StoredContainer read_container(Bytes file, const std::string& path) {
  refuse_other_kinds(file, FileUse::kArtifact, path);
  ByteCursor cursor(file, path);
  check_magic(cursor);
  auto version = cursor.read<uint32_t>("format version");
  if (version < 1 || version > kFormatVersion)
    throw FormatError(path, "format version " + std::to_string(version) + ", this program reads versions 1 to " +
                                std::to_string(kFormatVersion));
  auto section_count = cursor.read<uint32_t>("section count");
  auto length = cursor.read<uint64_t>("file length");
  auto checksum = cursor.read<uint64_t>("file checksum");
  if (length != file.size())
    throw FormatError(path, "the file has " + std::to_string(file.size()) + " B, its prefix declares " +
                                std::to_string(length) + " B");
  if (checksum != file_checksum(file))
    throw FormatError(
        path, "checksum " + hex64(file_checksum(file)) + ", expected " + hex64(checksum) + ": the file is damaged");
  if (section_count < 1 || section_count > kMaxSections || section_count > cursor.remaining() / kSectionEntryBytes)
    throw FormatError(path, counted(section_count, "section") + " declared, 1 to " + std::to_string(kMaxSections) +
                                " allowed and the table must fit in the file");
  StoredContainer container{version, {}};
  std::vector<StoredSection>& sections = container.sections;
  for (size_t i = 0; i < section_count; ++i) sections.push_back({read_entry(cursor, i), {}});
  for (size_t i = 0; i < section_count; ++i) {
    const std::string object = "section " + std::to_string(i);
    sections[i].stored = cursor.take(sections[i].entry.stored_bytes, object);
    if (xxh3(sections[i].stored) != sections[i].entry.checksum)
      throw FormatError(path, object + ": wrong checksum, the section is damaged");
  }
  if (!cursor.at_end()) throw FormatError(path, std::to_string(cursor.remaining()) + " B after the last section");
  return container;
}

uint64_t container_bytes(const std::vector<std::shared_ptr<const PackedSection>>& sections) {
  uint64_t bytes = kPrefixBytes + sections.size() * kSectionEntryBytes;
  for (const auto& section : sections) bytes += section->stored.size();
  return bytes;
}

ByteVector write_container(uint32_t version, const std::vector<std::shared_ptr<const PackedSection>>& sections) {
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
  return codec_of(section.entry.codec).decompress(section.stored, section.entry.raw_bytes, shape, where);
}

}  // namespace thimble
