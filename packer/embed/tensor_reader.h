// tensor_reader.h: an artifact of which one tensor at a time is decoded into memory that is there already. What
// packer/artifact.h does for the whole of a file in memory, this does for a phone or a browser: without threads of its
// own, and with a bound on memory that the front of the file gives.
// R = rows (first dimension), K = columns (all others together), B = row scales of a row
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "packer/container/artifact_reader.h"
#include "packer/embed/artifact_bytes.h"
#include "packer/embed/levels.h"

namespace thimble {

// Some consecutive content bytes of a tensor: of its codes, of its scales or of its elements.
struct TensorPiece {
  size_t section = 0;
  uint64_t section_byte = 0;  // where they begin in the section's content
  uint64_t first_byte = 0, bytes = 0;
};

// Where a tensor lies in the file.
struct TensorPlace {
  std::vector<TensorPiece> codes;              // ascending, as those below
  std::vector<TensorPiece> others;             // of the scales, or of a raw tensor's elements
  uint64_t codes_end = 0;                      // the first bytes of the file in which all codes lie
  uint64_t end = 0;                            // and everything
  uint64_t codes_bytes = 0, others_bytes = 0;  // stored; of sections that several tensors share by length
};

// Every function throws FormatError when the file breaks a rule of the format, ReadError when a read fails.
// Those that are const may be called from several threads at once when the file may be read so.
class TensorReader {
 public:
  // Reads and checks the front of the file, and the checksum of its header. `path`: its name in errors.
  TensorReader(ArtifactBytes file, std::string path);

  const ArtifactHeader& header() const { return plan_.header; }
  const TensorEntry& tensor(size_t index) const { return plan_.header.tensors[index]; }
  const TensorPlace& place(size_t index) const { return places_[index]; }
  // B of a tensor with codes.
  uint64_t scale_blocks(size_t index) const;
  const std::string& path() const { return path_; }
  const ArtifactBytes& file() const { return file_; }
  uint64_t file_checksum() const { return checksum_; }

  // Most bytes that decoding any one tensor takes, besides where it goes and what this object has.
  uint64_t decode_memory() const { return decode_memory_; }

  // Levels of a tensor with codes, section by section: value(r, k) = level(r, k) * row scale * column scale.
  void decode_levels(size_t index, LevelSink& sink) const;
  // Of its levels' magnitudes, or a little more.
  uint32_t largest_level(size_t index) const;
  std::vector<float> row_scales(size_t index, uint64_t first_row, uint64_t rows) const;  // (rows, B)
  std::vector<float> column_scales(size_t index) const;                                  // (K)

  // Elements of a tensor without codes as they are stored, little-endian: elements * element_bytes() of them.
  void copy_elements(size_t index, std::span<std::byte> to) const { copy_others(index, 0, to); }
  // float32 values of a tensor, in any order: take(number of the first, values).
  using TakeValues = std::function<void(uint64_t first, std::span<const float> values)>;
  void decode_values(size_t index, const TakeValues& take) const;

 private:
  void find_places();
  uint64_t memory_of(size_t index) const;
  uint64_t load_memory(size_t section) const;
  std::string section_name(size_t section) const { return section_where(path_, section, entries_[section].kind); }
  Bytes read_section(size_t section, ByteVector& room) const;
  // Codes of one piece: take(number of the first, codes).
  using TakeCodes = std::function<void(uint64_t first, std::span<const int32_t> codes)>;
  void decode_codes(const TensorPiece& piece, const TakeCodes& take) const;
  // Bytes of a tensor's scales or elements.
  void copy_others(size_t index, uint64_t first_byte, std::span<std::byte> to) const;
  // A section of scales or elements, and its content.
  struct Content {
    size_t section = 0;  // 0: none, that is the header's
    ByteVector room;
    Bytes bytes;
  };
  void load(size_t section, Content& content) const;

  ArtifactBytes file_;
  std::string path_;
  uint64_t checksum_ = 0;
  std::vector<SectionEntry> entries_;
  std::vector<uint64_t> offsets_;  // of sections in the file, and where the last one ends
  ArtifactPlan plan_;
  std::vector<TensorPlace> places_;
  uint64_t decode_memory_ = 0;

  // The section that was read last: they are small, and tensors share them. Who finds it in use by another thread does
  // without.
  mutable Content last_;
  mutable std::atomic_flag last_in_use_ = ATOMIC_FLAG_INIT;
};

}  // namespace thimble
