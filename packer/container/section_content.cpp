// section_content.cpp: which bytes of a tensor sections hold, and copying slices of them.
#include "packer/container/section_content.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <utility>

#include "packer/layout/stored_model.h"
#include "runtime/base/hash.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

static_assert(std::endian::native == std::endian::little, "codes and scales lie in files as in memory");

// Views of a tensor's bytes that sections of this kind hold, in their order. Stepped codes and those of NVFP4 are not
// among them: in memory they lie in as few bytes as all need, or two to a byte, in sections as int32 and int8.
template <typename Byte, typename Tensor>
std::vector<std::span<Byte>> parts_of(Tensor& tensor, SectionKind kind) {
  const auto bytes = [](auto& values) {
    auto* first = reinterpret_cast<Byte*>(std::data(values));
    return std::span(first, std::size(values) * sizeof(*std::data(values)));
  };
  const bool scales = kind == SectionKind::kScales;
  if (auto* coded = std::get_if<RowScaledCodes>(&tensor.data))
    return {scales ? bytes(coded->row_scales) : bytes(coded->codes)};
  if (auto* stepped = std::get_if<SteppedCodes>(&tensor.data))
    return {bytes(stepped->row_steps), bytes(stepped->column_steps)};
  if (auto* blocked = std::get_if<Nvfp4Codes>(&tensor.data)) {
    std::span tensor_scale(&blocked->tensor_scale, 1);
    return {bytes(tensor_scale), bytes(blocked->block_scales)};
  }
  return {bytes(std::get<RawTensor>(tensor.data).bytes)};
}

// copy(bytes of the tensor, bytes of the slice) for every run of the slice that lies in one part.
template <typename Parts, typename SliceBytes, typename Copy>
void for_each_run(const Parts& parts, uint64_t first_byte, SliceBytes slice, Copy copy) {
  uint64_t begin = 0;  // of the part
  for (const auto& part : parts) {
    const uint64_t first = std::max(begin, first_byte);
    const uint64_t last = std::min(begin + part.size(), first_byte + slice.size());
    if (first < last) copy(part.subspan(first - begin, last - first), slice.subspan(first - first_byte, last - first));
    begin += part.size();
  }
}

constexpr size_t kCodesAtOnce = 1024;

// copy(number of the first code, int32 codes, their bytes in the section) for a slice of stepped codes, piece by piece.
template <typename SliceBytes, typename Copy>
void for_each_piece(uint64_t first_byte, SliceBytes slice, const Copy& copy) {
  std::array<int32_t, kCodesAtOnce> codes;
  for (size_t done = 0; done < slice.size(); done += sizeof(codes)) {
    const SliceBytes bytes = slice.subspan(done, std::min(sizeof(codes), slice.size() - done));
    copy((first_byte + done) / sizeof(int32_t), std::span(codes).first(bytes.size() / sizeof(int32_t)), bytes);
  }
}

void gather_codes(const CodeArray& array, uint64_t first_byte, std::span<std::byte> slice) {
  for_each_piece(first_byte, slice, [&](size_t first, std::span<int32_t> codes, std::span<std::byte> bytes) {
    array.load(first, codes);
    std::ranges::copy(std::as_bytes(codes), bytes.begin());
  });
}
void scatter_codes(CodeArray& array, uint64_t first_byte, Bytes slice) {
  for_each_piece(first_byte, slice, [&](size_t first, std::span<int32_t> codes, Bytes bytes) {
    std::ranges::copy(bytes, std::as_writable_bytes(codes).begin());
    array.store(first, codes);
  });
}

// body(row, column, i-th level) for the elements of a row-major matrix from number `first` on.
template <typename Levels, typename Body>
void for_each_element(int64_t columns, uint64_t first, Levels levels, const Body& body) {
  int64_t r = static_cast<int64_t>(first) / columns, k = static_cast<int64_t>(first) % columns;
  for (auto& level : levels) {
    body(r, k, level);
    if (++k == columns) k = 0, ++r;
  }
}

