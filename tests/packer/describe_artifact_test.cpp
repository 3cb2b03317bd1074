// describe_artifact_test.cpp: every byte of the file is accounted for, and every tensor by its name.
#include "packer/artifact.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/packer/sample_models.h"

namespace thimble::describe_artifact_test {
namespace {

TEST(DescribeArtifactTest, BytesAddUpToTheFile) {
  for (const char* codec : {"none", "brotli", "auto"}) {
    ByteVector artifact = encode(sample_model(), encode_options_from(codec));
    ArtifactSummary summary = describe_artifact(artifact, "test.thmb");
    uint64_t bytes = summary.container_bytes;
    double tensor_bytes = 0;
    for (const SectionSummary& section : summary.sections) bytes += section.stored_bytes;
    for (const StoredTensorSummary& tensor : summary.tensors) tensor_bytes += tensor.stored_bytes;
    EXPECT_EQ(summary.file_bytes, artifact.size());
    EXPECT_EQ(bytes, artifact.size());
    EXPECT_NEAR(tensor_bytes + static_cast<double>(summary.container_bytes + summary.sections[0].stored_bytes),
                static_cast<double>(artifact.size()), 1e-6);
  }
}

TEST(DescribeArtifactTest, TensorsAreListed) {
  QuantizedModel model = sample_model();
  ArtifactSummary summary = describe_artifact(encode(model, encode_options_from("none")), "test.thmb");
  ASSERT_EQ(summary.tensors.size(), 5u);
  const StoredTensorSummary& coded = summary.tensors[0];
  EXPECT_EQ(coded.name, "a.weight");
  EXPECT_EQ(coded.shape, (Shape{5, 7}));
  EXPECT_EQ(coded.precision, "int5");
  EXPECT_EQ(coded.max_code, 15);
  EXPECT_EQ(coded.elements, 35u);
  // 35 codes of 5 bits in whole bytes, and 5 scales of 2 bytes.
  EXPECT_NEAR(coded.stored_bytes, 22 + 10, 1e-9);
  EXPECT_NEAR(coded.bits_per_weight, 8.0 * 32 / 35, 1e-9);
  EXPECT_EQ(summary.tensors[1].precision, "F16");
  EXPECT_EQ(summary.tensors[1].max_code, 0);
  EXPECT_NEAR(summary.tensors[1].bits_per_weight, 16, 1e-9);
  EXPECT_EQ(summary.tensors[2].precision, "int3");
  EXPECT_TRUE(summary.banked);
  EXPECT_EQ(summary.config_json, model.config_json);
  EXPECT_EQ(summary.provenance_json, model.provenance_json);
}

TEST(DescribeArtifactTest, SectionsAreListed) {
  ArtifactSummary summary = describe_artifact(encode(sample_model(), encode_options_from("none")), "test.thmb");
  std::vector<std::string> kinds;
  for (const SectionSummary& section : summary.sections) kinds.push_back(section.kind);
  EXPECT_EQ(kinds, (std::vector<std::string>{"header", "codes", "codes", "scales", "raw", "raw", "raw"}));
  EXPECT_EQ(summary.sections[1].tensor, "a.weight");
  EXPECT_EQ(summary.sections[1].layout, "bits");
  EXPECT_EQ(summary.sections[1].codec, "none");
  EXPECT_EQ(summary.sections[1].content_bytes, 35u);
  EXPECT_EQ(summary.sections[1].stored_bytes, 22u);
  EXPECT_EQ(summary.sections[3].tensor, "");
}

TEST(DescribeArtifactTest, StepsOfRawTensors) {
  QuantizedModel model;
  const auto add = [&](const std::string& name, DType dtype, const std::vector<float>& values) {
    model.tensors.push_back(
        {name, {static_cast<int64_t>(values.size())}, RawTensor{dtype, from_float32(dtype, values)}});
  };
  add("a", DType::kF16, {0.5F, -1.25F, 0, 3});  // 2, -5, 0, 12 quarters
  add("b", DType::kF32, {1024});
  add("c", DType::kF16, {0, 0});
  add("d", DType::kBF16, {INFINITY, 1});
  add("e", DType::kF16, {0x1p-24F, 1});
  const ArtifactSummary summary = describe_artifact(encode(model), "test.thmb");
  ASSERT_TRUE(summary.tensors[0].raw_steps && summary.tensors[1].raw_steps && summary.tensors[4].raw_steps);
  EXPECT_EQ(summary.tensors[0].raw_steps->log2_step, -2);
  EXPECT_EQ(summary.tensors[0].raw_steps->bits, 5);
  EXPECT_EQ(summary.tensors[1].raw_steps->log2_step, 10);
  EXPECT_EQ(summary.tensors[1].raw_steps->bits, 2);
  EXPECT_FALSE(summary.tensors[2].raw_steps);
  EXPECT_FALSE(summary.tensors[3].raw_steps);
  EXPECT_EQ(summary.tensors[4].raw_steps->log2_step, -24);
  EXPECT_EQ(summary.tensors[4].raw_steps->bits, 26);
}

TEST(DescribeArtifactTest, EmptyTensorsTakeNoBytes) {
  QuantizedModel model;
  model.tensors = {random_tensor("w", 0, 3, 15)};
  ArtifactSummary summary = describe_artifact(encode(model), "test.thmb");
  EXPECT_EQ(summary.tensors[0].stored_bytes, 0);
  EXPECT_EQ(summary.tensors[0].bits_per_weight, 0);
}

}  // namespace
}  // namespace thimble::describe_artifact_test
