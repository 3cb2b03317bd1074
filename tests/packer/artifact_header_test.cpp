// artifact_header_test.cpp: the header's JSON comes back as it was, and headers that break a rule are not written.
#include "packer/layout/stored_model.h"

#include <gtest/gtest.h>

#include "packer/layout/format.h"
#include "tests/packer/sample_models.h"
#include "tests/runtime/base/error_matcher.h"

namespace thimble::artifact_header_test {
namespace {

void expect_refused(const ArtifactHeader& header, const std::string& word) {
  expect_error<FormatError>([&] { header_text(header, "m.thmb"); }, {"m.thmb", word});
}

TEST(ArtifactHeader, ComesBackFromItsText) {
  ArtifactHeader header = header_of(sample_model());
  std::string text = header_text(header, "m.thmb");
  ArtifactHeader back = parse_header(as_bytes_of(text), "m.thmb");
  EXPECT_EQ(back.config_json, header.config_json);
  EXPECT_EQ(back.provenance_json, header.provenance_json);
  EXPECT_EQ(back.tensors.size(), header.tensors.size());
  EXPECT_EQ(header_text(back, "m.thmb"), text);
}

TEST(ArtifactHeader, ConfigAndProvenanceMustBeCanonical) {
  ArtifactHeader header = header_of(sample_model());
  header.config_json = R"({"b":1,"a":2})";
  expect_refused(header, "the config is not canonical JSON");
  header = header_of(sample_model());
  header.provenance_json = R"({"a": 2})";
  expect_refused(header, "the provenance is not canonical JSON");
}

TEST(ArtifactHeader, NamesMustBeUtf8) {
  ArtifactHeader header = header_of(sample_model());
  header.tensors.back().name = "z\xff";
  expect_refused(header, "a tensor name is not valid UTF-8");
}

TEST(ArtifactHeader, TensorsAreCounted) {
  ArtifactHeader header = header_of(sample_model());
  header.tensors.assign(kMaxTensors + 1, header.tensors.front());
  expect_refused(header, "65537 tensors, at most 65536");
}

TEST(ArtifactHeader, TextsAreBounded) {
  std::string text(kMaxHeaderBytes + 1, ' ');
  expect_error<FormatError>([&] { parse_header(as_bytes_of(text), "m.thmb"); }, {"4194305 B, at most 4194304"});
}

}  // namespace
}  // namespace thimble::artifact_header_test
