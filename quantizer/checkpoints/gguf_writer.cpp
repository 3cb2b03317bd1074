// gguf_writer.cpp: see gguf_writer.h. The format: gguf.h.
#include "quantizer/checkpoints/gguf_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "quantizer/checkpoints/gguf_tokenizer.h"
#include "quantizer/console/quoted_name.h"
#include "quantizer/formats/gguf.h"
#include "quantizer/formats/gguf_rows.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/json.h"

namespace thimble {
namespace {

constexpr uint64_t kAlignment = 32;
constexpr uint32_t kGgufVersion = 3;

void append_text(ByteVector& out, std::string_view text) {
  append_little_endian(out, uint64_t{text.size()});
  append_bytes(out, as_bytes_of(text));
}

// llama.cpp's number of a file whose matrices are of this type ("general.file_type").
uint64_t file_type(const GgufBlocks& type) {
  return type.name == "F32" ? 0 : type.name == "F16" ? 1 : type.name == "Q8_0" ? 7 : 32;
}

struct PlannedTensor {
  GgufParameter parameter;
  Shape shape;
  const GgufBlocks* type = nullptr;
  uint64_t bytes = 0;
};

uint64_t bytes_of(const GgufBlocks& type, const Shape& shape) {
  return static_cast<uint64_t>(element_count(shape) / type.elements) * type.bytes;
}

uint64_t padded(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::vector<PlannedTensor> plan(const GgufModel& model, const Network& network, const GgufBlocks& type) {
  std::vector<PlannedTensor> tensors;
  auto add = [&](GgufParameter parameter, const Shape& shape) {
    const GgufBlocks* stored = shape.size() < 2                    ? gguf_blocks("F32")
                               : shape.back() % type.elements == 0 ? &type
                                                                   : gguf_blocks("F16");
    tensors.push_back({std::move(parameter), shape, stored, bytes_of(*stored, shape)});
  };
  for (const GgufParameter& parameter : model.parameters)
    add(parameter, std::ranges::find(network.parameters, parameter.parameter, &Parameter::name)->shape);
  if (!model.rotary_factors.empty()) add({"", kGgufRotaryFactors}, {static_cast<int64_t>(model.rotary_factors.size())});
  return tensors;
}

ByteVector stored_bytes(const PlannedTensor& tensor, const GgufModel& model, const WeightSource& source) {
  const GgufParameter& parameter = tensor.parameter;
  std::vector<float> values = parameter.parameter.empty() ? model.rotary_factors : source.values(parameter.parameter);
  if (parameter.plus != 0)
    for (float& value : values) value += parameter.plus;
  if (parameter.rotary_heads > 0)
    values = with_row_order(RowOrder::kInterleaved, values, tensor.shape[0], parameter.rotary_heads);
  if (tensor.type->dtype) return narrowed(values, *tensor.type->dtype, parameter.parameter, source.path());
  return quantize_gguf_q8_0(values);
}

}  // namespace

void GgufKeys::begin(const std::string& key, uint32_t type) {
  append_text(bytes_, key);
  append_little_endian(bytes_, type);
  ++count_;
}

void GgufKeys::add(const std::string& key, const Json& value) {
  auto type = [](GgufType of) { return static_cast<uint32_t>(of); };
  if (value.is_string()) {
    begin(key, type(GgufType::kText));
    append_text(bytes_, value.get_ref<const std::string&>());
  } else if (value.is_boolean()) {
    begin(key, type(GgufType::kBool));
    append_little_endian(bytes_, static_cast<uint8_t>(value.get<bool>()));
  } else if (value.is_number_float()) {
    begin(key, type(GgufType::kF32));
    append_little_endian(bytes_, std::bit_cast<uint32_t>(value.get<float>()));
  } else {
    const auto number = value.get<uint64_t>();
    if (!value.is_number_integer() || number > std::numeric_limits<uint32_t>::max())
      throw UsageError(
          fmt::format("--to gguf: '{}' is {}, at most 2^32 - 1 can be written", key, canonical_json(value)));
    begin(key, type(GgufType::kU32));
    append_little_endian(bytes_, static_cast<uint32_t>(number));
  }
}

void GgufKeys::add_texts(const std::string& key, std::span<const std::string> texts) {
  begin(key, static_cast<uint32_t>(GgufType::kArray));
  append_little_endian(bytes_, static_cast<uint32_t>(GgufType::kText));
  append_little_endian(bytes_, uint64_t{texts.size()});
  for (const std::string& text : texts) append_text(bytes_, text);
}

void GgufKeys::add_numbers(const std::string& key, std::span<const int32_t> numbers) {
  begin(key, static_cast<uint32_t>(GgufType::kArray));
  append_little_endian(bytes_, static_cast<uint32_t>(GgufType::kI32));
  append_little_endian(bytes_, uint64_t{numbers.size()});
  for (const int32_t number : numbers) append_little_endian(bytes_, number);
}

void GgufKeys::add_fractions(const std::string& key, std::span<const float> fractions) {
  begin(key, static_cast<uint32_t>(GgufType::kArray));
  append_little_endian(bytes_, static_cast<uint32_t>(GgufType::kF32));
  append_little_endian(bytes_, uint64_t{fractions.size()});
  for (const float fraction : fractions) append_little_endian(bytes_, std::bit_cast<uint32_t>(fraction));
}

GgufReport write_gguf(const std::string& path, const WeightSource& source, const GgufBlocks& type,
                      const std::string& tokenizer) {
  const Spec& spec = source.spec();
  const GgufModel model = spec.family->to_gguf(spec, source.path());
  GgufKeys keys;
  // Readers may ask for it before all others.
  keys.add(kGgufArchitecture, model.metadata.at(kGgufArchitecture));
  keys.add("general.type", "model");
  keys.add("general.file_type", file_type(type));
  keys.add("general.quantization_version", uint64_t{2});
  for (const auto& [key, value] : model.metadata.items())
    if (key != kGgufArchitecture) keys.add(key, value);
  add_gguf_tokenizer(tokenizer, spec.vocabulary(), source.given_config(), keys);

  const std::vector<PlannedTensor> tensors = plan(model, *spec.network, type);
  GgufReport report;
  ByteVector header;
  append_bytes(header, as_bytes_of("GGUF"));
  append_little_endian(header, kGgufVersion);
  append_little_endian(header, uint64_t{tensors.size()});
  append_little_endian(header, keys.count());
  append_bytes(header, keys.bytes());
  uint64_t offset = 0;
  for (const PlannedTensor& tensor : tensors) {
    append_text(header, tensor.parameter.stored);
    append_little_endian(header, static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;) append_little_endian(header, tensor.shape[i]);
    append_little_endian(header, tensor.type->id);
    append_little_endian(header, offset);
    offset += padded(tensor.bytes);
    report.tensor_bytes += tensor.bytes;
    report.narrower += tensor.shape.size() > 1 && tensor.type != &type;
  }
  report.tensors = tensors.size();
  header.resize(padded(header.size()));

  AtomicFile file(path);
  file.write(header);
  for (const PlannedTensor& tensor : tensors) {
    ByteVector bytes = stored_bytes(tensor, model, source);
    bytes.resize(padded(tensor.bytes));
    file.write(bytes);
  }
  file.commit();
  return report;
}

}  // namespace thimble
