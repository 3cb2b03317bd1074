// section_content.cpp: gathering and appending slices.
#include "packer/section_content.h"

namespace thimble {
namespace {

// Integers to little-endian bytes and back, whatever the machine's order.
template <typename T>
void append_integers(ByteVector& out, std::span<const T> values) {
  for (T value : values) append_little_endian(out, value);
}
template <typename T>
void append_integers(std::vector<T>& out, Bytes bytes) {
  ByteCursor cursor(bytes, "integers");
  while (!cursor.at_end()) out.push_back(cursor.read<T>("integer"));
}

// A part of row steps and column steps, one after the other.
void append_steps(ByteVector& out, const SteppedCodes& coded, const TensorSlice& slice) {
  const size_t first = slice.first_byte / sizeof(int16_t), rows = coded.row_steps.size();
  for (size_t i = first; i < first + slice.bytes / sizeof(int16_t); ++i)
    append_little_endian(out, i < rows ? coded.row_steps[i] : coded.column_steps[i - rows]);
}
void append_steps(SteppedCodes& coded, size_t rows, Bytes bytes) {
  ByteCursor cursor(bytes, "steps");
  while (!cursor.at_end()) {
    std::vector<int16_t>& steps = coded.row_steps.size() < rows ? coded.row_steps : coded.column_steps;
    steps.push_back(cursor.read<int16_t>("step"));
  }
}

}  // namespace

QuantizedModel empty_model(const ArtifactHeader& header) {
  QuantizedModel model{header.config_json, header.provenance_json, header.banked, {}};
  for (const TensorEntry& entry : header.tensors) {
    QuantizedTensor& tensor = model.tensors.emplace_back(QuantizedTensor{entry.name, entry.shape, {}});
    switch (entry.encoding) {
      case Encoding::kRowScaled: tensor.data.emplace<RowScaledCodes>().max_code = entry.max_code; break;
      case Encoding::kStepped: tensor.data.emplace<SteppedCodes>().trellis_bits = entry.trellis_bits; break;
      case Encoding::kRaw: tensor.data.emplace<RawTensor>().dtype = entry.dtype; break;
    }
  }
  return model;
}

ByteVector gather_content(const QuantizedModel& model, const PlannedSection& section) {
  ByteVector content;
  content.reserve(section.shape.content_bytes());
  for (const TensorSlice& slice : section.slices) {
    const auto& data = model.tensors[slice.tensor].data;
    if (const auto* stepped = std::get_if<SteppedCodes>(&data)) {
      if (section.shape.kind == SectionKind::kScales) {
        append_steps(content, *stepped, slice);
      } else {
        std::span<const int32_t> codes = stepped->codes;
        append_integers(content, codes.subspan(slice.first_byte / sizeof(int32_t), slice.bytes / sizeof(int32_t)));
      }
      continue;
    }
    if (section.shape.kind == SectionKind::kScales) {
      std::span<const uint16_t> scales = std::get<RowScaledCodes>(data).row_scales;
      append_integers(content, scales.subspan(slice.first_byte / sizeof(uint16_t), slice.bytes / sizeof(uint16_t)));
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
    QuantizedTensor& tensor = model.tensors[slice.tensor];
    auto& data = tensor.data;
    if (auto* stepped = std::get_if<SteppedCodes>(&data)) {
      if (section.shape.kind == SectionKind::kScales)
        append_steps(*stepped, static_cast<size_t>(tensor.shape[0]), bytes);
      else
        append_integers(stepped->codes, bytes);
    } else if (section.shape.kind == SectionKind::kScales) {
      append_integers(std::get<RowScaledCodes>(data).row_scales, bytes);
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