// Codes of NVFP4 as int8 levels: the element's place among the magnitudes, with its sign.
void gather_levels(const Nvfp4Codes& coded, int64_t columns, uint64_t first, std::span<std::byte> levels) {
  for_each_element(columns, first, levels, [&](int64_t r, int64_t k, std::byte& level) {
    const uint8_t code = nvfp4_code(coded, nvfp4_row_bytes(columns), r, k);
    const int magnitude = code & kE2m1MaxCode;
    level = static_cast<std::byte>(code & kE2m1Sign ? -magnitude : magnitude);
  });
}
void scatter_levels(Nvfp4Codes& coded, int64_t columns, uint64_t first, Bytes levels) {
  for_each_element(columns, first, levels, [&](int64_t r, int64_t k, std::byte byte) {
    const int level = static_cast<int8_t>(byte), code = level < 0 ? kE2m1Sign | -level : level;
    set_nvfp4_code(coded, nvfp4_row_bytes(columns), r, k, static_cast<uint8_t>(code & 0xf));
  });
}

void make_room(QuantizedTensor& tensor, const TensorEntry& entry, SectionKind kind) {
  const bool scales = kind == SectionKind::kScales;
  if (auto* coded = std::get_if<RowScaledCodes>(&tensor.data)) {
    scales ? coded->row_scales.resize(entry.rows()) : coded->codes.resize(entry.elements());
  } else if (auto* stepped = std::get_if<SteppedCodes>(&tensor.data)) {
    if (!scales) return stepped->codes.resize(entry.elements());
    stepped->row_steps.resize(entry.rows());
    stepped->column_steps.resize(entry.columns());
  } else if (auto* blocked = std::get_if<Nvfp4Codes>(&tensor.data)) {
    scales ? blocked->block_scales.resize(entry.nvfp4_scales()) : blocked->codes.resize(entry.nvfp4_code_bytes());
  } else {
    std::get<RawTensor>(tensor.data).bytes.resize(entry.content_bytes());
  }
}

// Of each stepped code of the section, to hold all: 1, 2 or 4; 1 where it has none.
size_t code_bytes(const QuantizedModel& model, const PlannedSection& section, Bytes content) {
  size_t most = 1;
  if (section.shape.kind != SectionKind::kCodes) return most;
  for (const TensorSlice& slice : section.slices) {
    const Bytes bytes = content.first(slice.bytes);
    content = content.subspan(slice.bytes);
    if (!std::holds_alternative<SteppedCodes>(model.tensors[slice.tensor].data)) continue;
    for_each_piece(slice.first_byte, bytes, [&](size_t, std::span<int32_t> codes, Bytes piece) {
      std::ranges::copy(piece, std::as_writable_bytes(codes).begin());
      most = std::max(most, CodeArray::widest_bytes(codes));
    });
  }
  return most;
}

// For a slice of the tensor that a section of this kind has.
void make_room(QuantizedTensor& tensor, const TensorSlice& slice, SectionKind kind, size_t code_bytes) {
  if (auto* stepped = std::get_if<SteppedCodes>(&tensor.data)) stepped->codes.widen(code_bytes);
  if (slice.first_byte == 0) make_room(tensor, entry_of(tensor), kind);
}

// Of tensors that have room.
void fill(QuantizedModel& model, const PlannedSection& section, Bytes content) {
  for (const TensorSlice& slice : section.slices) {
    const Bytes bytes = content.first(slice.bytes);
    content = content.subspan(slice.bytes);
    QuantizedTensor& tensor = model.tensors[slice.tensor];
    const bool holds_codes = section.shape.kind == SectionKind::kCodes;
    auto* stepped = std::get_if<SteppedCodes>(&tensor.data);
    auto* blocked = std::get_if<Nvfp4Codes>(&tensor.data);
    if (stepped && holds_codes)
      scatter_codes(stepped->codes, slice.first_byte, bytes);
    else if (blocked && holds_codes)
      scatter_levels(*blocked, static_cast<int64_t>(entry_of(tensor).columns()), slice.first_byte, bytes);
    else
      for_each_run(parts_of<std::byte>(tensor, section.shape.kind), slice.first_byte, bytes,
                   [](std::span<std::byte> to, Bytes from) { std::ranges::copy(from, to.begin()); });
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
      case Encoding::kNvfp4: tensor.data.emplace<Nvfp4Codes>(); break;
      case Encoding::kRaw: tensor.data.emplace<RawTensor>().dtype = entry.dtype; break;
    }
  }
  return model;
}

