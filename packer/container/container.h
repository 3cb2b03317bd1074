// container.h: the outer structure of an artifact: prefix, section table, sections; lengths and checksums.
// Knows nothing of tensors. Sections are views into the file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "packer/codecs/decompress.h"
#include "packer/layout/format.h"
#include "runtime/base/byte_cursor.h"

namespace thimble {

struct SectionEntry {
  SectionKind kind = SectionKind::kHeader;
  CodecId codec = CodecId::kNone;
  LayoutId layout = LayoutId::kPlain;
  uint32_t raw_bytes = 0;     // laid out, before compression
  uint32_t stored_bytes = 0;  // in the file
  uint64_t checksum = 0;      // XXH3-64 of the stored bytes
};

// A section ready to be written.
struct PackedSection {
  SectionEntry entry;
  ByteVector stored;
};

using PackedSections = std::vector<std::shared_ptr<const PackedSection>>;

struct StoredSection {
  SectionEntry entry;
  Bytes stored;
};

struct StoredContainer {
  uint32_t version = 0;
  std::vector<StoredSection> sections;
};

// What stands before the sections.
struct ContainerTable {
  uint32_t version = 0;
  uint64_t checksum = 0;  // of the file
  std::vector<SectionEntry> entries;
};

// Where the header section of a file with this beginning ends: magic, version and the first entry of the table. Of
// fewer than kLeastFrontBytes, and whatever can't begin an artifact: FormatError(path, ...).
constexpr size_t kLeastFrontBytes = kPrefixBytes + kSectionEntryBytes;
uint64_t front_bytes(Bytes first, const std::string& path);

// Of a file of `file_bytes`, whose beginning up to the table's end at least is `front`. Checks magic, version and
// length, ids and sizes within limits; no checksum. Throws FormatError(path, ...). At least one section.
ContainerTable read_table(Bytes front, uint64_t file_bytes, const std::string& path);

// FormatErrors(path) unless the sums agree; unless the stored bytes of section `index` have that of its entry.
void check_file_checksum(uint64_t found, uint64_t expected, const std::string& path);
void check_section_checksum(Bytes stored, const SectionEntry& entry, size_t index, const std::string& path);

// Checks everything that can be checked without decompressing: magic, version, length, both levels of checksums, known
// ids, sizes within limits, no byte missing or left over. Throws FormatError(path, ...). At least one section.
StoredContainer read_container(Bytes file, const std::string& path);

// The bytes of the file. Sections in the order given, the header first.
ByteVector write_container(uint32_t version, const PackedSections& sections);

// Length in bytes of the file that write_container() would give.
uint64_t container_bytes(const PackedSections& sections);

// XXH3-64 of all bytes but the checksum field itself. file.size() >= kPrefixBytes.
uint64_t file_checksum(Bytes file);

// Decompresses one section, whose contents have this shape. The codec must take it.
ByteVector decompress_section(const StoredSection& section, const ContentShape& shape, const std::string& where);

// "model.thmb: section 3 (codes)", for errors.
std::string section_where(const std::string& path, size_t index, SectionKind kind);

}  // namespace thimble
