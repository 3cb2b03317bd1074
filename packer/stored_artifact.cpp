// stored_artifact.cpp: an artifact as a StoredModel: small sections are decoded when it is opened, codes when they are
// asked for.
#include <algorithm>
#include <optional>

#include "packer/artifact.h"
#include "packer/container/artifact_reader.h"
#include "packer/container/section_content.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

// What a device can unpack of the layouts of codes; nothing where the host must.
std::optional<CodeLayout> unpacked_on_device(LayoutId layout) {
  switch (layout) {
    case LayoutId::kPlain: return CodeLayout::kRows;
    case LayoutId::kColumns: return CodeLayout::kColumns;
    case LayoutId::kBits: return CodeLayout::kBits;
    case LayoutId::kDigits: return CodeLayout::kDigits;
    case LayoutId::kDigitColumns: return CodeLayout::kDigitColumns;
    case LayoutId::kPlanes: break;
  }
  return std::nullopt;
}

// Stepped codes and those of NVFP4 are the host's.
bool is_block(const OpenArtifact& artifact, size_t i) {
  const ContentShape& shape = artifact.plan[i].shape;
  return shape.kind == SectionKind::kCodes && !shape.has_stepped_codes() && !is_nvfp4_section(artifact, i);
}

class StoredArtifact final : public StoredModel {
 public:
  StoredArtifact(Bytes file, const std::string& path) : path_(path), artifact_(open_artifact(file, path)) {
    read_small_sections();
    for (size_t i = 0; i < artifact_.plan.size(); ++i)
      if (is_block(artifact_, i)) add_block(i);
  }

  const std::string& path() const override { return path_; }
  const QuantizedModel& model() const override { return model_; }
  const std::vector<CodeBlock>& blocks() const override { return blocks_; }

  ByteVector read(size_t block) const override {
    size_t section = sections_[block];
    if (!unpacked_on_device(entry(section).layout)) return read_content(artifact_, section, path_);
    return decompress_section(artifact_.sections[section], artifact_.plan[section].shape, where(section));
  }

  std::vector<int8_t> unpack(size_t block, Bytes bytes) const override {
    size_t section = sections_[block];
    const ContentShape& shape = artifact_.plan[section].shape;
    ByteVector laid_out(bytes.begin(), bytes.end());
    if (unpacked_on_device(entry(section).layout))
      laid_out = undo_layout(entry(section).layout, shape, bytes, where(section));
    const auto* first = reinterpret_cast<const int8_t*>(laid_out.data());
    std::vector<int8_t> codes(first, first + laid_out.size());
    check_code_range(codes, shape.max_code, where(section));
    return codes;
  }

 private:
  const SectionEntry& entry(size_t section) const { return artifact_.sections[section].entry; }
  std::string where(size_t section) const { return section_where(path_, section + 1, entry(section).kind); }

  // Scales and raw tensors. As in decode_artifact(), decompressed before any tensor is given room.
  void read_small_sections() {
    std::vector<ByteVector> contents(artifact_.plan.size());
    parallel_for(static_cast<int64_t>(contents.size()), [&](int64_t i) {
      auto section = static_cast<size_t>(i);
      if (artifact_.plan[section].shape.kind != SectionKind::kCodes)
        contents[section] = read_content(artifact_, section, path_);
    });
    model_ = empty_model(artifact_.header);
    for (size_t i = 0; i < contents.size(); ++i)
      if (artifact_.plan[i].shape.kind != SectionKind::kCodes) append_content(model_, artifact_.plan[i], contents[i]);
    check_model_without_codes(model_, path_);
  }

  void add_block(size_t section) {
    const PlannedSection& plan = artifact_.plan[section];
    std::optional<CodeLayout> layout = unpacked_on_device(entry(section).layout);
    uint64_t bytes = layout ? entry(section).raw_bytes : plan.shape.content_bytes();
    blocks_.push_back({plan.slices[0].tensor, static_cast<int64_t>(plan.slices[0].first_byte),
                       static_cast<int64_t>(plan.shape.rows), static_cast<int64_t>(plan.shape.columns),
                       layout.value_or(CodeLayout::kRows), static_cast<int64_t>(bytes)});
    sections_.push_back(section);
  }

  std::string path_;
  OpenArtifact artifact_;
  QuantizedModel model_;
  std::vector<CodeBlock> blocks_;
  std::vector<size_t> sections_;  // of blocks_, as indices into artifact_.plan
};

}  // namespace

std::unique_ptr<StoredModel> open_stored_artifact(Bytes file, const std::string& path) {
  return std::make_unique<StoredArtifact>(file, path);
}

}  // namespace thimble
