// artifact.cpp: packs all sections of a model in parallel and assembles the file; opens them in parallel and rebuilds
// it; describes a file by its table and header; proves it by decoding, encoding again section by section, comparing.
#include "packer/artifact.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>

#include "packer/container/artifact_reader.h"
#include "packer/container/section_content.h"
#include "packer/layout/stored_model.h"
#include "runtime/base/file_kind.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

// Of sections that are decompressed at a time, but for the last of them: enough for all threads.
uint64_t most_contents_at_once() {
  return std::max<uint64_t>(uint64_t{64} << 20, static_cast<uint64_t>(thread_count()) << 25);
}
constexpr const char* kNoFile = "model";  // in errors about what is in none yet
// Raw tensors of no more than that are read to be described.
constexpr uint64_t kMostDescribedBytes = uint64_t{64} << 20;

StoredTensorSummary summarize(const TensorEntry& entry) {
  return {entry.name, entry.shape, precision_name(entry), entry.max_code, entry.elements(), entry.coded(), 0, 0, {}};
}

// Of float32 values: those of float64 tensors may have more bits.
std::optional<StoredTensorSummary::Steps> steps_of(std::span<const float> values) {
  constexpr int kMantissa = 24;
  int log2_step = INT_MAX, log2_most = INT_MIN;  // 2^log2_most is above every magnitude
  for (float value : values) {
    if (!std::isfinite(value)) return std::nullopt;
    if (value == 0) continue;
    int exponent = 0;
    const auto digits = static_cast<uint32_t>(std::ldexp(std::abs(std::frexp(value, &exponent)), kMantissa));
    log2_step = std::min(log2_step, exponent - kMantissa + std::countr_zero(digits));
    log2_most = std::max(log2_most, exponent);
  }
  if (log2_most == INT_MIN) return std::nullopt;
  return StoredTensorSummary::Steps{log2_step, log2_most - log2_step + 1};
}

// Sets those of all raw tensors.
void add_raw_steps(const OpenArtifact& artifact, const std::string& path, ArtifactSummary& summary) {
  const std::vector<PlannedSection>& sections = artifact.plan.sections;
  std::vector<size_t> raw_sections;
  uint64_t bytes = 0;
  for (size_t i = 1; i < sections.size(); ++i) {
    if (artifact.sections[i].entry.kind != SectionKind::kRaw) continue;
    raw_sections.push_back(i);
    bytes += sections[i].shape.content_bytes();
  }
  if (bytes > kMostDescribedBytes) return;
  QuantizedModel model = empty_model(artifact.plan.header);
  for (size_t i : raw_sections)
    scatter_content(model, sections[i], read_content(artifact.sections[i], artifact.plan, i, path));
  for (size_t i = 0; i < model.tensors.size(); ++i)
    if (const auto* raw = std::get_if<RawTensor>(&model.tensors[i].data); raw && is_floating(raw->dtype))
      summary.tensors[i].raw_steps = steps_of(to_float32(raw->dtype, raw->bytes));
}

OpenArtifact open_stored(Bytes file, const std::string& path) {
  refuse_other_kinds(file, FileUse::kArtifact, path);
  OpenArtifact artifact = open_artifact(file, path);
  check_canonical_json(artifact.plan.header, section_where(path, 0, SectionKind::kHeader));
  return artifact;
}

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

// Both must outlive it.
SectionContents contents_of(const QuantizedModel& model, const ArtifactPlan& plan) {
  return {[&](size_t i) { return gather_content(model, plan, i); },
          [&](size_t i) { return hash_content(model, plan, i); }};
}

struct PackedModel {
  uint32_t version = 0;
  PackedSections sections;
};

PackedModel pack_model(const QuantizedModel& model, const EncodeOptions& options, SectionCache& cache,
                       Progress& progress) {
  const ArtifactPlan plan = plan_artifact(model, kNoFile);
  std::vector<ContentShape> shapes;
  for (const PlannedSection& section : plan.sections) shapes.push_back(section.shape);
  PackedSections packed = cache.pack(shapes, contents_of(model, plan), options, progress);
  check_expansion(plan.header.tensors, container_bytes(packed), kNoFile);
  return {format_version_of(plan.header), std::move(packed)};
}

}  // namespace

ByteVector encode_artifact(const QuantizedModel& model, const EncodeOptions& options, SectionCache& cache,
                           Progress& progress) {
  const PackedModel packed = pack_model(model, options, cache, progress);
  return write_container(packed.version, packed.sections);
}

