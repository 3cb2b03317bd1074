// artifact.cpp: packs all sections of a model in parallel and assembles the file; opens them in parallel and rebuilds
// it.
#include "packer/artifact.h"

#include "packer/container/artifact_reader.h"
#include "packer/container/section_content.h"
#include "runtime/base/parallel.h"

namespace thimble {
ByteVector encode_artifact(const QuantizedModel& model, const EncodeOptions& options, SectionCache& cache,
                           Progress& progress) {
  constexpr const char* kWhere = "model";  // in errors: there is no file yet
  const ArtifactPlan plan = plan_artifact(model, kWhere);
  std::vector<ContentShape> shapes;
  for (const PlannedSection& section : plan.sections) shapes.push_back(section.shape);
  const PackedSections packed = cache.pack(
      shapes, [&](size_t i) { return gather_content(model, plan, i); }, options, progress);
  check_expansion(plan.header.tensors, container_bytes(packed), kWhere);
  return write_container(format_version_of(plan.header), packed);
}

QuantizedModel decode_artifact(Bytes file, const std::string& path) {
  const OpenArtifact artifact = open_artifact(file, path);
  const std::vector<PlannedSection>& sections = artifact.plan.sections;
  // Everything is decompressed before any tensor is given room, so memory follows what the file really holds.
  std::vector<ByteVector> contents(sections.size());
  parallel_for(std::ssize(contents) - 1, [&](int64_t i) {
    contents[static_cast<size_t>(i) + 1] = read_content(artifact, static_cast<size_t>(i) + 1, path);
  });
  QuantizedModel model = empty_model(artifact.plan.header);
  for (size_t i = 1; i < contents.size(); ++i) {
    scatter_content(model, sections[i], contents[i]);
    contents[i] = {};
  }
  check_contents(model, artifact.plan.header.tensors, path);
  return model;
}

}  // namespace thimble
