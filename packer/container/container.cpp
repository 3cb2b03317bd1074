// container.cpp: reading and writing the container.
#include "packer/container/container.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/count_text.h"
#include "runtime/base/file_kind.h"
#include "runtime/base/hash.h"

namespace thimble {
namespace {

SectionEntry read_entry(ByteCursor& cursor, size_t index) {
  const std::string object = fmt::format("section {}", index);
  const auto reject = [&](const std::string& what) { throw FormatError(cursor.path(), object + ": " + what); };
  const auto read_known = [&](std::string_view field, size_t known) {
    const auto value = cursor.read<uint8_t>(object);
    if (value >= known) reject(fmt::format("{} {} is unknown", field, value));
    return value;
  };
  SectionEntry entry;
  entry.kind = static_cast<SectionKind>(read_known("kind", kSectionKindNames.size()));
  entry.codec = static_cast<CodecId>(read_known("codec", all_codecs().size()));
  entry.layout = static_cast<LayoutId>(read_known("layout", kLayoutNames.size()));
  read_known("reserved byte", 1);
  entry.raw_bytes = cursor.read<uint32_t>(object);
  entry.stored_bytes = cursor.read<uint32_t>(object);
  entry.checksum = cursor.read<uint64_t>(object);
  const uint64_t allowed = entry.kind == SectionKind::kCodes ? kMaxSteppedSectionBytes : kMaxSectionContentBytes;
  if (entry.raw_bytes > allowed)
    reject(fmt::format("{} B when decompressed, at most {} B allowed", entry.raw_bytes, allowed));
  if ((entry.kind == SectionKind::kHeader) != (index == 0)) reject("the header must be section 0 and nowhere else");
  return entry;
}

}  // namespace

std::string section_where(const std::string& path, size_t index, SectionKind kind) {
  return fmt::format("{}: section {} ({})", path, index, section_kind_name(kind));
}

uint64_t file_checksum(Bytes file) {
  return Hasher().add(file.first(kFileChecksumOffset)).add(file.subspan(kPrefixBytes)).digest();
}

StoredContainer read_container(Bytes file, const std::string& path) {
  refuse_other_kinds(file, FileUse::kArtifact, path);
  ByteCursor cursor(file, path);
  if (!std::ranges::equal(cursor.take(kMagic.size(), "magic"), std::as_bytes(std::span(kMagic))))
    throw FormatError(path, "not a thimble artifact: wrong magic");
  StoredContainer container{cursor.read<uint32_t>("format version"), {}};
  if (container.version < 1 || container.version > kFormatVersion)
    throw FormatError(
        path, fmt::format("format version {}, this program reads versions 1 to {}", container.version, kFormatVersion));
  const auto section_count = cursor.read<uint32_t>("section count");
  const auto length = cursor.read<uint64_t>("file length");
  const auto checksum = cursor.read<uint64_t>("file checksum");
  if (length != file.size())
    throw FormatError(path, fmt::format("the file has {} B, its prefix declares {} B", file.size(), length));
  if (const uint64_t found = file_checksum(file); checksum != found)
    throw FormatError(path,
                      fmt::format("checksum {}, expected {}: the file is damaged", hex64(found), hex64(checksum)));
  if (section_count < 1 || section_count > kMaxSections || section_count > cursor.remaining() / kSectionEntryBytes)
    throw FormatError(path, fmt::format("{} declared, 1 to {} allowed and the table must fit in the file",
                                        counted(section_count, "section"), kMaxSections));
  std::vector<StoredSection>& sections = container.sections;
  for (size_t i = 0; i < section_count; ++i) sections.push_back({read_entry(cursor, i), {}});
  for (size_t i = 0; i < section_count; ++i) {
    const std::string object = fmt::format("section {}", i);
    sections[i].stored = cursor.take(sections[i].entry.stored_bytes, object);
    if (xxh3(sections[i].stored) != sections[i].entry.checksum)
      throw FormatError(path, object + ": wrong checksum, the section is damaged");
  }
  if (!cursor.at_end()) throw FormatError(path, fmt::format("{} B after the last section", cursor.remaining()));
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
  return codec_of(section.entry.codec).decompress(section.stored, section.entry.raw_bytes, shape, where);
}

}  // namespace thimble
