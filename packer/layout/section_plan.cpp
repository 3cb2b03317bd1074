// section_plan.cpp: the cutting rules.
#include "packer/layout/section_plan.h"

#include <algorithm>

#include "runtime/base/checked.h"
#include "runtime/base/format_error.h"
#include "runtime/codes/trellis.h"

namespace thimble {
namespace {

class Planner {
 public:
  explicit Planner(const std::string& where) : where_(where) {}

  void cut_codes(size_t tensor, const TensorEntry& entry) {
    const uint64_t rows = entry.rows(), columns = entry.columns();
    if (columns == 0) return;
    const bool stepped = entry.encoding == Encoding::kStepped;
    uint64_t block = kMaxSectionContentBytes / columns;  // rows
    if (stepped) {
      if (columns > kMaxSteppedSectionBytes / entry.element_bytes() / std::min<uint64_t>(rows, kTrellisRows))
        throw_format_error(where_, "tensor '{}' has {} columns, a segment of its trellis must fit in {} B", entry.name,
                           columns, kMaxSteppedSectionBytes);
      block = std::max<uint64_t>(1, block / kTrellisRows) * kTrellisRows;
    }
    const uint64_t width = block == 0 ? kMaxSectionContentBytes : columns;  // of a piece of a row, or all of it
    block = std::max<uint64_t>(block, 1);
    const auto element_bytes = entry.element_bytes();
    for (uint64_t r = 0; r < rows; r += block)
      for (uint64_t c = 0; c < columns; c += width) {
        const ContentShape shape{SectionKind::kCodes, std::min(block, rows - r), std::min(width, columns - c),
                                 element_bytes,       entry.max_section_code(),  entry.trellis_bits};
        add({shape, {{tensor, (r * columns + c) * element_bytes, shape.content_bytes()}}});
      }
  }

  // Appends `bytes` content bytes of a tensor to the stream that is open.
  void append(SectionKind kind, uint64_t element_bytes, size_t tensor, uint64_t bytes) {
    for (uint64_t done = 0; done < bytes;) {
      if (!open_) {
        add({ContentShape{kind, 1, 0, element_bytes, 0}, {}});
        open_ = true;
      }
      PlannedSection& section = sections_.back();
      uint64_t piece = std::min(bytes - done, kMaxSectionContentBytes - section.shape.content_bytes());
      section.slices.push_back({tensor, done, piece});
      section.shape.columns += piece / element_bytes;
      done += piece;
      if (section.shape.content_bytes() == kMaxSectionContentBytes) open_ = false;
    }
  }
  void close_stream() { open_ = false; }

  void add(PlannedSection section) {
    if (sections_.size() >= kMaxSections) throw_format_error(where_, "needs more than {} sections", kMaxSections);
    sections_.push_back(std::move(section));
  }

  std::vector<PlannedSection> take() { return std::move(sections_); }

 private:
  const std::string& where_;
  std::vector<PlannedSection> sections_;
  bool open_ = false;
};

}  // namespace

ArtifactPlan plan_artifact(ArtifactHeader header, std::string text, const std::string& where) {
  const std::vector<TensorEntry>& tensors = header.tensors;
  Planner planner(where);
  planner.add({{SectionKind::kHeader, 1, text.size()}, {}});
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].coded()) planner.cut_codes(i, tensors[i]);
  for (uint64_t element_bytes : {sizeof(uint16_t), sizeof(uint8_t)}) {
    for (size_t i = 0; i < tensors.size(); ++i)
      if (tensors[i].scale_element_bytes() == element_bytes)
        planner.append(SectionKind::kScales, element_bytes, i, tensors[i].scale_bytes());
    planner.close_stream();
  }
  for (uint64_t element_bytes : {1, 2, 4, 8}) {
    for (size_t i = 0; i < tensors.size(); ++i)
      if (!tensors[i].coded() && dtype_bytes(tensors[i].dtype) == element_bytes)
        planner.append(SectionKind::kRaw, element_bytes, i, tensors[i].content_bytes());
    planner.close_stream();
  }
  return {std::move(header), std::move(text), planner.take()};
}

void check_expansion(const std::vector<TensorEntry>& tensors, uint64_t file_bytes, const std::string& where) {
  uint64_t model_bytes = 0;
  for (const TensorEntry& tensor : tensors)
    model_bytes = add_or_throw(model_bytes, add_or_throw(tensor.content_bytes(), tensor.scale_bytes(), where), where);
  uint64_t allowed = add_or_throw(kExpansionFloorBytes, mul_or_throw(kMaxExpansion, file_bytes, where), where);
  if (model_bytes > allowed)
    throw_format_error(where, "a model of {} B in a file of {} B, at most {} B allowed", model_bytes, file_bytes,
                       allowed);
}

}  // namespace thimble
