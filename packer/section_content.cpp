// section_content.cpp: gathering and appending slices.
#include "packer/section_content.h"

namespace thimble {
namespace {

// fp16 bits to little-endian bytes and back, whatever the machine's order.
void append_scales(ByteVector& out, std::span<const uint16_t> scales) {
  for (uint16_t scale : scales) append_little_endian(out, scale);
}
void append_scales(std::vector<uint16_t>& out, Bytes bytes) {
  ByteCursor cursor(bytes, "scales");
  while (!cursor.at_end()) out.push_back(cursor.read<uint16_t>("scale"));
}

}  // namespace

QuantizedModel empty_model(const ArtifactHeader& header) {
  QuantizedModel model{header.config_json, header.provenance_json, header.banked, {}};
  for (const TensorEntry& entry : header.tensors) {
    QuantizedTensor& tensor = model.tensors.emplace_back(QuantizedTensor{entry.name, entry.shape, {}});
    if (entry.coded())
      tensor.data.emplace<RowScaledCodes>().max_code = entry.max_code;
    else
      tensor.data.emplace<RawTensor>().dtype = entry.dtype;
  }
  return model;
}

ByteVector gather_content(const QuantizedModel& model, const PlannedSection& section) {
  ByteVector content;
  content.reserve(section.shape.content_bytes());
  for (const TensorSlice& slice : section.slices) {
    const auto& data = model.tensors[slice.tensor].data;
    if (section.shape.kind == SectionKind::kScales) {
      std::span<const uint16_t> scales = std::get<RowScaledCodes>(data).row_scales;
      append_scales(content, scales.subspan(slice.first_byte / sizeof(uint16_t), slice.bytes / sizeof(uint16_t)));
      continue;
    }
    Bytes bytes = section.shape.kind == SectionKind::kCodes
                      ? std::as_bytes(std::span(std::get<RowScaledCodes>(data).codes))
                      : Bytes(std::get<RawTensor>(data).bytes);
    append_bytes(content, bytes.subspan(slice.first_byte, slice.bytes));
  }
  return content;
}

void append_content(QuantizedModel& model, const PlannedSection& section, Bytes content) {
  for (const TensorSlice& slice : section.slices) {
    Bytes bytes = content.first(slice.bytes);
    content = content.subspan(slice.bytes);
    auto& data = model.tensors[slice.tensor].data;
    if (section.shape.kind == SectionKind::kScales) {
      append_scales(std::get<RowScaledCodes>(data).row_scales, bytes);
    } else if (section.shape.kind == SectionKind::kCodes) {
      auto& codes = std::get<RowScaledCodes>(data).codes;
      const auto* first = reinterpret_cast<const int8_t*>(bytes.data());
      codes.insert(codes.end(), first, first + bytes.size());
    } else {
      append_bytes(std::get<RawTensor>(data).bytes, bytes);
    }
  }
}

}  // namespace thimble
