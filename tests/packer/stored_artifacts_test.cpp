// stored_artifacts_test.cpp: artifacts that earlier programs wrote decode to the same weights, bit for bit, as
// docs/reference/format.md promises. tests/packer/artifacts/README.md says where they come from.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "packer/artifact.h"
#include "packer/codecs/codec.h"
#include "packer/container/artifact_reader.h"
#include "runtime/base/file.h"
#include "runtime/base/hash.h"
#include "tests/support/test_files.h"

namespace thimble::stored_artifacts_test {
namespace {

const std::string kFolder = source_file("tests/packer/artifacts/");

struct Recorded {
  uint32_t version = 0;
  std::map<std::string, std::string> tensors;  // XXH3-64 of the elements
};

// By the file's name.
std::map<std::string, Recorded> recorded() {
  std::map<std::string, Recorded> files;
  std::ifstream lines(kFolder + "checksums.txt");
  std::string file, tensor, checksum;
  for (uint32_t version = 0; lines >> file >> version >> tensor >> checksum;) {
    files[file].version = version;
    files[file].tensors[tensor] = checksum;
  }
  return files;
}

TEST(StoredArtifactsTest, DecodeToTheSameWeights) {
  for (const auto& [name, expected] : recorded()) {
    SCOPED_TRACE(name);
    const MappedFile file(kFolder + name);
    EXPECT_EQ(open_artifact(file.bytes(), name).version, expected.version);
    std::map<std::string, std::string> found;
    for (const QuantizedTensor& tensor : decode_artifact(file.bytes(), name).tensors) {
      const std::vector<float> values = dequantize(tensor);
      found[tensor.name] = hex64(xxh3(std::as_bytes(std::span(values))));
    }
    EXPECT_EQ(found, expected.tensors);
    SilentProgress progress;
    const VerifyReport report = verify_artifact(file.bytes(), name, progress);
    EXPECT_TRUE(report.ok()) << report.problem;
  }
}

TEST(StoredArtifactsTest, EveryFileIsRecorded) {
  std::set<std::string> stored, listed;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder))
    if (entry.path().extension() == ".thmb") stored.insert(entry.path().filename());
  for (const auto& [name, expected] : recorded()) listed.insert(name);
  EXPECT_EQ(stored, listed);
}

TEST(StoredArtifactsTest, EveryKindOfFileIsAmongThem) {
  std::set<uint32_t> versions;
  std::set<CodecId> codecs;
  std::set<LayoutId> layouts;
  std::set<int> trellises;
  std::set<bool> banked;
  for (const auto& [name, expected] : recorded()) {
    const MappedFile file(kFolder + name);
    const OpenArtifact artifact = open_artifact(file.bytes(), name);
    versions.insert(artifact.version);
    banked.insert(artifact.plan.header.banked);
    for (const StoredSection& section : artifact.sections) {
      codecs.insert(section.entry.codec);
      layouts.insert(section.entry.layout);
    }
    for (const TensorEntry& tensor : artifact.plan.header.tensors)
      if (tensor.encoding == Encoding::kStepped) trellises.insert(tensor.trellis_bits);
  }
  EXPECT_EQ(versions.size(), kFormatVersion);
  EXPECT_EQ(codecs.size(), all_codecs().size());
  EXPECT_EQ(layouts.size(), kLayoutNames.size());
  EXPECT_EQ(trellises, (std::set<int>{0, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(banked.size(), 2u);
}

}  // namespace
}  // namespace thimble::stored_artifacts_test
