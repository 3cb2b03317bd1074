// artifact_header.cpp: header JSON both ways, and the rules of stored models.
#include "packer/layout/artifact_header.h"

#include <fmt/format.h>

#include <algorithm>

#include "packer/layout/format.h"
#include "runtime/base/checked.h"
#include "runtime/base/json.h"
#include "runtime/base/parallel.h"
#include "runtime/codes/trellis.h"

namespace thimble {

uint64_t TensorEntry::element_bytes() const {
  switch (encoding) {
    case Encoding::kRowScaled:
    case Encoding::kNvfp4: return sizeof(int8_t);
    case Encoding::kStepped: return sizeof(int32_t);
    case Encoding::kRaw: break;
  }
  return dtype_bytes(dtype);
}

uint64_t TensorEntry::scale_bytes() const {
  switch (encoding) {
    case Encoding::kRowScaled: return rows() * sizeof(uint16_t);
    case Encoding::kStepped: return (rows() + columns()) * sizeof(int16_t);
    case Encoding::kNvfp4: return sizeof(float) + nvfp4_scales();
    case Encoding::kRaw: break;
  }
  return 0;
}

uint32_t format_version_of(const ArtifactHeader& header) {
  auto has = [&](Encoding encoding) {
    return std::ranges::count(header.tensors, encoding, &TensorEntry::encoding) > 0;
  };
  return has(Encoding::kNvfp4) ? 3 : has(Encoding::kStepped) ? 2 : 1;
}

namespace {

std::string tensor_where(const std::string& where, const std::string& name) {
  return fmt::format("{}: tensor '{}'", where, name);
}

void check_name(const std::string& name, const std::string& where) {
  if (name.empty() || name.size() > kMaxNameBytes)
    throw FormatError(where, fmt::format("tensor name of {} B, 1 to {} allowed", name.size(), kMaxNameBytes));
  if (std::ranges::any_of(name, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }))
    throw FormatError(where, "a tensor name holds a control character");
}

// Everything about the table that does not need the tensors' contents.
void check_table(const std::vector<TensorEntry>& tensors, const std::string& where) {
  if (tensors.size() > kMaxTensors)
    throw FormatError(where, fmt::format("{} tensors, at most {}", tensors.size(), kMaxTensors));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorEntry& tensor = tensors[i];
    check_name(tensor.name, where);
    if (i > 0 && tensors[i - 1].name >= tensor.name)
      throw FormatError(where, fmt::format("tensor '{}' follows '{}', names must ascend and be unique", tensor.name,
                                           tensors[i - 1].name));
    const std::string object = tensor_where(where, tensor.name);
    if (tensor.shape.size() > kMaxRank)
      throw FormatError(object, fmt::format("{} dimensions, at most {}", tensor.shape.size(), kMaxRank));
    if (tensor.coded() && tensor.shape.empty()) throw FormatError(object, "a scalar cannot have codes");
    mul_or_throw(element_count_or_throw(tensor.shape, object), sizeof(uint64_t), object);
    if (tensor.coded()) mul_or_throw(tensor.rows(), sizeof(uint64_t), object);
    if (!Trellis::has_bits(tensor.trellis_bits))
      throw FormatError(object, fmt::format("a trellis of {} state bits, 0 or 2 to {} allowed", tensor.trellis_bits,
                                            kMaxTrellisBits));
  }
}

void check_count(uint64_t found, uint64_t expected, std::string_view what, const std::string& object) {
  if (found != expected) throw FormatError(object, fmt::format("{} {}, its shape needs {}", found, what, expected));
}

