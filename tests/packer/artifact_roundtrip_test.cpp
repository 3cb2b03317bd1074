// artifact_roundtrip_test.cpp: decode(encode(q)) == q, encode(q) == encode(q), encode(decode(a)) == a.
#include <gtest/gtest.h>
#include <array>

#include <cmath>
#include <map>

#include "packer/artifact.h"
#include "packer/container/artifact_reader.h"
#include "runtime/base/file.h"
#include "runtime/base/json.h"
#include "runtime/base/parallel.h"
#include "tests/packer/sample_models.h"
#include "tests/support/test_files.h"

namespace thimble::artifact_roundtrip_test {
namespace {

const char* const kCodecs[] = {"none", "brotli", "zstd", "xz", "rans", "auto"};

void expect_round_trip(const QuantizedModel& model) {
  for (const char* codec : kCodecs) {
    SCOPED_TRACE(codec);
    EncodeOptions options = encode_options_from(codec);
    ByteVector artifact = encode(model, options);
    QuantizedModel decoded = decode_artifact(artifact, "test.thmb");
    EXPECT_EQ(decoded, model);
    EXPECT_EQ(encode(decoded, options), artifact);
  }
}

QuantizedModel model_of(std::vector<QuantizedTensor> tensors) {
  QuantizedModel model;
  model.tensors = std::move(tensors);
  return model;
}

TEST(ArtifactRoundTripTest, EmptyModel) { expect_round_trip({}); }

TEST(ArtifactRoundTripTest, EveryKindOfTensor) { expect_round_trip(sample_model()); }

TEST(ArtifactRoundTripTest, EveryBitWidth) {
  std::vector<QuantizedTensor> tensors;
  for (int bits = 2; bits <= 8; ++bits)
    tensors.push_back(random_tensor("w" + std::to_string(bits), 13, 11, (1 << (bits - 1)) - 1));
  expect_round_trip(model_of(std::move(tensors)));
}

TEST(ArtifactRoundTripTest, SteppedTensors) {
  std::vector<QuantizedTensor> tensors;
  for (int bits : {0, 2, 3, 4, 5, 6, 7, 8}) tensors.push_back(stepped_tensor("t" + std::to_string(bits), 13, 11, bits));
  tensors.push_back(stepped_tensor("u column", 1100, 1, 3));
  tensors.push_back(stepped_tensor("u row", 1, 300, 3));
  tensors.push_back(stepped_tensor("v segments", 1025, 5, 8));
  tensors.push_back({"w empty", {0, 5}, SteppedCodes{3, {}, {}, {}}});
  tensors.push_back({"w none", {5, 0}, SteppedCodes{3, {}, std::vector<int16_t>(5), {}}});
  std::get<SteppedCodes>(tensors[0].data).codes.store(7, std::array{kMaxSteppedCode});
  std::get<SteppedCodes>(tensors[1].data).codes.store(7, std::array{-kMaxSteppedCode});
  std::get<SteppedCodes>(tensors[2].data).row_steps[3] = kMaxStep;
  std::get<SteppedCodes>(tensors[3].data).column_steps[3] = -kMaxStep;
  expect_round_trip(model_of(std::move(tensors)));
}

TEST(ArtifactRoundTripTest, SteppedTensorsOfSeveralSections) {
  QuantizedModel model = model_of({stepped_tensor("wide", 1600, 4000, 8), stepped_tensor("x", 40, 9000, 2)});
  ByteVector artifact = encode(model, encode_options_from("rans"));
  EXPECT_EQ(open_artifact(artifact, "test.thmb").sections.size(),
            1u + 2 + 1 + 1);  // segments of 1024 and 576 rows; steps
  EXPECT_EQ(decode_artifact(artifact, "test.thmb"), model);
}

TEST(ArtifactRoundTripTest, VersionIsTheOldestThatCanHoldTheTensors) {
  EXPECT_EQ(open_artifact(encode(sample_model()), "test.thmb").version, 1u);
  EXPECT_EQ(open_artifact(encode(model_of({stepped_tensor("a", 3, 3, 0)})), "test.thmb").version, 2u);
}

TEST(ArtifactRoundTripTest, AdversarialShapesAndCodes) {
  expect_round_trip(model_of({
      coded_tensor("all max", 6, 5, 31, [] { return 31; }),
      coded_tensor("all min", 6, 5, 127, [] { return -127; }),
      coded_tensor("all zero", 64, 33, 15, [] { return 0; }),
      random_tensor("one", 1, 1, 1),
      random_tensor("one column", 257, 1, 15),
      random_tensor("one row", 1, 257, 15),
      coded_tensor("outlier", 9, 9, 15, [n = 0]() mutable { return n++ == 40 ? 15 : 0; }),
  }));
}

TEST(ArtifactRoundTripTest, EmptyAndOddTensors) {
  QuantizedTensor vector = random_tensor("vector", 9, 1, 15);
  vector.shape = {9};
  QuantizedTensor cube = random_tensor("cube", 2, 12, 15);
  cube.shape = {2, 3, 4};
  expect_round_trip(model_of({std::move(cube), random_tensor("no columns", 3, 0, 15),
                              random_tensor("no rows", 0, 3, 15), raw_tensor("raw empty", {0, 4}, DType::kF32),
                              raw_tensor("raw scalar", {}, DType::kF64), std::move(vector)}));
}

TEST(ArtifactRoundTripTest, EveryRawType) {
  std::vector<QuantizedTensor> tensors;
  for (DType dtype : {DType::kBF16, DType::kBool, DType::kF16, DType::kF32, DType::kF64, DType::kI16, DType::kI32,
                      DType::kI64, DType::kI8, DType::kU16, DType::kU8})
    tensors.push_back(raw_tensor(std::string(dtype_name(dtype)), {3, 5}, dtype));
  std::ranges::sort(tensors, {}, &QuantizedTensor::name);
  expect_round_trip(model_of(std::move(tensors)));
}

// Longer than one section: rows in blocks, rows in pieces, and a raw tensor across two sections.
TEST(ArtifactRoundTripTest, TensorsCutIntoSections) {
  const auto limit = static_cast<int64_t>(kMaxSectionContentBytes);
  QuantizedModel model =
      model_of({random_tensor("blocks", 5, limit / 2 - 1, 15), raw_tensor("raw", {3}, DType::kF32),
                raw_tensor("raw long", {limit / 4 + 5}, DType::kF32), random_tensor("wide", 2, limit + 3, 7)});
  ByteVector artifact = encode(model, encode_options_from("none"));
  EXPECT_EQ(decode_artifact(artifact, "test.thmb"), model);
  OpenArtifact open = open_artifact(artifact, "test.thmb");
  std::vector<uint64_t> content;
  for (const PlannedSection& section : open.plan.sections) content.push_back(section.shape.content_bytes());
  const auto block = static_cast<uint64_t>(limit - 2);
  content.erase(content.begin());  // the header's
  EXPECT_EQ(content, (std::vector<uint64_t>{block, block, block / 2, kMaxSectionContentBytes, 3,
                                            kMaxSectionContentBytes, 3, 14, kMaxSectionContentBytes, 32}));
}

TEST(ArtifactRoundTripTest, BytesDoNotDependOnThreads) {
  QuantizedModel model = sample_model();
  for (int i = 0; i < 20; ++i) model.tensors.push_back(random_tensor("z" + std::to_string(100 + i), 20 + i, 30, 15));
  ByteVector several = encode(model);
  ThreadLimit one(1);
  EXPECT_EQ(encode(model), several);
  EXPECT_EQ(decode_artifact(several, "test.thmb"), model);
}

TEST(ArtifactRoundTripTest, AutoIsNeverLarger) {
  const QuantizedModel model = sample_model();
  size_t smallest = encode(model, encode_options_from("auto")).size();
  for (const char* codec : kCodecs) EXPECT_LE(smallest, encode(model, encode_options_from(codec)).size()) << codec;
}

// Stored bytes of the codes of an artifact, its only section of them.
uint64_t stored_code_bytes(const QuantizedTensor& tensor, const EncodeOptions& options) {
  const ByteVector file = encode(model_of({tensor}), options);
  return read_container(file, "test").sections.at(1).entry.stored_bytes;
}

TEST(ArtifactRoundTripTest, OnlyCodesGrowWithTheirBits) {
  const QuantizedTensor coarse = random_tensor("w", 40, 50, 15), fine = random_tensor("w", 40, 50, 31);
  const EncodeOptions none = encode_options_from("none");
  EXPECT_EQ(stored_code_bytes(coarse, none), 40 * 50 * 5 / 8);
  EXPECT_EQ(stored_code_bytes(fine, none), 40 * 50 * 6 / 8);
  EXPECT_EQ(encode(model_of({fine}), none).size() - encode(model_of({coarse}), none).size(), 40 * 50 / 8);
}

TEST(ArtifactRoundTripTest, UnknownCodecIsAUsageError) { EXPECT_THROW(encode_options_from("gzip"), UsageError); }

// Ideal length in bytes of codes in histograms of their own for each class of mean magnitude of row times mean
// magnitude of column, three classes per octave: half of log2 N bits per cell for the histograms, one byte per row and
// column.
double context_model_bytes(Bytes codes, size_t rows, size_t columns) {
  std::vector<double> of_row(rows, 1e-3), of_column(columns, 1e-3);
  double mean = 1e-3;
  for (size_t i = 0; i < codes.size(); ++i) {
    const double magnitude = std::abs(static_cast<int8_t>(codes[i]));
    of_row[i / columns] += magnitude / static_cast<double>(columns);
    of_column[i % columns] += magnitude / static_cast<double>(rows);
    mean += magnitude / static_cast<double>(codes.size());
  }
  std::map<long, std::map<std::byte, double>> histograms;
  for (size_t i = 0; i < codes.size(); ++i)
    ++histograms[std::lround(3 * std::log2(of_row[i / columns] * of_column[i % columns] / mean))][codes[i]];
  double bits = 8 * static_cast<double>(rows + columns);
  for (const auto& [scale_class, histogram] : histograms) {
    double total = 0;
    for (const auto& [code, count] : histogram) total += count;
    for (const auto& [code, count] : histogram) bits += count * std::log2(total / count) + 0.5 * std::log2(total);
  }
  return bits / 8;
}

// Codes of a trained matrix: Brotli in the chosen layout comes within 2% of the ideal order-0 length, rans within 1% of
// the ideal length of a context model.
TEST(ArtifactRoundTripTest, TrainedCodesAreNearTheirEntropy) {
  const std::string path = shared_data("golf30m/golden.safetensors");
  if (!file_exists(path)) GTEST_SKIP() << "no trained codes here";
  MappedFile file(path);
  ByteCursor cursor(file.bytes(), path);
  auto header_bytes = cursor.read<uint64_t>("header length");
  Json header = parse_json(cursor.take(header_bytes, "header"), path);
  const Json& entry = header.at("int5_codes.blocks.10.attn.proj.weight");
  cursor.seek(8 + header_bytes + entry.at("data_offsets").at(0).get<uint64_t>(), "codes");
  auto shape = entry.at("shape").get<Shape>();
  Bytes bytes = cursor.take(static_cast<uint64_t>(element_count(shape)), "codes");
  size_t next = 0;
  QuantizedTensor tensor =
      coded_tensor("w", shape[0], shape[1], 15, [&] { return std::to_integer<int>(bytes[next++]); });

  std::vector<double> counts(256);
  for (std::byte code : bytes) ++counts[std::to_integer<size_t>(code)];
  double order0_bits = 0;
  for (double count : counts)
    if (count > 0) order0_bits -= count * std::log2(count / static_cast<double>(bytes.size()));
  EXPECT_LT(static_cast<double>(stored_code_bytes(tensor, {})), order0_bits / 8 * 1.02);
  EXPECT_LT(static_cast<double>(stored_code_bytes(tensor, encode_options_from("rans"))),
            1.01 * context_model_bytes(bytes, static_cast<size_t>(shape[0]), static_cast<size_t>(shape[1])));
}

}  // namespace
}  // namespace thimble::artifact_roundtrip_test
