// verify_artifact.cpp: decode, encode again section by section, compare.
#include "packer/verify_artifact.h"

#include <algorithm>

#include "packer/artifact.h"
#include "packer/container/section_content.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

// The sections of `model` made anew, in the layouts and codecs of the stored ones.
PackedSections pack_again(const QuantizedModel& model, const ArtifactPlan& plan,
                          const std::vector<StoredSection>& stored, Progress& progress) {
  PackedSections packed(stored.size());
  progress.begin("verifying", std::ssize(stored), "sections");
  parallel_for(std::ssize(stored), [&](int64_t index) {
    const auto i = static_cast<size_t>(index);
    const SectionEntry& entry = stored[i].entry;
    packed[i] = std::make_shared<PackedSection>(
        pack_section_as(plan.sections[i].shape, gather_content(model, plan, i), entry.layout, entry.codec));
    progress.advance(1);
  });
  progress.end();
  return packed;
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
    const ArtifactPlan plan = plan_artifact(model, path);
    const PackedSections packed = pack_again(model, plan, stored, progress);
    report.canonical = true;
    for (size_t i = 0; i < stored.size(); ++i) {
      if (std::ranges::equal(stored[i].stored, packed[i]->stored)) continue;
      report.recompressed_differently.push_back(i);
      const ContentShape& shape = plan.sections[i].shape;
      if (decompress_section(stored[i], shape, path) !=
          decompress_section({packed[i]->entry, packed[i]->stored}, shape, path)) {
        report.canonical = false;
        report.problem = section_where(path, i, stored[i].entry.kind) + ": not what encoding its contents gives";
      }
    }
    report.identical = report.canonical && std::ranges::equal(write_container(container.version, packed), file);
  } catch (const FormatError& error) {
    report.problem = error.what();
  }
  return report;
}

}  // namespace thimble
