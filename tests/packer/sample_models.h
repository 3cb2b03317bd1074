// sample_models.h: quantized models for the packer's tests, small and awkward.
#pragma once

#include <algorithm>
#include <array>
#include <random>
#include <string>

#include "packer/artifact.h"
#include "packer/container/artifact_reader.h"
#include "packer/container/section_content.h"
#include "packer/layout/stored_model.h"
#include "tests/runtime/codes/random_nvfp4.h"

namespace thimble {

// Codes drawn from `code()` with scales 1.0, 1.0 + 1/1024, ...
template <typename Code>
QuantizedTensor coded_tensor(const std::string& name, int64_t rows, int64_t columns, int max_code, Code code) {
  RowScaledCodes coded;
  coded.max_code = max_code;
  for (int64_t i = 0; i < rows * columns; ++i) coded.codes.push_back(static_cast<int8_t>(code()));
  for (int64_t r = 0; r < rows; ++r) coded.row_scales.push_back(static_cast<uint16_t>(0x3c00 + r % 1024));
  return {name, {rows, columns}, coded};
}

// Uniform codes over the whole range.
inline QuantizedTensor random_tensor(const std::string& name, int64_t rows, int64_t columns, int max_code) {
  std::mt19937 random(static_cast<unsigned>(rows * 1000 + columns * 10 + max_code));
  return coded_tensor(name, rows, columns, max_code,
                      [&] { return static_cast<int>(random() % static_cast<unsigned>(2 * max_code + 1)) - max_code; });
}

// Codes of about a normal distribution, wider in later columns.
inline QuantizedTensor stepped_tensor(const std::string& name, int64_t rows, int64_t columns, int trellis_bits) {
  std::mt19937 random(static_cast<unsigned>(rows * 1000 + columns * 10 + trellis_bits));
  SteppedCodes coded;
  coded.trellis_bits = trellis_bits;
  for (int64_t i = 0; i < rows * columns; ++i)
    coded.codes.append(
        std::array{static_cast<int32_t>(random() % 5 + random() % 5) - 4 + static_cast<int32_t>(i % columns) / 8});
  for (int64_t r = 0; r < rows; ++r) coded.row_steps.push_back(static_cast<int16_t>(-8 * (r % 40)));
  for (int64_t k = 0; k < columns; ++k) coded.column_steps.push_back(static_cast<int16_t>(8 * (k % 9) - 300));
  return {name, {rows, columns}, coded};
}

// Any codes and scales.
inline QuantizedTensor nvfp4_tensor(const std::string& name, int64_t rows, int64_t columns) {
  return {name, {rows, columns}, random_nvfp4(rows, columns, static_cast<uint32_t>(rows * 1000 + columns), 0.37f)};
}

inline QuantizedTensor raw_tensor(const std::string& name, const Shape& shape, DType dtype) {
  RawTensor raw{dtype, {}};
  std::mt19937 random(static_cast<unsigned>(name.size()));
  for (size_t i = 0; i < static_cast<size_t>(element_count(shape)) * dtype_bytes(dtype); ++i)
    raw.bytes.push_back(static_cast<std::byte>(random() % 7));
  return {name, shape, raw};
}

// Tensors with row scales and without codes, in a model that encodes in milliseconds.
inline QuantizedModel sample_model() {
  QuantizedModel model;
  model.config_json = R"({"architecture":"golf-gpt","rope_base":10000.0})";
  model.provenance_json = R"({"method":"trace","seed":7})";
  model.banked = true;
  model.tensors = {random_tensor("a.weight", 5, 7, 15), raw_tensor("b.gain", {8}, DType::kF16),
                   random_tensor("c.weight", 4, 9, 3), raw_tensor("d.scale", {}, DType::kF32),
                   raw_tensor("e.mask", {3}, DType::kU8)};
  return model;
}

// The same with steps and NVFP4.
inline QuantizedModel mixed_model() {
  QuantizedModel model = sample_model();
  model.tensors.push_back(nvfp4_tensor("f.weight", 5, 33));
  model.tensors.push_back(stepped_tensor("g.weight", 6, 5, 3));
  model.tensors.push_back(nvfp4_tensor("h.weight", 3, 48));
  return model;
}

inline ByteVector encode(const QuantizedModel& model, const EncodeOptions& options = {}) {
  SectionCache cache;
  SilentProgress progress;
  return encode_artifact(model, options, cache, progress);
}

// The artifact whose codes all lie in `layout`, where that is allowed.
inline ByteVector encode_in(const QuantizedModel& model, LayoutId layout, CodecId codec = CodecId::kZstd) {
  const ArtifactPlan plan = plan_artifact(model, "test");
  PackedSections sections;
  for (size_t i = 0; i < plan.sections.size(); ++i) {
    const ContentShape& shape = plan.sections[i].shape;
    const bool fits = std::ranges::count(allowed_layouts(shape), layout) > 0;
    sections.push_back(std::make_shared<PackedSection>(pack_section_as(
        shape, gather_content(model, plan, i), fits ? layout : LayoutId::kPlain, i == 0 ? CodecId::kNone : codec)));
  }
  return write_container(format_version_of(plan.header), sections);
}

}  // namespace thimble
