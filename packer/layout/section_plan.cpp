// section_plan.cpp: the cutting rules.
#include "packer/layout/section_plan.h"

#include <algorithm>

#include "runtime/base/checked.h"
#include "runtime/codes/trellis.h"

namespace thimble {
namespace {

class Planner {
 public:
  explicit Planner(const std::string& where) : where_(where) {}

  void cut_codes(size_t tensor, const TensorEntry& entry) {
    if (entry.encoding == Encoding::kStepped)
      cut_stepped_codes(tensor, entry);
    else
      cut_byte_codes(tensor, entry);
  }
  void cut_byte_codes(size_t tensor, const TensorEntry& entry) {
    const uint64_t rows = entry.rows();
    const uint64_t columns = entry.columns();
    if (columns == 0) return;
    if (columns <= kMaxSectionContentBytes) {
      const uint64_t block = kMaxSectionContentBytes / columns;
      for (uint64_t r = 0; r < rows; r += block)
        add_codes(tensor, entry, r * columns, std::min(block, rows - r), columns);
      return;
    }
    for (uint64_t r = 0; r < rows; ++r)
      for (uint64_t c = 0; c < columns; c += kMaxSectionContentBytes)
        add_codes(tensor, entry, r * columns + c, 1, std::min(kMaxSectionContentBytes, columns - c));
  }

  void cut_stepped_codes(size_t tensor, const TensorEntry& entry) {
    const uint64_t rows = entry.rows();
    const uint64_t columns = entry.columns();
    if (columns == 0) return;
    const uint64_t segment = std::min<uint64_t>(rows, kTrellisRows);
    if (columns > kMaxSteppedSectionBytes / entry.element_bytes() / std::max<uint64_t>(segment, 1))
      throw FormatError(where_, "tensor '" + entry.name + "' has " + std::to_string(columns) +
                                    " columns, a segment of its trellis must fit in " +
                                    std::to_string(kMaxSteppedSectionBytes) + " B");
    const uint64_t segments = std::max<uint64_t>(1, kMaxSectionContentBytes / columns / kTrellisRows);
    const uint64_t block = segments * kTrellisRows;
    for (uint64_t r = 0; r < rows; r += block)
      add_codes(tensor, entry, r * columns, std::min(block, rows - r), columns);
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

  std::vector<PlannedSection> take() { return std::move(sections_); }

 private:
  // One section of a code matrix: rows x columns codes from code `first` on.
  void add_codes(size_t tensor, const TensorEntry& entry, uint64_t first, uint64_t rows, uint64_t columns) {
    const uint64_t element_bytes = entry.element_bytes();
    ContentShape shape{SectionKind::kCodes, rows, columns, element_bytes, entry.max_section_code(), entry.trellis_bits};
    add({shape, {{tensor, first * element_bytes, rows * columns * element_bytes}}});
  }

  void add(PlannedSection section) {
    if (sections_.size() + 1 >= kMaxSections)
      throw FormatError(where_, "needs more than " + std::to_string(kMaxSections) + " sections");
    sections_.push_back(std::move(section));
  }

  const std::string& where_;
  std::vector<PlannedSection> sections_;
  bool open_ = false;
};

}  // namespace

std::vector<PlannedSection> plan_sections(const std::vector<TensorEntry>& tensors, const std::string& where) {
  Planner planner(where);
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
  return planner.take();
}

void check_expansion(const std::vector<TensorEntry>& tensors, uint64_t file_bytes, const std::string& where) {
  uint64_t model_bytes = 0;
  for (const TensorEntry& tensor : tensors)
    model_bytes = add_or_throw(model_bytes, add_or_throw(tensor.content_bytes(), tensor.scale_bytes(), where), where);
  uint64_t allowed = add_or_throw(kExpansionFloorBytes, mul_or_throw(kMaxExpansion, file_bytes, where), where);
  if (model_bytes > allowed)
    throw FormatError(where, "a model of " + std::to_string(model_bytes) + " B in a file of " +
                                 std::to_string(file_bytes) + " B, at most " + std::to_string(allowed) + " B allowed");
}

}  // namespace thimble