ByteVector gather_content(const QuantizedModel& model, const ArtifactPlan& plan, size_t i) {
  if (i == 0) return {as_bytes_of(plan.text).begin(), as_bytes_of(plan.text).end()};
  const PlannedSection& section = plan.sections[i];
  ByteVector content(section.shape.content_bytes());
  std::span<std::byte> rest(content);
  for (const TensorSlice& slice : section.slices) {
    const std::span<std::byte> bytes = rest.first(slice.bytes);
    rest = rest.subspan(slice.bytes);
    const QuantizedTensor& tensor = model.tensors[slice.tensor];
    const bool holds_codes = section.shape.kind == SectionKind::kCodes;
    const auto* stepped = std::get_if<SteppedCodes>(&tensor.data);
    const auto* blocked = std::get_if<Nvfp4Codes>(&tensor.data);
    if (stepped && holds_codes)
      gather_codes(stepped->codes, slice.first_byte, bytes);
    else if (blocked && holds_codes)
      gather_levels(*blocked, static_cast<int64_t>(plan.header.tensors[slice.tensor].columns()), slice.first_byte,
                    bytes);
    else
      for_each_run(parts_of<const std::byte>(tensor, section.shape.kind), slice.first_byte, bytes,
                   [](Bytes from, std::span<std::byte> to) { std::ranges::copy(from, to.begin()); });
  }
  return content;
}

uint64_t hash_content(const QuantizedModel& model, const ArtifactPlan& plan, size_t i) {
  const PlannedSection& section = plan.sections[i];
  const auto stepped_codes = [&](const TensorSlice& slice) -> const CodeArray* {
    const auto* stepped = std::get_if<SteppedCodes>(&model.tensors[slice.tensor].data);
    return stepped ? &stepped->codes : nullptr;
  };
  if (section.shape.kind != SectionKind::kCodes || section.slices.empty() ||
      !std::ranges::all_of(section.slices, stepped_codes))
    return xxh3(gather_content(model, plan, i));
  Hasher hasher;
  for (const TensorSlice& slice : section.slices)
    stepped_codes(slice)->visit([&](auto codes) {
      hasher.add(sizeof(codes[0]));
      hasher.add(std::as_bytes(codes.subspan(slice.first_byte / sizeof(int32_t), slice.bytes / sizeof(int32_t))));
    });
  return hasher.digest();
}

void scatter_content(QuantizedModel& model, const PlannedSection& section, Bytes content) {
  const size_t bytes = code_bytes(model, section, content);
  for (const TensorSlice& slice : section.slices)
    make_room(model.tensors[slice.tensor], slice, section.shape.kind, bytes);
  fill(model, section, content);
}

void scatter_contents(QuantizedModel& model, std::span<const PlannedSection> sections,
                      std::span<const ByteVector> contents) {
  std::vector<size_t> bytes(contents.size());
  parallel_for(std::ssize(contents), [&](int64_t index) {
    const auto i = static_cast<size_t>(index);
    bytes[i] = code_bytes(model, sections[i], contents[i]);
  });
  using Slice = std::pair<const TensorSlice*, size_t>;  // and its section
  std::map<size_t, std::vector<Slice>> slices;          // by tensor, in file order
  for (size_t i = 0; i < contents.size(); ++i)
    for (const TensorSlice& slice : sections[i].slices) slices[slice.tensor].emplace_back(&slice, i);
  const std::vector<std::pair<size_t, std::vector<Slice>>> of_tensors(slices.begin(), slices.end());
  parallel_for(std::ssize(of_tensors), [&](int64_t index) {
    const auto& [tensor, own] = of_tensors[static_cast<size_t>(index)];
    for (const auto& [slice, i] : own) make_room(model.tensors[tensor], *slice, sections[i].shape.kind, bytes[i]);
  });
  std::vector<size_t> alone;  // two sections of NVFP4 may share a byte
  for (size_t i = 0; i < contents.size(); ++i)
    if (std::ranges::any_of(sections[i].slices, [&](const TensorSlice& slice) {
          return std::holds_alternative<Nvfp4Codes>(model.tensors[slice.tensor].data);
        }))
      alone.push_back(i);
  parallel_for(std::ssize(contents), [&](int64_t index) {
    const auto i = static_cast<size_t>(index);
    if (!std::ranges::binary_search(alone, i)) fill(model, sections[i], contents[i]);
  });
  for (size_t i : alone) fill(model, sections[i], contents[i]);
}

}  // namespace thimble
