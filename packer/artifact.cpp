// artifact.cpp: packs all sections of a model in parallel and assembles the file; opens them in parallel and rebuilds
// it.
#include "packer/artifact.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "packer/container/artifact_reader.h"
#include "packer/container/section_content.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

constexpr const char* kWhere = "model";  // names the model in errors, which has no file yet

// Biggest first: each worker takes the next when it is free, so the longest compressions never start last. Every result
// depends on its own section only.
PackedSections pack_sections(const QuantizedModel& model, const ArtifactPlan& plan, const EncodeOptions& options,
                             SectionCache& cache, Progress& progress) {
  std::vector<size_t> order(plan.sections.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater{}, [&](size_t i) { return plan.sections[i].shape.content_bytes(); });
  uint64_t content_bytes = 0;
  for (const PlannedSection& section : plan.sections) content_bytes += section.shape.content_bytes();

  PackedSections packed(order.size());
  std::atomic<size_t> next = 0;
  progress.begin("packing", static_cast<int64_t>(content_bytes), "B");
  parallel_for(std::ssize(order), [&](int64_t) {
    const size_t i = order[next++];
    const ContentShape& shape = plan.sections[i].shape;
    packed[i] = cache.pack(shape, gather_content(model, plan, i), options);
    progress.advance(static_cast<int64_t>(shape.content_bytes()));
  });
  progress.end();
  check_expansion(plan.header.tensors, container_bytes(packed), kWhere);
  return packed;
}

}  // namespace

ByteVector encode_artifact(const QuantizedModel& model, const EncodeOptions& options, SectionCache& cache,
                           Progress& progress) {
  const ArtifactPlan plan = plan_artifact(model, kWhere);
  return write_container(format_version_of(plan.header), pack_sections(model, plan, options, cache, progress));
}

uint64_t artifact_bytes(const QuantizedModel& model, const EncodeOptions& options, SectionCache& cache,
                        Progress& progress) {
  return container_bytes(pack_sections(model, plan_artifact(model, kWhere), options, cache, progress));
}

uint64_t codes_stored_bytes(const QuantizedTensor& tensor, const EncodeOptions& options, SectionCache& cache) {
  QuantizedModel model;
  model.tensors.push_back(tensor);
  const ArtifactPlan plan = plan_artifact(model, kWhere);
  uint64_t bytes = 0;
  for (size_t i = 0; i < plan.sections.size(); ++i)
    if (const ContentShape& shape = plan.sections[i].shape; shape.kind == SectionKind::kCodes)
      bytes += kSectionEntryBytes + cache.pack(shape, gather_content(model, plan, i), options)->stored.size();
  return bytes;
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