void check(const RowScaledCodes& coded, const TensorEntry& entry, const std::string& object) {
  check_count(coded.codes.size(), entry.elements(), "codes", object);
  check_count(coded.row_scales.size(), entry.rows(), "row scales", object);
  constexpr uint16_t kInfinity = 0x7c00;  // above it NaN, then everything negative
  const auto scale = std::ranges::find_if(coded.row_scales, [](uint16_t s) { return s == 0 || s >= kInfinity; });
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
  if (!(coded.tensor_scale > 0) || coded.tensor_scale > kMaxNvfp4TensorScale)
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

constexpr std::string_view kNvfp4Name = "NVFP4";

Json encoding_of(const TensorEntry& tensor) {
  switch (tensor.encoding) {
    case Encoding::kRowScaled: return tensor.max_code;
    case Encoding::kStepped: return fmt::format("T{}", tensor.trellis_bits);
    case Encoding::kNvfp4: return kNvfp4Name;
    case Encoding::kRaw: break;
  }
  return dtype_name(tensor.dtype);
}

TensorEntry parse_tensor(const Json& json, const std::string& where) {
  if (!json.is_array() || json.size() != 3 || !json[0].is_string() || !json[1].is_array())
    throw FormatError(where, "a tensor must be [name, shape, encoding]");
  TensorEntry tensor;
  tensor.name = json[0].get<std::string>();
  std::string object = tensor_where(where, tensor.name);
  for (const Json& dimension : json[1]) {
    if (!dimension.is_number_unsigned() || dimension.get<uint64_t>() > INT64_MAX)
      throw FormatError(object, "every dimension must be an integer of at least 0");
    tensor.shape.push_back(dimension.get<int64_t>());
  }
  if (json[2].is_string()) {
    const auto name = json[2].get<std::string>();
    if (name.size() == 2 && name[0] == 'T' && name[1] >= '0' && name[1] <= '9') {  // the table's check allows some
      tensor.encoding = Encoding::kStepped;
      tensor.trellis_bits = name[1] - '0';
    } else if (name == kNvfp4Name) {
      tensor.encoding = Encoding::kNvfp4;
    } else {
      tensor.dtype = dtype_from_name(name, object);
    }
  } else {
    tensor.encoding = Encoding::kRowScaled;
    if (!json[2].is_number_unsigned() || json[2].get<uint64_t>() < 1 || json[2].get<uint64_t>() > kMaxCode)
      throw FormatError(object, fmt::format("the encoding must be a dtype or a max_code of 1 to {}", kMaxCode));
    tensor.max_code = json[2].get<int>();
  }
  return tensor;
}

}  // namespace

void check_contents(const QuantizedModel& model, const std::vector<TensorEntry>& entries, const std::string& where) {
  parallel_for(std::ssize(entries), [&](int64_t i) {
    const TensorEntry& entry = entries[static_cast<size_t>(i)];
    std::visit([&](const auto& data) { check(data, entry, tensor_where(where, entry.name)); },
               model.tensors[static_cast<size_t>(i)].data);
  });
}

void check_code_range(std::span<const int8_t> codes, int max_code, const std::string& object) {
  const auto code = std::ranges::find_if(codes, [&](int8_t c) { return c < -max_code || c > max_code; });
  if (code != codes.end())
    throw FormatError(object,
                      fmt::format("code {} is {}, -{} to {} allowed", code - codes.begin(), *code, max_code, max_code));
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

ArtifactHeader parse_header(Bytes text, const std::string& where) {
  if (text.size() > kMaxHeaderBytes)
    throw FormatError(where, fmt::format("{} B, at most {}", text.size(), kMaxHeaderBytes));
  Json json = parse_json(text, where);
  if (!json.is_object() || json.size() != 4 || !json.contains("banked") || !json.contains("config") ||
      !json.contains("provenance") || !json.contains("tensors"))
    throw FormatError(where, "must be an object of exactly banked, config, provenance and tensors");
  if (!json["banked"].is_boolean() || !json["config"].is_object() || !json["provenance"].is_object() ||
      !json["tensors"].is_array())
    throw FormatError(where, "banked must be true or false, config and provenance objects, tensors an array");
  if (canonical_json(json) != as_text(text)) throw FormatError(where, "the JSON is not in canonical form");
  ArtifactHeader header{
      canonical_json(json["config"]), canonical_json(json["provenance"]), json["banked"].get<bool>(), {}};
  for (const Json& tensor : json["tensors"]) header.tensors.push_back(parse_tensor(tensor, where));
  check_table(header.tensors, where);
  return header;
}

}  // namespace thimble
