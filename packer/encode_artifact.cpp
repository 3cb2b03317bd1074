// encode_artifact.cpp: packs all sections of a model in parallel and assembles the file.
#include <algorithm>
#include <atomic>
#include <numeric>

#include "packer/artifact.h"
#include "packer/container/section_content.h"
#include "packer/layout/artifact_header.h"
#include "packer/layout/section_plan.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

using PackedSections = std::vector<std::shared_ptr<const PackedSection>>;

constexpr const char* kWhere = "model";  // names the model in errors, which has no file yet

// Packs section 0 (the header) and the planned ones, biggest first: each worker takes the next when it is free, so the
// longest compressions never start last. Every result depends on its own section only.
PackedSections pack_sections(const QuantizedModel& model, const ArtifactHeader& header, const EncodeOptions& options,
                             SectionCache& cache, Progress& progress) {
  check_model(model, kWhere);
  const std::string text = header_text(header, kWhere);
  std::vector<PlannedSection> plan = plan_sections(header.tensors, kWhere);
  PlannedSection header_section{{SectionKind::kHeader, 1, text.size()}, {}};
  plan.insert(plan.begin(), std::move(header_section));

  std::vector<size_t> order(plan.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater{}, [&](size_t i) { return plan[i].shape.content_bytes(); });
  uint64_t content_bytes = 0;
  for (const PlannedSection& section : plan) content_bytes += section.shape.content_bytes();

  PackedSections packed(plan.size());
  std::atomic<size_t> next = 0;
  progress.begin("packing", static_cast<int64_t>(content_bytes), "B");
  parallel_for(static_cast<int64_t>(plan.size()), [&](int64_t) {
    const size_t i = order[next++];
    const ContentShape& shape = plan[i].shape;
    if (i == 0)
      packed[i] = pack_section(shape, as_bytes_of(text), options, cache);
    else
      packed[i] = pack_section(shape, gather_content(model, plan[i]), options, cache);
    progress.advance(static_cast<int64_t>(shape.content_bytes()));
  });
  progress.end();
  check_expansion(header.tensors, container_bytes(packed), kWhere);
  return packed;
}

}  // namespace

ByteVector encode_artifact(const QuantizedModel& model, const EncodeOptions& options, SectionCache& cache,
                           Progress& progress) {
  const ArtifactHeader header = header_of(model);
  return write_container(format_version_of(header), pack_sections(model, header, options, cache, progress));
}

uint64_t artifact_bytes(const QuantizedModel& model, const EncodeOptions& options, SectionCache& cache,
                        Progress& progress) {
  return container_bytes(pack_sections(model, header_of(model), options, cache, progress));
}

uint64_t codes_stored_bytes(const QuantizedTensor& tensor, const EncodeOptions& options, SectionCache& cache) {
  QuantizedModel model;
  model.tensors.push_back(tensor);
  check_model(model, kWhere);
  uint64_t bytes = 0;
  for (const PlannedSection& section : plan_sections(header_of(model).tensors, kWhere))
    if (section.shape.kind == SectionKind::kCodes)
      bytes += kSectionEntryBytes +
               pack_section(section.shape, gather_content(model, section), options, cache)->stored.size();
  return bytes;
}

}  // namespace thimble
