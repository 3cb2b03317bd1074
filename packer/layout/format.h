// format.h: the numbers of the artifact container (.thmb): magic, ids, field widths and every limit a reader enforces.
// docs/reference/format.md is the prose. Changing a value here changes the format.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace thimble {

constexpr std::array<uint8_t, 8> kMagic = {0x89, 'T', 'H', 'M', 'B', '\r', '\n', 0x1A};
// Version 2 adds stepped tensors (SteppedCodes), version 3 those in NVFP4 (Nvfp4Codes); files without them keep the
// version they had.
constexpr uint32_t kFormatVersion = 3;

// Prefix: magic, u32 version, u32 section count, u64 file length, u64 checksum of all other bytes.
constexpr size_t kVersionOffset = kMagic.size();
constexpr size_t kSectionCountOffset = kVersionOffset + sizeof(uint32_t);
constexpr size_t kFileLengthOffset = kSectionCountOffset + sizeof(uint32_t);
constexpr size_t kFileChecksumOffset = kFileLengthOffset + sizeof(uint64_t);
constexpr size_t kPrefixBytes = kFileChecksumOffset + sizeof(uint64_t);
static_assert(kPrefixBytes == 32);

// Table entry: u8 kind, u8 codec, u8 layout, u8 zero, u32 raw bytes, u32 stored bytes, u64 checksum of the stored
// bytes.
constexpr size_t kSectionEntryBytes = 4 * sizeof(uint8_t) + 2 * sizeof(uint32_t) + sizeof(uint64_t);
static_assert(kSectionEntryBytes == 20);

// In this order in the file: one header, then all codes, then all scales, then all raw tensors.
enum class SectionKind : uint8_t { kHeader = 0, kCodes = 1, kScales = 2, kRaw = 3 };

enum class CodecId : uint8_t { kNone = 0, kBrotli = 1, kZstd = 2, kXz = 3, kRans = 4 };

enum class LayoutId : uint8_t {
  kPlain = 0,         // the elements in order; codes as int8, row-major
  kColumns = 1,       // codes as int8, column-major
  kBits = 2,          // codes + max_code in code_bits(max_code) bits each, row-major, lowest bit first
  kDigits = 3,        // codes + max_code as base 2 * max_code + 1 digits, as many as fit in each byte, row-major
  kDigitColumns = 4,  // the same, column-major
  kPlanes = 5,        // byte 0 of every element, then byte 1 of every element, ...
};

// By their numbers in a file; a reader knows no others.
constexpr std::array<std::string_view, 4> kSectionKindNames = {"header", "codes", "scales", "raw"};
constexpr std::array<std::string_view, 5> kCodecNames = {"none", "brotli", "zstd", "xz", "rans"};  // as options do
constexpr std::array<std::string_view, 6> kLayoutNames = {"plain",  "columns",       "bits",
                                                          "digits", "digit-columns", "planes"};
static_assert(kSectionKindNames.size() == static_cast<size_t>(SectionKind::kRaw) + 1);
static_assert(kCodecNames.size() == static_cast<size_t>(CodecId::kRans) + 1);
static_assert(kLayoutNames.size() == static_cast<size_t>(LayoutId::kPlanes) + 1);

constexpr std::string_view section_kind_name(SectionKind kind) { return kSectionKindNames[static_cast<size_t>(kind)]; }
constexpr std::string_view codec_name(CodecId codec) { return kCodecNames[static_cast<size_t>(codec)]; }
constexpr std::string_view layout_name(LayoutId layout) { return kLayoutNames[static_cast<size_t>(layout)]; }

// Streams of elements are cut into sections of at most this many bytes, so that sections compress in parallel.
constexpr uint64_t kMaxSectionContentBytes = uint64_t{4} << 20;
static_assert(kMaxSectionContentBytes % 8 == 0, "a cut never divides an element");
static_assert(kMaxSectionContentBytes <= UINT32_MAX, "sizes in the table are 32-bit");
// Stepped codes, of 4 bytes, are cut into whole trellis segments of as many codes as kMaxSectionContentBytes has bytes,
// or one segment where that is more, up to this many bytes.
constexpr uint64_t kMaxSteppedSectionBytes = uint64_t{64} << 20;

constexpr uint64_t kMaxHeaderBytes = uint64_t{4} << 20;  // uncompressed JSON
constexpr uint32_t kMaxSections = 1 << 20;
constexpr size_t kMaxTensors = 1 << 16;
constexpr size_t kMaxNameBytes = 256;
constexpr size_t kMaxRank = 8;
constexpr int kMaxCode = 127;

// A model may be at most kExpansionFloorBytes + kMaxExpansion x the file's length when decoded. Constant tensors
// compress without bound, so a ratio is the only thing that keeps a small hostile file from filling the memory; real
// weights take more than half a bit each, a ratio of 16.
constexpr uint64_t kExpansionFloorBytes = uint64_t{256} << 20;
constexpr uint64_t kMaxExpansion = 64;

// Largest zstd and Brotli window and xz dictionary, as a power of two: a section fits in it, but for stepped codes.
constexpr int kCodecWindowLog = 22;
static_assert((uint64_t{1} << kCodecWindowLog) >= kMaxSectionContentBytes);

}  // namespace thimble
