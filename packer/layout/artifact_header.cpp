// artifact_header.cpp: reading the header's JSON, and the rules that its table of tensors obeys.
#include "packer/layout/artifact_header.h"

#include <algorithm>

#include "packer/layout/canonical_reader.h"
#include "packer/layout/format.h"
#include "runtime/base/checked.h"
#include "runtime/base/format_error.h"
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

std::string precision_name(const TensorEntry& tensor) {
  switch (tensor.encoding) {
    case Encoding::kRowScaled: return fill_text("int{}", code_bits(tensor.max_code));
    case Encoding::kStepped: return trellis_name(tensor.trellis_bits);
    case Encoding::kNvfp4: return "nvfp4";
    case Encoding::kRaw: break;
  }
  return std::string(dtype_name(tensor.dtype));
}

uint32_t format_version_of(const ArtifactHeader& header) {
  auto has = [&](Encoding encoding) {
    return std::ranges::count(header.tensors, encoding, &TensorEntry::encoding) > 0;
  };
  return has(Encoding::kNvfp4) ? 3 : has(Encoding::kStepped) ? 2 : 1;
}

std::string tensor_where(const std::string& where, const std::string& name) {
  return fill_text("{}: tensor '{}'", where, name);
}

namespace {

void check_name(const std::string& name, const std::string& where) {
  if (name.empty() || name.size() > kMaxNameBytes)
    throw_format_error(where, "tensor name of {} B, 1 to {} allowed", name.size(), kMaxNameBytes);
  if (std::ranges::any_of(name, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }))
    throw_format_error(where, "a tensor name holds a control character");
}

// Everything about the table that does not need the tensors' contents.
void check_table(const std::vector<TensorEntry>& tensors, const std::string& where) {
  if (tensors.size() > kMaxTensors) throw_format_error(where, "{} tensors, at most {}", tensors.size(), kMaxTensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorEntry& tensor = tensors[i];
    check_name(tensor.name, where);
    if (i > 0 && tensors[i - 1].name >= tensor.name)
      throw_format_error(where, "tensor '{}' follows '{}', names must ascend and be unique", tensor.name,
                         tensors[i - 1].name);
    const std::string object = tensor_where(where, tensor.name);
    if (tensor.shape.size() > kMaxRank)
      throw_format_error(object, "{} dimensions, at most {}", tensor.shape.size(), kMaxRank);
    if (tensor.coded() && tensor.shape.empty()) throw_format_error(object, "a scalar cannot have codes");
    mul_or_throw(element_count_or_throw(tensor.shape, object), sizeof(uint64_t), object);
    if (tensor.coded()) mul_or_throw(tensor.rows(), sizeof(uint64_t), object);
    if (!Trellis::has_bits(tensor.trellis_bits))
      throw_format_error(object, "a trellis of {} state bits, 0 or 2 to {} allowed", tensor.trellis_bits,
                         kMaxTrellisBits);
  }
}

Shape read_shape(CanonicalReader& reader, const std::string& object) {
  Shape shape;
  reader.expect("[");
  while (!reader.take("]")) {
    if (!shape.empty()) reader.expect(",");
    const uint64_t dimension = reader.number("a dimension");
    if (dimension > INT64_MAX) throw_format_error(object, "dimension {}, at most 2^63 - 1", dimension);
    shape.push_back(static_cast<int64_t>(dimension));
  }
  return shape;
}

void read_encoding(CanonicalReader& reader, TensorEntry& tensor, const std::string& object) {
  if (!reader.is_at('"')) {
    const uint64_t max_code = reader.number("an encoding");
    if (max_code < 1 || max_code > kMaxCode)
      throw_format_error(object, "max_code {}, 1 to {} allowed", max_code, kMaxCode);
    tensor.encoding = Encoding::kRowScaled;
    tensor.max_code = static_cast<int>(max_code);
    return;
  }
  const std::string name = reader.string("an encoding");
  if (name.size() == 2 && name[0] == 'T' && name[1] >= '0' && name[1] <= '9') {  // the table's check allows some
    tensor.encoding = Encoding::kStepped;
    tensor.trellis_bits = name[1] - '0';
  } else if (name == kNvfp4Name) {
    tensor.encoding = Encoding::kNvfp4;
  } else {
    tensor.dtype = dtype_from_name(name, object);
  }
}

TensorEntry read_tensor(CanonicalReader& reader, const std::string& where) {
  TensorEntry tensor;
  reader.expect("[");
  tensor.name = reader.string("a tensor's name");
  const std::string object = tensor_where(where, tensor.name);
  reader.expect(",");
  tensor.shape = read_shape(reader, object);
  reader.expect(",");
  read_encoding(reader, tensor, object);
  reader.expect("]");
  return tensor;
}

}  // namespace

void check_code_range(std::span<const int8_t> codes, int max_code, const std::string& object) {
  const auto code = std::ranges::find_if(codes, [&](int8_t c) { return c < -max_code || c > max_code; });
  if (code != codes.end())
    throw_format_error(object, "code {} is {}, -{} to {} allowed", code - codes.begin(), *code, max_code, max_code);
}

ArtifactHeader parse_header(Bytes text, const std::string& where) {
  if (text.size() > kMaxHeaderBytes) throw_format_error(where, "{} B, at most {}", text.size(), kMaxHeaderBytes);
  CanonicalReader reader(as_text(text), where);
  ArtifactHeader header;
  reader.expect(R"({"banked":)");
  header.banked = reader.boolean();
  reader.expect(R"(,"config":)");
  header.config_json = reader.object("the config");
  reader.expect(R"(,"provenance":)");
  header.provenance_json = reader.object("the provenance");
  reader.expect(R"(,"tensors":[)");
  while (!reader.take("]")) {
    if (!header.tensors.empty()) reader.expect(",");
    header.tensors.push_back(read_tensor(reader, where));
  }
  reader.expect("}");
  reader.finish();
  check_table(header.tensors, where);
  return header;
}

}  // namespace thimble
