// thimble_decode_test.cpp: the C interface gives the bits that the program gives, from memory and through readers, for
// every stored artifact; whatever is wrong is a status with a text.
#include "packer/embed/thimble_decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <limits>
#include <random>
#include <thread>

#include "packer/artifact.h"
#include "runtime/base/file.h"
#include "tests/packer/decode_error.h"
#include "tests/packer/reseal.h"
#include "tests/packer/sample_models.h"
#include "tests/support/allocation_probe.h"
#include "tests/support/test_files.h"

namespace thimble::thimble_decode_test {
namespace {

using ::testing::HasSubstr;

// Closes what it holds.
class Decoder {
 public:
  explicit Decoder(Bytes file, const char* name = "test.thmb") {
    status_ = thimble_open_memory(file.data(), file.size(), name, &artifact_, &error_);
  }
  Decoder(const thimble_reader& reader, uint64_t file_bytes) {
    status_ = thimble_open(&reader, file_bytes, "test.thmb", &artifact_, &error_);
  }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder() { thimble_close(artifact_); }

  thimble_status status() const { return status_; }
  std::string text() const { return error_.text; }
  thimble_artifact* get() const { return artifact_; }
  size_t count() const { return thimble_tensor_count(artifact_); }

  thimble_tensor tensor(size_t i) const {
    thimble_tensor tensor{};
    EXPECT_EQ(thimble_tensor_at(artifact_, i, &tensor, nullptr), THIMBLE_OK);
    return tensor;
  }

  // Elements of type T as the library's type; empty after an error, which status() and text() tell.
  template <typename T>
  std::vector<T> values(size_t i, thimble_type type) {
    std::vector<T> values(tensor(i).elements);
    status_ = thimble_decode(artifact_, i, type, values.data(), values.size() * sizeof(T), &error_);
    return status_ == THIMBLE_OK ? values : std::vector<T>();
  }
  template <typename T>
  std::vector<T> levels(size_t i, thimble_type type) {
    std::vector<T> levels(tensor(i).elements);
    status_ = thimble_decode_levels(artifact_, i, type, levels.data(), levels.size() * sizeof(T), &error_);
    return status_ == THIMBLE_OK ? levels : std::vector<T>();
  }

 private:
  thimble_artifact* artifact_ = nullptr;
  thimble_error error_{};
  thimble_status status_;
};

// A file that is read through a callback, which fails from read number `fail_at` on.
class CountedReads {
 public:
  explicit CountedReads(Bytes file, size_t fail_at = std::numeric_limits<size_t>::max())
      : file_(file), fail_at_(fail_at) {}

  thimble_reader reader() {
    return {this, [](void* context, uint64_t offset, void* to, size_t bytes) {
              return static_cast<CountedReads*>(context)->read(offset, to, bytes);
            }};
  }
  size_t reads() const { return offsets_.size(); }
  const std::vector<uint64_t>& offsets() const { return offsets_; }

 private:
  int read(uint64_t offset, void* to, size_t bytes) {
    offsets_.push_back(offset);
    if (offsets_.size() > fail_at_) return 1;
    EXPECT_LE(offset + bytes, file_.size()) << "a read beyond the end";
    std::memcpy(to, file_.data() + offset, bytes);
    return 0;
  }

