// zip_archive_test.cpp: valid layouts, every structural error, and damage at every byte.
#include "quantizer/formats/zip_archive.h"

#include <gtest/gtest.h>

#include "tests/quantizer/formats/reader_asserts.h"
#include "tests/quantizer/formats/torch_file_builder.h"

namespace thimble::zip_archive_test {
namespace {

// Offsets of fields inside a local header, a directory entry and the end records.
constexpr size_t kLocalFlags = 6, kLocalMethod = 8, kLocalCrc = 14, kLocalPacked = 18, kLocalBytes = 22,
                 kLocalName = 30;
constexpr size_t kCentralFlags = 8, kCentralMethod = 10, kCentralCrc = 16, kCentralPacked = 20, kCentralBytes = 24,
                 kCentralExtra = 30, kCentralComment = 32, kCentralDisk = 34, kCentralOffset = 42, kCentralName = 46;
constexpr size_t kEndDisk = 4, kEndEntries = 10, kEndDirectoryBytes = 12, kEndDirectory = 16;
constexpr size_t kZip64RecordBytes = 4, kZip64Disk = 16, kZip64EntriesHere = 24, kZip64Directory = 48;
constexpr size_t kLocatorDisk = 4, kLocatorRecord = 8, kLocatorDisks = 16;

const std::vector<ZipPart>& sample_parts() {
  static const std::vector<ZipPart> parts = {
      {"a/data.pkl", bytes_of("first")}, {"a/data/0", bytes_of(std::string(300, 'x'))}, {"a/empty", {}}};
  return parts;
}

void expect_sample(ZipArchive archive) {
  ASSERT_EQ(archive.entries().size(), sample_parts().size());
  for (const ZipPart& part : sample_parts())
    EXPECT_EQ(as_text(archive.read(part.name)), as_text(part.data)) << part.name;
}

void expect_error(const std::string& part, const ByteVector& bytes) {
  expect_format_error(part, [&] { ZipArchive(bytes, "z.pt"); });
}

// The error after one patch of a valid archive.
template <typename T>
void expect_error_after(const std::string& part, size_t BuiltZip::*structure, size_t offset, T value) {
  BuiltZip zip = build_zip(sample_parts());
  poke(zip.bytes, zip.*structure + offset, value);
  expect_error(part, zip.bytes);
}

template <typename T>
void expect_entry_error(const std::string& part, size_t offset, T value, const ZipLayout& layout = {}) {
  BuiltZip zip = build_zip(sample_parts(), layout);
  poke(zip.bytes, zip.central["a/data/0"] + offset, value);
  expect_error(part, zip.bytes);
}

template <typename T>
void expect_local_error(const std::string& part, size_t offset, T value, const ZipLayout& layout = {}) {
  BuiltZip zip = build_zip(sample_parts(), layout);
  poke(zip.bytes, zip.local["a/data/0"] + offset, value);
  expect_error(part, zip.bytes);
}

class ZipLayoutTest : public ::testing::TestWithParam<ZipLayout> {};

TEST_P(ZipLayoutTest, ReadsEveryEntry) {
  BuiltZip zip = build_zip(sample_parts(), GetParam());
  ZipArchive archive(zip.bytes, "z.pt");
  expect_sample(archive);
  EXPECT_TRUE(archive.contains("a/empty"));
  EXPECT_FALSE(archive.contains("a/other"));
}

TEST_P(ZipLayoutTest, TruncationAtEveryByteIsAnError) {
  BuiltZip zip = build_zip(sample_parts(), GetParam());
  for (size_t size = 0; size < zip.bytes.size(); ++size)
    EXPECT_THROW(ZipArchive(Bytes(zip.bytes).first(size), "z.pt"), FormatError) << size;
}

// Checksums and the redundancy of the headers leave no byte whose change can alter what is read.
TEST_P(ZipLayoutTest, DamageAtEveryByteIsAnErrorOrHarmless) {
  const BuiltZip zip = build_zip(sample_parts(), GetParam());
  size_t harmless = 0;
  for (size_t at = 0; at < zip.bytes.size(); ++at)
    for (int mask : {0x01, 0x80, 0xff}) {
      ByteVector damaged = zip.bytes;
      damaged[at] ^= static_cast<std::byte>(mask);
      try {
        ZipArchive archive(damaged, "z.pt");
        expect_sample(archive);
        ++harmless;
      } catch (const FormatError&) {
      }
    }
  EXPECT_GT(harmless, 0u);                            // times, versions, padding
  EXPECT_LT(harmless, 3 * zip.bytes.size() * 3 / 4);  // most damage is found
}

INSTANTIATE_TEST_SUITE_P(Layouts, ZipLayoutTest,
                         ::testing::Values(ZipLayout{}, ZipLayout{.streamed = false},
                                           ZipLayout{.zip64_end = false, .alignment = 1},
                                           ZipLayout{.wide_fields = true},
                                           ZipLayout{.streamed = false, .wide_fields = true},
                                           ZipLayout{.zip64_end = false, .comment = "some words"}));

TEST(ZipArchive, AnEmptyArchiveHasNoEntries) {
  BuiltZip zip = build_zip({}, {.zip64_end = false});
  EXPECT_TRUE(ZipArchive(zip.bytes, "z.pt").entries().empty());
}

TEST(ZipArchive, MissingEntryIsNamed) {
  BuiltZip zip = build_zip(sample_parts());
  ZipArchive archive(zip.bytes, "z.pt");
  expect_format_error("z.pt: zip entry 'a/data/7' is missing", [&] { archive.read("a/data/7"); });
}

TEST(ZipArchive, WrongChecksumIsFoundUnlessSkipped) {
  BuiltZip zip = build_zip(sample_parts());
  size_t data_at = zip.local["a/empty"] - 16 - 300;  // its descriptor has 16 B
  zip.bytes[data_at + 7] ^= std::byte{4};
  ZipArchive archive(zip.bytes, "z.pt"), unchecked(zip.bytes, "z.pt", CrcCheck::kSkip);
  for (int time = 0; time < 2; ++time)
    expect_format_error("zip entry 'a/data/0': CRC-32", [&] { archive.read("a/data/0"); });
  EXPECT_EQ(unchecked.read("a/data/0").size(), 300u);
  EXPECT_EQ(archive.read("a/data.pkl").size(), 5u);
}

TEST(ZipArchive, RefusesWhatIsNotPlainlyStored) {
  expect_entry_error("'a/data/0': flags 0809: encrypted", kCentralFlags, uint16_t{0x0809});
  expect_entry_error("'a/data/0': is compressed (method 8): a zip archive, but no checkpoint", kCentralMethod,
                     uint16_t{8});
  expect_entry_error("'a/data/0': is compressed (method 0)", kCentralPacked, uint32_t{299});
  expect_entry_error("'a/data/0': lies on another disk", kCentralDisk, uint16_t{1});
}

TEST(ZipArchive, RefusesSplitArchives) {
  expect_error_after("split over several disks", &BuiltZip::end, kEndDisk, uint16_t{1});
  expect_error_after("split over several disks", &BuiltZip::end, kEndEntries, uint16_t{2});
  expect_error_after("split over several disks", &BuiltZip::zip64_end, kZip64Disk, uint32_t{1});
  expect_error_after("split over several disks", &BuiltZip::zip64_end, kZip64EntriesHere, uint64_t{2});
  expect_error_after("split over several disks", &BuiltZip::locator, kLocatorDisk, uint32_t{1});
  expect_error_after("split over several disks", &BuiltZip::locator, kLocatorDisks, uint32_t{2});
}

TEST(ZipArchive, EndRecordsMustAgree) {
  expect_error_after("disagree", &BuiltZip::end, kEndDirectoryBytes, uint32_t{1});
  expect_error_after("disagree", &BuiltZip::end, kEndDirectory, uint32_t{1});
  expect_error_after("zip64 end record at byte 0 starts with", &BuiltZip::locator, kLocatorRecord, uint64_t{0});
  expect_error_after("zip64 end record at byte", &BuiltZip::locator, kLocatorRecord, ~uint64_t{0});
  expect_error_after("zip64 end record of 45 B", &BuiltZip::zip64_end, kZip64RecordBytes, uint64_t{45});
}

TEST(ZipArchive, EndRecordMayDeferToTheZip64Record) {
  BuiltZip zip = build_zip(sample_parts());
  poke(zip.bytes, zip.end + kEndEntries - 2, uint32_t{0xffffffff});
  poke(zip.bytes, zip.end + kEndDirectoryBytes, uint32_t{0xffffffff});
  poke(zip.bytes, zip.end + kEndDirectory, uint32_t{0xffffffff});
  expect_sample(ZipArchive(zip.bytes, "z.pt"));
}

TEST(ZipArchive, DirectoryMustEndAtTheEndRecord) {
  BuiltZip zip = build_zip(sample_parts());
  poke(zip.bytes, zip.end + kEndDirectory, uint32_t{0xffffffff});
  poke(zip.bytes, zip.zip64_end + kZip64Directory, ~uint64_t{0});
  expect_error("overflows 64 bits", zip.bytes);
  poke(zip.bytes, zip.zip64_end + kZip64Directory, uint64_t{zip.directory + 1});
  expect_error("must end at byte", zip.bytes);
}

TEST(ZipArchive, EntryCountIsBoundedByTheDirectory) {
  BuiltZip zip = build_zip(sample_parts(), {.zip64_end = false});
  poke(zip.bytes, zip.end + kEndEntries - 2, uint32_t{0xfffffffe});
  expect_error("split over several disks", zip.bytes);
  poke(zip.bytes, zip.end + kEndEntries - 2, uint32_t{0xfffefffe});
  expect_error("cannot hold 65534 entries", zip.bytes);
  poke(zip.bytes, zip.end + kEndEntries - 2, uint32_t{0x00020002});
  expect_error("B behind the last entry", zip.bytes);
  zip = build_zip(sample_parts(), {.zip64_end = false});
  poke(zip.bytes, zip.central["a/empty"], uint32_t{0});
  expect_error("zip directory entry at byte", zip.bytes);
}

TEST(ZipArchive, LocalHeadersMustAgreeWithTheDirectory) {
  expect_local_error("local header at byte", 0, uint32_t{0});
  for (size_t field : {kLocalCrc, kLocalPacked, kLocalBytes})
    expect_local_error("'a/data/0': its local header and the zip directory disagree", field, uint32_t{7});
  expect_local_error("disagree", kLocalFlags, uint16_t{0x0800});
  expect_local_error("disagree", kLocalMethod, uint16_t{8});
  expect_local_error("disagree", kLocalName, uint8_t{'b'});
  expect_local_error("disagree", kLocalCrc, uint32_t{0}, {.streamed = false});
  expect_entry_error("disagree", kCentralCrc, uint32_t{0});
  expect_entry_error("disagree", kCentralName, uint8_t{'b'});
}

TEST(ZipArchive, DataDescriptorsMustAgreeWithTheDirectory) {
  for (size_t back : {16, 12, 8, 4}) {
    BuiltZip zip = build_zip(sample_parts());
    poke(zip.bytes, zip.local["a/empty"] - back, uint32_t{9});
    expect_error(back == 16 ? "data descriptor at byte" : "'a/data/0': its data descriptor", zip.bytes);
  }
}

TEST(ZipArchive, EntriesLieInsideTheFileAndApart) {
  expect_entry_error("'a/data/0': overlaps zip entry 'a/data.pkl'", kCentralOffset, uint32_t{0});
  expect_entry_error("local header of zip entry 'a/data/0' at byte 1000000", kCentralOffset, uint32_t{1000000});
  BuiltZip zip = build_zip(sample_parts(), {.streamed = false});
  for (size_t at : {zip.central["a/data/0"] + kCentralPacked, zip.central["a/data/0"] + kCentralBytes,
                    zip.local["a/data/0"] + kLocalPacked, zip.local["a/data/0"] + kLocalBytes})
    poke(zip.bytes, at, uint32_t{301});
  expect_error("'a/empty': overlaps zip entry 'a/data/0'", zip.bytes);
  for (size_t at : {zip.central["a/data/0"] + kCentralPacked, zip.central["a/data/0"] + kCentralBytes,
                    zip.local["a/data/0"] + kLocalPacked, zip.local["a/data/0"] + kLocalBytes})
    poke(zip.bytes, at, uint32_t{0xfffffffe});
  expect_error("data of zip entry 'a/data/0' needs 4294967294 B", zip.bytes);
}

TEST(ZipArchive, NamesAreUnique) {
  BuiltZip zip = build_zip(sample_parts());
  for (size_t name_at : {zip.central["a/empty"] + kCentralName, zip.local["a/empty"] + kLocalName})
    for (size_t i = 0; i < 7; ++i) poke(zip.bytes, name_at + i, "a/again"[i]);
  EXPECT_TRUE(ZipArchive(zip.bytes, "z.pt").contains("a/again"));
  std::vector<ZipPart> parts = sample_parts();
  parts.push_back({"a/other", {}});
  zip = build_zip(parts);
  for (size_t name_at : {zip.central["a/other"] + kCentralName, zip.local["a/other"] + kLocalName})
    for (size_t i = 0; i < 7; ++i) poke(zip.bytes, name_at + i, "a/empty"[i]);
  expect_error("zip entry 'a/empty': appears twice", zip.bytes);
}

TEST(ZipArchive, Zip64ExtraBlocksAreBounded) {
  expect_entry_error("ffffffff, but there is no zip64 extra block", kCentralOffset, uint32_t{0xffffffff});
  ZipLayout wide{.wide_fields = true};
  expect_entry_error("extra block needs", kCentralName + 8 + 2, uint16_t{25}, wide);
  expect_entry_error("there is no zip64 extra block", kCentralName + 8, uint16_t{2}, wide);
  expect_entry_error("zip64 extra block needs 8 B", kCentralName + 8 + 2, uint16_t{0}, wide);
  expect_entry_error("zip64 extra block needs 8 B", kCentralName + 8 + 2, uint16_t{16}, wide);
  expect_entry_error("extra block needs", kCentralExtra, uint16_t{27}, wide);
  expect_entry_error("comment of a zip entry needs 65535 B", kCentralComment, uint16_t{0xffff});
}

TEST(ZipArchive, HostileNamesAreEscaped) {
  std::vector<ZipPart> parts = {{"a\x1b[2J\xff/" + std::string(300, 'n'), {}}};
  BuiltZip zip = build_zip(parts);
  poke(zip.bytes, zip.central[parts[0].name] + kCentralMethod, uint16_t{8});
  std::string message = format_error_of([&] { ZipArchive(zip.bytes, "z.pt"); });
  EXPECT_THAT(message, ::testing::HasSubstr("\\u001b[2J\\ufffd/nnn"));
  EXPECT_LT(message.size(), 400u);
}

}  // namespace
}  // namespace thimble::zip_archive_test
