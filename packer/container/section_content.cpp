// section_content.cpp: gathering and appending slices.
#include "packer/container/section_content.h"

#include <bit>

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

// Codes of NVFP4 as int8 levels: the element's place among the magnitudes, with its sign.
void append_levels(ByteVector& out, const Nvfp4Codes& coded, int64_t columns, const TensorSlice& slice) {
  const auto first = static_cast<int64_t>(slice.first_byte), count = static_cast<int64_t>(slice.bytes);
  for (int64_t i = first; i < first + count; ++i) {
    const uint8_t code = nvfp4_code(coded, nvfp4_row_bytes(columns), i / columns, i % columns);
    const int magnitude = code & kE2m1MaxCode;
    out.push_back(static_cast<std::byte>(code & kE2m1Sign ? -magnitude : magnitude));
  }
}
void append_levels(Nvfp4Codes& coded, int64_t columns, const TensorSlice& slice, Bytes bytes) {
  const auto first = static_cast<int64_t>(slice.first_byte);
  const int64_t row_bytes = nvfp4_row_bytes(columns), last = first + static_cast<int64_t>(bytes.size()) - 1;
  coded.codes.resize(static_cast<size_t>(last / columns * row_bytes + last % columns / 2 + 1));
  for (int64_t i = first; i <= last; ++i) {
    const int level = static_cast<int8_t>(bytes[static_cast<size_t>(i - first)]);
    const int code = level < 0 ? kE2m1Sign | -level : level;
    set_nvfp4_code(coded, row_bytes, i / columns, i % columns, static_cast<uint8_t>(code & 0xf));
  }
}

// The tensor scale and then the block scales.
void append_scales(ByteVector& out, const Nvfp4Codes& coded, const TensorSlice& slice) {
  ByteVector all;
  append_little_endian(all, std::bit_cast<uint32_t>(coded.tensor_scale));
  append_bytes(all, std::as_bytes(std::span(coded.block_scales)));
  append_bytes(out, Bytes(all).subspan(slice.first_byte, slice.bytes));
}
// A cut may fall anywhere, also within the tensor scale, whose bytes lie among the block scales until all are there.
void append_scales(Nvfp4Codes& coded, uint64_t scale_bytes, const TensorSlice& slice, Bytes bytes) {
  for (std::byte byte : bytes) coded.block_scales.push_back(std::to_integer<uint8_t>(byte));
  if (slice.first_byte + slice.bytes < scale_bytes) return;
  const auto first = coded.block_scales.begin();
  ByteCursor cursor(std::as_bytes(std::span(coded.block_scales)), "tensor scale");
  coded.tensor_scale = std::bit_cast<float>(cursor.read<uint32_t>("tensor scale"));
  coded.block_scales.erase(first, first + sizeof(float));
}

int64_t columns_of(const QuantizedTensor& tensor) {
  return tensor.shape[0] == 0 ? 0 : element_count(tensor.shape) / tensor.shape[0];
}
uint64_t nvfp4_scale_bytes(const QuantizedTensor& tensor) {
  return sizeof(float) + static_cast<uint64_t>(tensor.shape[0] * nvfp4_blocks(columns_of(tensor)));
}

}  // namespace

QuantizedModel empty_model(const ArtifactHeader& header) {
  QuantizedModel model{header.config_json, header.provenance_json, header.banked, {}};
  for (const TensorEntry& entry : header.tensors) {
    QuantizedTensor& tensor = model.tensors.emplace_back(QuantizedTensor{entry.name, entry.shape, {}});
    switch (entry.encoding) {
      case Encoding::kRowScaled: tensor.data.emplace<RowScaledCodes>().max_code = entry.max_code; break;
      case Encoding::kStepped: tensor.data.emplace<SteppedCodes>().trellis_bits = entry.trellis_bits; break;
      case Encoding::kNvfp4: tensor.data.emplace<Nvfp4Codes>(); break;
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
    if (const auto* blocked = std::get_if<Nvfp4Codes>(&data)) {
      if (section.shape.kind == SectionKind::kScales)
        append_scales(content, *blocked, slice);
      else
        append_levels(content, *blocked, columns_of(model.tensors[slice.tensor]), slice);
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
    } else if (auto* blocked = std::get_if<Nvfp4Codes>(&data)) {
      if (section.shape.kind == SectionKind::kScales)
        append_scales(*blocked, nvfp4_scale_bytes(tensor), slice, bytes);
      else
        append_levels(*blocked, columns_of(tensor), slice, bytes);
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