  Bytes file_;
  size_t fail_at_;
  std::vector<uint64_t> offsets_;
};

std::vector<std::string> stored_files() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(source_file("tests/packer/artifacts")))
    if (entry.path().extension() == ".thmb") files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

template <typename T>
std::vector<uint32_t> bits_of(const std::vector<T>& values) {
  std::vector<uint32_t> bits;
  for (T value : values) {
    if constexpr (std::is_floating_point_v<T>)
      bits.push_back(std::bit_cast<uint32_t>(value));
    else
      bits.push_back(static_cast<uint32_t>(value));
  }
  return bits;
}

// All that the library says of tensor i is what the program says.
void expect_equal(Decoder& decoder, size_t i, const QuantizedTensor& expected) {
  SCOPED_TRACE(expected.name);
  const thimble_tensor tensor = decoder.tensor(i);
  const std::vector<float> values = dequantize(expected);
  EXPECT_EQ(tensor.name, expected.name);
  EXPECT_EQ(Shape(tensor.shape, tensor.shape + tensor.rank), expected.shape);
  ASSERT_EQ(tensor.elements, values.size());
  EXPECT_EQ(tensor.rows * tensor.columns, tensor.elements);
  EXPECT_EQ(bits_of(decoder.values<float>(i, THIMBLE_F32)), bits_of(values)) << decoder.text();
  std::vector<uint16_t> halves, brains;
  for (float value : values) {
    halves.push_back(fp16_from_float(value));
    brains.push_back(bf16_from_float(value));
  }
  EXPECT_EQ(decoder.values<uint16_t>(i, THIMBLE_F16), halves) << decoder.text();
  EXPECT_EQ(decoder.values<uint16_t>(i, THIMBLE_BF16), brains) << decoder.text();
  EXPECT_EQ(tensor.has_levels != 0, !std::holds_alternative<RawTensor>(expected.data));
  if (tensor.has_levels == 0) return;

  const std::vector<int32_t> levels = decoder.levels<int32_t>(i, THIMBLE_I32);
  std::vector<float> rows(tensor.rows * tensor.blocks), columns(tensor.columns);
  ASSERT_EQ(thimble_decode_scales(decoder.get(), i, rows.data(), columns.data(), nullptr), THIMBLE_OK);
  std::vector<float> products(levels.size());
  for (size_t e = 0; e < levels.size(); ++e) {
    const size_t r = e / tensor.columns, k = e % tensor.columns;
    products[e] = static_cast<float>(levels[e]) * rows[r * tensor.blocks + k / tensor.block_columns] * columns[k];
  }
  EXPECT_EQ(bits_of(products), bits_of(values));
  uint32_t largest = 0;
  ASSERT_EQ(thimble_largest_level(decoder.get(), i, &largest, nullptr), THIMBLE_OK);
  int32_t found = 0;
  for (int32_t level : levels) found = std::max(found, std::abs(level));
  EXPECT_GE(largest, static_cast<uint32_t>(found));
  const bool fits = found <= std::numeric_limits<int8_t>::max();
  EXPECT_EQ(decoder.levels<int8_t>(i, THIMBLE_I8).size(), fits ? levels.size() : 0);
  EXPECT_EQ(decoder.status(), fits ? THIMBLE_OK : THIMBLE_USAGE) << decoder.text();
  EXPECT_EQ(bits_of(decoder.levels<int16_t>(i, THIMBLE_I16)), bits_of(levels));
}

TEST(ThimbleDecodeTest, EveryStoredArtifactAsTheProgramDecodesIt) {
  for (const std::string& path : stored_files()) {
    SCOPED_TRACE(path);
    const MappedFile file(path);
    const QuantizedModel model = decode_artifact(file.bytes(), path);
    CountedReads reads(file.bytes());
    Decoder in_memory(file.bytes()), by_reader(reads.reader(), file.bytes().size());
    for (Decoder* decoder : {&in_memory, &by_reader}) {
      ASSERT_EQ(decoder->status(), THIMBLE_OK) << decoder->text();
      EXPECT_EQ(thimble_config(decoder->get()), model.config_json);
      EXPECT_EQ(thimble_provenance(decoder->get()), model.provenance_json);
      ASSERT_EQ(decoder->count(), model.tensors.size());
      for (size_t i = 0; i < model.tensors.size(); ++i) expect_equal(*decoder, i, model.tensors[i]);
      EXPECT_EQ(thimble_check_file(decoder->get(), nullptr), THIMBLE_OK);
    }
  }
}

TEST(ThimbleDecodeTest, TensorsWithoutElementsAndOfEveryShape) {
  for (const char* codec : {"none", "rans", "auto"})
    for (const QuantizedModel& model : {sample_model(), mixed_model()}) {
      const ByteVector file = encode(model, encode_options_from(codec));
      Decoder decoder(file);
      ASSERT_EQ(decoder.status(), THIMBLE_OK) << decoder.text();
      for (size_t i = 0; i < model.tensors.size(); ++i) expect_equal(decoder, i, model.tensors[i]);
    }
}

TEST(ThimbleDecodeTest, RowsWithoutColumnsTakeNoTime) {
  QuantizedModel model;
  model.tensors = {nvfp4_tensor("a", 0, 16)};
  model.tensors[0].shape = {int64_t{1} << 60, 0};
  const ByteVector file = encode(model);
  Decoder decoder(file);
  ASSERT_EQ(decoder.status(), THIMBLE_OK) << decoder.text();
  EXPECT_EQ(decoder.values<float>(0, THIMBLE_F32).size(), 0u);
  EXPECT_EQ(decoder.status(), THIMBLE_OK) << decoder.text();
  float nothing = 0;
  EXPECT_EQ(thimble_decode_scales(decoder.get(), 0, &nothing, &nothing, nullptr), THIMBLE_OK);
}

TEST(ThimbleDecodeTest, SummariesAgreeWithThoseOfTheProgram) {
  const ByteVector file = encode(mixed_model());
  Decoder decoder(file);
  const ArtifactSummary summary = describe_artifact(file, "test.thmb");
  ASSERT_EQ(decoder.count(), summary.tensors.size());
  for (size_t i = 0; i < decoder.count(); ++i) {
    EXPECT_EQ(decoder.tensor(i).stored_as, summary.tensors[i].precision);
    size_t found = 0;
    EXPECT_EQ(thimble_find(decoder.get(), summary.tensors[i].name.c_str(), &found, nullptr), THIMBLE_OK);
    EXPECT_EQ(found, i);
  }
  thimble_error error;
  size_t none = 0;
  EXPECT_EQ(thimble_find(decoder.get(), "no such tensor", &none, &error), THIMBLE_USAGE);
  EXPECT_THAT(error.text, HasSubstr("test.thmb has no tensor 'no such tensor'"));
}

// What a page does that decodes while it downloads.
TEST(ThimbleDecodeTest, LevelsNeedNoByteBehindTheirEnd) {
  const MappedFile file(source_file("tests/packer/artifacts/slope-rans-golf.thmb"));
  uint64_t front = 0;
  ASSERT_EQ(thimble_front_bytes(file.bytes().data(), 52, nullptr, &front, nullptr), THIMBLE_OK);
  ByteVector received(file.bytes().size());
  const auto receive = [&](uint64_t bytes) { std::ranges::copy(file.bytes().first(bytes), received.begin()); };
  receive(front);
  Decoder decoder(received);
  ASSERT_EQ(decoder.status(), THIMBLE_OK) << decoder.text();
  Decoder whole(file.bytes());
  for (size_t i = 0; i < decoder.count(); ++i) {
    const thimble_tensor tensor = decoder.tensor(i);
    if (tensor.has_levels == 0) continue;
    receive(tensor.levels_end);
    EXPECT_EQ(decoder.levels<int32_t>(i, THIMBLE_I32), whole.levels<int32_t>(i, THIMBLE_I32)) << decoder.text();
  }
  for (size_t i = 0; i < decoder.count(); ++i) {
    receive(decoder.tensor(i).values_end);
    EXPECT_EQ(bits_of(decoder.values<float>(i, THIMBLE_F32)), bits_of(whole.values<float>(i, THIMBLE_F32)));
  }
}

TEST(ThimbleDecodeTest, ReadsGoForwardThroughTheLevels) {
  const MappedFile file(source_file("tests/packer/artifacts/slope-rans-golf.thmb"));
  CountedReads reads(file.bytes());
  Decoder decoder(reads.reader(), file.bytes().size());
  const size_t opening = reads.reads();
  for (size_t i = 0; i < decoder.count(); ++i)
    if (decoder.tensor(i).has_levels != 0) decoder.levels<int32_t>(i, THIMBLE_I32);
  ASSERT_GT(reads.reads(), opening);
  EXPECT_TRUE(std::is_sorted(reads.offsets().begin() + static_cast<std::ptrdiff_t>(opening), reads.offsets().end()));
}

TEST(ThimbleDecodeTest, AFailedReadIsAStatusWhereverItComes) {
  const ByteVector file = encode(mixed_model());
  CountedReads all(file);
  const auto decode_all = [](CountedReads& reads, uint64_t bytes) {
    Decoder decoder(reads.reader(), bytes);
    for (size_t i = 0; i < decoder.count() && decoder.status() == THIMBLE_OK; ++i)
      decoder.values<float>(i, THIMBLE_F32);
    if (decoder.status() == THIMBLE_IO) {
      EXPECT_THAT(decoder.text(), HasSubstr("could not be read"));
    }
    return decoder.status();
  };
  ASSERT_EQ(decode_all(all, file.size()), THIMBLE_OK);
  for (size_t fail_at = 0; fail_at < all.reads(); ++fail_at) {
    CountedReads reads(file, fail_at);
    EXPECT_EQ(decode_all(reads, file.size()), THIMBLE_IO) << fail_at;
    EXPECT_EQ(reads.reads(), fail_at + 1) << "nothing is read after a failure";
  }
}

TEST(ThimbleDecodeTest, MemoryIsWhatWasSaid) {
  for (const std::string& path : stored_files()) {
    SCOPED_TRACE(path);
    const MappedFile file(path);
    CountedReads reads(file.bytes());
    for (bool through_reader : {false, true}) {
      std::optional<Decoder> decoder;
      through_reader ? decoder.emplace(reads.reader(), file.bytes().size()) : decoder.emplace(file.bytes());
      const uint64_t said = thimble_decode_memory(decoder->get());
      for (size_t i = 0; i < decoder->count(); ++i) {
        std::vector<float> values(decoder->tensor(i).elements);
        const AllocationProbe probe;
        EXPECT_EQ(thimble_decode(decoder->get(), i, THIMBLE_F32, values.data(), values.size() * 4, nullptr),
                  THIMBLE_OK);
        EXPECT_LE(probe.peak_bytes(), said) << decoder->tensor(i).name;
      }
    }
  }
}

TEST(ThimbleDecodeTest, ThreadsShareAnArtifact) {
  const MappedFile file(source_file("tests/packer/artifacts/slope-rans-golf.thmb"));
  Decoder decoder(file.bytes()), alone(file.bytes());
  std::vector<std::vector<float>> expected;
  for (size_t i = 0; i < alone.count(); ++i) expected.push_back(alone.values<float>(i, THIMBLE_F32));
  std::array<bool, 4> equal{};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < equal.size(); ++t)
    threads.emplace_back([&, t] {
      equal[t] = true;
      for (size_t i = 0; i < expected.size(); ++i) {
        std::vector<float> values(expected[i].size());
        equal[t] &=
            thimble_decode(decoder.get(), i, THIMBLE_F32, values.data(), values.size() * 4, nullptr) == THIMBLE_OK;
        equal[t] &= bits_of(values) == bits_of(expected[i]);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(equal, ::testing::Each(true));
}

TEST(ThimbleDecodeTest, WhatIsAskedForWrongly) {
  const ByteVector file = encode(mixed_model());
  Decoder decoder(file);
  thimble_error error;
  const auto expect_usage = [&](thimble_status status, const char* text) {
    EXPECT_EQ(status, THIMBLE_USAGE);
    EXPECT_THAT(error.text, HasSubstr(text));
  };
  size_t levels = 0, raw = 0;
  while (decoder.tensor(levels).has_levels == 0 || decoder.tensor(levels).elements == 0) ++levels;
  while (decoder.tensor(raw).has_levels != 0) ++raw;
  std::vector<float> room(decoder.tensor(levels).elements + 1);
  const size_t bytes = 4 * (room.size() - 1);
  thimble_artifact* artifact = decoder.get();
  expect_usage(thimble_decode(artifact, decoder.count(), THIMBLE_F32, room.data(), bytes, &error),
               "there is no tensor");
  expect_usage(thimble_decode(artifact, levels, THIMBLE_F32, room.data(), bytes + 4, &error), "elements of 4 B");
  expect_usage(thimble_decode(artifact, levels, THIMBLE_F32, nullptr, bytes, &error), "NULL");
  expect_usage(thimble_decode(artifact, levels, THIMBLE_I8, room.data(), bytes, &error), "F32, F16 or BF16");
  expect_usage(thimble_decode(artifact, levels, THIMBLE_F32, reinterpret_cast<char*>(room.data()) + 1, bytes, &error),
               "aligned");
  expect_usage(thimble_decode(nullptr, levels, THIMBLE_F32, room.data(), bytes, &error), "NULL");
  expect_usage(thimble_decode_levels(artifact, raw, THIMBLE_I32, room.data(), 4, &error), "has no levels");
  expect_usage(thimble_decode_levels(artifact, levels, THIMBLE_F32, room.data(), bytes, &error), "I8, I16 or I32");
  expect_usage(thimble_open_memory(file.data(), file.size(), nullptr, nullptr, &error), "NULL");
  expect_usage(thimble_open(nullptr, file.size(), nullptr, &artifact, &error), "reader");
  EXPECT_EQ(artifact, decoder.get()) << "untouched";
  thimble_close(nullptr);
  EXPECT_EQ(thimble_tensor_count(nullptr), 0u);
  EXPECT_STREQ(thimble_config(nullptr), "{}");
}

TEST(ThimbleDecodeTest, TheFileIsCheckedInPieces) {
  const ByteVector file = encode(sample_model());
  Decoder decoder(file);
  const auto check = [&](Bytes bytes, size_t piece, thimble_error* error) {
    for (size_t at = 0; at < bytes.size(); at += piece)
      EXPECT_EQ(thimble_check_next(decoder.get(), bytes.data() + at, std::min(piece, bytes.size() - at), error),
                THIMBLE_OK);
    return thimble_check_end(decoder.get(), error);
  };
  thimble_error error;
  for (size_t piece : {size_t{1}, size_t{7}, size_t{24}, size_t{33}, file.size()})
    EXPECT_EQ(check(file, piece, &error), THIMBLE_OK) << piece;
  ByteVector damaged = file;
  damaged.back() ^= std::byte{1};
  EXPECT_EQ(check(damaged, 5, &error), THIMBLE_BAD_INPUT);
  EXPECT_THAT(error.text, HasSubstr("the file is damaged"));
  EXPECT_EQ(check(Bytes(file).first(9), 5, &error), THIMBLE_USAGE);
  EXPECT_THAT(error.text, HasSubstr("9 B of"));
  EXPECT_EQ(check(file, 100, &error), THIMBLE_OK) << "a pass begins anew after the end of the one before";
  EXPECT_STREQ(error.text, "");
}

TEST(ThimbleDecodeTest, LongTextsAreCutBetweenCharacters) {
  std::string name;
  for (int i = 0; i < 400; ++i) name += "\xC3\xA4";
  Decoder decoder(as_bytes_of("no artifact"), name.c_str());
  EXPECT_EQ(decoder.status(), THIMBLE_BAD_INPUT);
  EXPECT_EQ(decoder.text(), name.substr(0, 510));
}

// 2,000 damaged files, half of them with checksums made right: the library accepts whatever the program does, with the
// same bits, and refuses the rest.
TEST(ThimbleDecodeTest, DamagedFilesAreRefusedOrDecodeAsInTheProgram) {
  constexpr int kCopies = 2000;
  const std::vector<std::string> files = stored_files();
  std::mt19937 random(20261124);
  int accepted = 0;
  for (int n = 0; n < kCopies; ++n) {
    const MappedFile file(files[static_cast<size_t>(n) % files.size()]);
    ByteVector copy(file.bytes().begin(), file.bytes().end());
    const size_t at = random() % copy.size();
    switch (random() % 3) {
      case 0: copy[at] ^= static_cast<std::byte>(1u << random() % 8); break;
      case 1: copy.resize(at); break;
      default:
        for (size_t i = at; i < std::min(copy.size(), at + 16); ++i) copy[i] = static_cast<std::byte>(random());
    }
    if (n % 2 == 0 && copy.size() >= kPrefixBytes) reseal(copy, Reseal::kChecksumsAndLength);
    Decoder decoder(copy);
    thimble_error error{};
    thimble_status status = decoder.status();
    if (status == THIMBLE_OK) status = thimble_check_file(decoder.get(), &error);
    std::vector<std::vector<float>> values;
    for (size_t i = 0; i < decoder.count() && status == THIMBLE_OK; ++i) {
      values.push_back(decoder.values<float>(i, THIMBLE_F32));
      status = decoder.status();
    }
    ASSERT_TRUE(status == THIMBLE_OK || status == THIMBLE_BAD_INPUT) << status << ": " << decoder.text();
    EXPECT_EQ(status != THIMBLE_OK, decoder.text() + error.text != "");
    if (!decode_error(copy).empty()) continue;
    ++accepted;
    ASSERT_EQ(status, THIMBLE_OK) << decoder.text() << error.text;
    const QuantizedModel model = decode_artifact(copy, "test.thmb");
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(bits_of(values[i]), bits_of(dequantize(model.tensors[i])));
  }
  EXPECT_GT(accepted, 0) << "some change no more than values";
}

}  // namespace
}  // namespace thimble::thimble_decode_test
