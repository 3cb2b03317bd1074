// stored_model.cpp: from a model to its header and plan, and whether its contents obey the rules.
#include "packer/layout/stored_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "packer/layout/format.h"
#include "runtime/base/json.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

void check_count(uint64_t found, uint64_t expected, std::string_view what, const std::string& object) {
  if (found != expected) throw FormatError(object, fmt::format("{} {}, its shape needs {}", found, what, expected));
}

void check(const RowScaledCodes& coded, const TensorEntry& entry, const std::string& object) {
  check_count(coded.codes.size(), entry.elements(), "codes", object);
  check_count(coded.row_scales.size(), entry.rows(), "row scales", object);
  const auto scale = std::ranges::find_if_not(coded.row_scales, is_row_scale);
  if (scale != coded.row_scales.end())
    throw FormatError(object, fmt::format("row scale {} is {}, must be finite and above 0",
                                          scale - coded.row_scales.begin(), float_from_fp16(*scale)));
  check_code_range(coded.codes, coded.max_code, object);
}

void check(const SteppedCodes& coded, const TensorEntry& entry, const std::string& object) {
  check_count(coded.codes.size(), entry.elements(), "codes", object);
  check_count(coded.row_steps.size(), entry.rows(), "row steps", object);
  check_count(coded.column_steps.size(), entry.columns(), "column steps", object);
  const auto check_range = [&](const auto& values, std::string_view what, int32_t most) {
    const auto wrong = std::ranges::find_if(values, [&](int32_t value) { return value < -most || value > most; });
    if (wrong != values.end())
      throw FormatError(
          object, fmt::format("{} {} is {}, {} to {} allowed", what, wrong - values.begin(), *wrong, -most, most));
  };
  check_range(coded.row_steps, "row step", kMaxStep);
  check_range(coded.column_steps, "column step", kMaxStep);
  coded.codes.visit([&](auto codes) { check_range(codes, "code", kMaxSteppedCode); });
}

void check(const Nvfp4Codes& coded, const TensorEntry& entry, const std::string& object) {
  check_count(coded.codes.size(), entry.nvfp4_code_bytes(), "bytes of codes", object);
  check_count(coded.block_scales.size(), entry.nvfp4_scales(), "block scales", object);
  if (!is_nvfp4_tensor_scale(coded.tensor_scale))
    throw FormatError(object,
                      fmt::format("the tensor scale is {}, must be above 0 and at most 2^116", coded.tensor_scale));
  const auto scale = std::ranges::find_if(coded.block_scales, [](uint8_t s) { return s > kUe4m3MaxCode; });
  if (scale != coded.block_scales.end())
    throw FormatError(object, fmt::format("block scale {} has the code {}, 0 to {} allowed",
                                          scale - coded.block_scales.begin(), *scale, kUe4m3MaxCode));
  const uint64_t columns = entry.columns(), row_bytes = (columns + 1) / 2;
  for (size_t i = 0; i < coded.codes.size(); ++i) {
    const int low = coded.codes[i] & 0xf, high = coded.codes[i] >> 4;
    if (low == kE2m1Sign || high == kE2m1Sign)
      throw FormatError(object, fmt::format("byte {} of the codes holds -0, 0 has the code 0 alone", i));
    if (columns % 2 == 1 && (i + 1) % row_bytes == 0 && high != 0)
      throw FormatError(object, fmt::format("byte {} of the codes holds a code behind the end of its row", i));
  }
}

void check(const RawTensor& raw, const TensorEntry& entry, const std::string& object) {
  check_count(raw.bytes.size(), entry.content_bytes(), "bytes", object);
}

Json parse_object(const std::string& text, std::string_view what, const std::string& where) {
  std::string object = where + ": " + std::string(what);
  Json value = parse_json(as_bytes_of(text), object);
  if (!value.is_object()) throw FormatError(object, "must be a JSON object");
  return value;
}

Json encoding_of(const TensorEntry& tensor) {
  switch (tensor.encoding) {
    case Encoding::kRowScaled: return tensor.max_code;
    case Encoding::kStepped: return fmt::format("T{}", tensor.trellis_bits);
    case Encoding::kNvfp4: return kNvfp4Name;
    case Encoding::kRaw: break;
  }
  return dtype_name(tensor.dtype);
}

}  // namespace

void check_contents(const QuantizedModel& model, const std::vector<TensorEntry>& entries, const std::string& where) {
  parallel_for(std::ssize(entries), [&](int64_t i) {
    const TensorEntry& entry = entries[static_cast<size_t>(i)];
    std::visit([&](const auto& data) { check(data, entry, tensor_where(where, entry.name)); },
               model.tensors[static_cast<size_t>(i)].data);
  });
}

TensorEntry entry_of(const QuantizedTensor& tensor) {
  TensorEntry entry{tensor.name, tensor.shape};
  if (const auto* coded = std::get_if<RowScaledCodes>(&tensor.data)) {
    entry.encoding = Encoding::kRowScaled;
    entry.max_code = coded->max_code;
  } else if (const auto* stepped = std::get_if<SteppedCodes>(&tensor.data)) {
    entry.encoding = Encoding::kStepped;
    entry.trellis_bits = stepped->trellis_bits;
  } else if (std::holds_alternative<Nvfp4Codes>(tensor.data)) {
    entry.encoding = Encoding::kNvfp4;
  } else {
    entry.dtype = std::get<RawTensor>(tensor.data).dtype;
  }
  return entry;
}

ArtifactHeader header_of(const QuantizedModel& model) {
  ArtifactHeader header{model.config_json, model.provenance_json, model.banked, {}};
  for (const QuantizedTensor& tensor : model.tensors) header.tensors.push_back(entry_of(tensor));
  return header;
}

std::string header_text(const ArtifactHeader& header, const std::string& where) {
  Json tensors = Json::array();
  for (const TensorEntry& tensor : header.tensors)
    tensors.push_back(Json::array({tensor.name, Json(tensor.shape), encoding_of(tensor)}));
  Json json = {{"banked", header.banked},
               {"config", parse_object(header.config_json, "config", where)},
               {"provenance", parse_object(header.provenance_json, "provenance", where)},
               {"tensors", std::move(tensors)}};
  std::string text;
  try {
    text = canonical_json(json);
  } catch (const Json::exception&) {
    throw FormatError(where, "a tensor name is not valid UTF-8");
  }
  // What a reader will make of it: config and provenance come back as they are only if they were canonical.
  ArtifactHeader read_back = parse_header(as_bytes_of(text), where);
  if (read_back.config_json != header.config_json) throw FormatError(where, "the config is not canonical JSON");
  if (read_back.provenance_json != header.provenance_json)
    throw FormatError(where, "the provenance is not canonical JSON");
  return text;
}

void check_canonical_json(const ArtifactHeader& header, const std::string& where) {
  const auto check = [&](const std::string& text, std::string_view what) {
    if (canonical_json(parse_object(text, what, where)) != text)
      throw FormatError(where, fmt::format("the {} is not canonical JSON", what));
  };
  check(header.config_json, "config");
  check(header.provenance_json, "provenance");
}

ArtifactPlan plan_artifact(const QuantizedModel& model, const std::string& where) {
  ArtifactHeader header = header_of(model);
  std::string text = header_text(header, where);
  check_contents(model, header.tensors, where);
  return plan_artifact(std::move(header), std::move(text), where);
}

}  // namespace thimble