uint64_t count_artifact_bytes(const QuantizedModel& model, const EncodeOptions& options, SectionCache& cache,
                              Progress& progress) {
  return container_bytes(pack_model(model, options, cache, progress).sections);
}

void pack_codes_ahead(const QuantizedTensor& tensor, const EncodeOptions& options, SectionCache& cache,
                      BackgroundTasks& tasks) {
  // A model of nothing else: what a tensor's codes are cut into does not depend on other tensors.
  struct Alone {
    QuantizedModel model;
    ArtifactPlan plan;
  };
  const auto alone = std::make_shared<Alone>();
  alone->model.tensors = {tensor};
  alone->plan = plan_artifact(alone->model, kNoFile);
  for (size_t i = 0; i < alone->plan.sections.size(); ++i) {
    if (alone->plan.sections[i].shape.kind != SectionKind::kCodes) continue;
    tasks.run([alone, i, options, &cache] {
      const SectionContents contents = contents_of(alone->model, alone->plan);
      cache.pack_ahead(alone->plan.sections[i].shape, contents.from(i), options);
    });
  }
}

QuantizedModel decode_artifact(Bytes file, const std::string& path) {
  const OpenArtifact artifact = open_stored(file, path);
  const std::vector<PlannedSection>& sections = artifact.plan.sections;
  QuantizedModel model = empty_model(artifact.plan.header);
  // A few sections at a time: their contents may take several times the bytes that tensors do. A tensor is given room
  // once its first section is decompressed.
  const uint64_t most = most_contents_at_once();
  for (size_t first = 1, next = 1; first < sections.size(); first = next) {
    for (uint64_t bytes = 0; next < sections.size() && (next == first || bytes < most); ++next)
      bytes += sections[next].shape.content_bytes();
    std::vector<ByteVector> contents(next - first);
    parallel_for(std::ssize(contents), [&](int64_t i) {
      contents[static_cast<size_t>(i)] = read_content(artifact.sections[first + static_cast<size_t>(i)], artifact.plan,
                                                      first + static_cast<size_t>(i), path);
    });
    scatter_contents(model, std::span(sections).subspan(first, contents.size()), contents);
  }
  check_contents(model, artifact.plan.header.tensors, path);
  return model;
}

ArtifactSummary describe_artifact(Bytes file, const std::string& path) {
  const OpenArtifact artifact = open_stored(file, path);
  ArtifactSummary summary;
  summary.file_bytes = file.size();
  summary.container_bytes = kPrefixBytes + artifact.sections.size() * kSectionEntryBytes;
  summary.format_version = artifact.version;
  const ArtifactHeader& header = artifact.plan.header;
  summary.banked = header.banked;
  summary.config_json = header.config_json;
  summary.provenance_json = header.provenance_json;
  for (const TensorEntry& entry : header.tensors) summary.tensors.push_back(summarize(entry));
  for (size_t i = 0; i < artifact.sections.size(); ++i) {
    const SectionEntry& entry = artifact.sections[i].entry;
    const PlannedSection& planned = artifact.plan.sections[i];
    const uint64_t content_bytes = planned.shape.content_bytes();
    summary.sections.push_back({std::string(section_kind_name(entry.kind)),
                                std::string(codec_name(entry.codec)),
                                std::string(layout_name(entry.layout)),
                                {},
                                content_bytes,
                                entry.raw_bytes,
                                entry.stored_bytes});
    if (planned.slices.size() == 1) summary.sections.back().tensor = header.tensors[planned.slices.front().tensor].name;
    for (const TensorSlice& slice : planned.slices)
      summary.tensors[slice.tensor].stored_bytes += static_cast<double>(entry.stored_bytes) *
                                                    static_cast<double>(slice.bytes) /
                                                    static_cast<double>(content_bytes);
  }
  add_raw_steps(artifact, path, summary);
  for (StoredTensorSummary& tensor : summary.tensors)
    if (tensor.elements > 0) tensor.bits_per_weight = 8 * tensor.stored_bytes / static_cast<double>(tensor.elements);
  return summary;
}

VerifyReport verify_artifact(Bytes file, const std::string& path, Progress& progress) {
  VerifyReport report;
  try {
    refuse_other_kinds(file, FileUse::kArtifact, path);
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
