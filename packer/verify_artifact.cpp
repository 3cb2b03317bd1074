// verify_artifact.cpp: decode, encode again section by section, compare.
#include "packer/verify_artifact.h"

#include <algorithm>

#include "packer/artifact.h"
#include "packer/container/artifact_reader.h"
#include "packer/container/section_content.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

struct PackedAgain {
  std::vector<ContentShape> shapes;
  std::vector<std::shared_ptr<const PackedSection>> sections;
};

// The sections of `file` made anew from `model`, in the layouts and codecs the file uses.
PackedAgain pack_again(const QuantizedModel& model, const std::vector<StoredSection>& stored, const std::string& path,
                       Progress& progress) {
  const ArtifactHeader header = header_of(model);
  const std::string text = header_text(header, path);
  const std::vector<PlannedSection> plan = plan_sections(header.tensors, path);
  PackedAgain packed{{{SectionKind::kHeader, 1, text.size()}}, {}};
  for (const PlannedSection& section : plan) packed.shapes.push_back(section.shape);
  packed.sections.resize(stored.size());
  progress.begin("verifying", static_cast<int64_t>(stored.size()), "sections");
  parallel_for(static_cast<int64_t>(stored.size()), [&](int64_t index) {
    const auto i = static_cast<size_t>(index);
    const SectionEntry& entry = stored[i].entry;
    if (i == 0) {
      packed.sections[i] = std::make_shared<PackedSection>(
          pack_section_as(packed.shapes[i], as_bytes_of(text), entry.layout, entry.codec));
    } else {
      packed.sections[i] = std::make_shared<PackedSection>(
          pack_section_as(packed.shapes[i], gather_content(model, plan[i - 1]), entry.layout, entry.codec));
    }
    progress.advance(1);
  });
  progress.end();
  return packed;
}

bool same_laid_out_bytes(const StoredSection& stored, const PackedSection& packed, const ContentShape& shape,
                         const std::string& path) {
  return decompress_section(stored, shape, path) == decompress_section({packed.entry, packed.stored}, shape, path);
}

}  // namespace

VerifyReport verify_artifact(Bytes file, const std::string& path, Progress& progress) {
  VerifyReport report;
  try {
    const StoredContainer container = read_container(file, path);
    const std::vector<StoredSection>& stored = container.sections;
    report.container_ok = true;
    const QuantizedModel model = decode_artifact(file, path);
    report.decodes = true;
    const PackedAgain packed = pack_again(model, stored, path, progress);
    report.canonical = true;
    for (size_t i = 0; i < stored.size(); ++i) {
      if (std::ranges::equal(stored[i].stored, packed.sections[i]->stored)) continue;
      report.recompressed_differently.push_back(i);
      if (!same_laid_out_bytes(stored[i], *packed.sections[i], packed.shapes[i], path)) {
        report.canonical = false;
        report.problem = section_where(path, i, stored[i].entry.kind) + ": not what encoding its contents gives";
      }
    }
    report.identical =
        report.canonical && std::ranges::equal(write_container(container.version, packed.sections), file);
  } catch (const FormatError& error) {
    report.problem = error.what();
  }
  return report;
}

}  // namespace thimble
