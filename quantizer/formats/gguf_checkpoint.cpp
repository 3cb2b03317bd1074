// gguf_checkpoint.cpp: see gguf_checkpoint.h.
#include "quantizer/formats/gguf_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>

#include "quantizer/console/quoted_name.h"
#include "quantizer/formats/gguf.h"
#include "quantizer/formats/gguf_rows.h"
#include "runtime/base/parallel.h"
#include "runtime/base/scratch_file.h"

namespace thimble {
namespace {

constexpr uint64_t kAlignment = 64;  // of each tensor's bytes

const Family& family_of(const Json& metadata, const std::string& path) {
  const auto named = metadata.find(kGgufArchitecture);
  if (named == metadata.end() || !named->is_string())
    throw FormatError(path, fmt::format("key '{}' is missing or no text", kGgufArchitecture));
  const auto& architecture = named->get_ref<const std::string&>();
  const Family* family = find_gguf_family(architecture);
  if (!family)
    throw FormatError(path, fmt::format("key '{}' is {}, read are {}", kGgufArchitecture, quoted_name(architecture),
                                        gguf_architectures()));
  return *family;
}

// Names, shapes and element types as the checkpoint will have them, with the bytes of F32.
TensorMap shapes_of(const GgufFile& file) {
  TensorMap shapes;
  for (const auto& [name, tensor] : file.tensors) {
    const DType dtype = tensor.type->dtype.value_or(DType::kF32);
    shapes[name] = {dtype, tensor.shape, dtype == DType::kF32 && tensor.type->dtype ? tensor.bytes : Bytes()};
  }
  return shapes;
}

void check_rows(const GgufParameter& parameter, const Shape& shape, const std::string& path) {
  if (parameter.rotary_heads > 0 && shape[0] % (2 * parameter.rotary_heads) != 0)
    throw FormatError(path, fmt::format("tensor {} of shape {}: rows must be {} heads of an even number of them",
                                        quoted_name(parameter.stored), shape_text(shape), parameter.rotary_heads));
}

// What is only reordered keeps its type; values with a difference are float32.
DType made_type(const GgufTensor& tensor, const GgufParameter& parameter) {
  return parameter.plus != 0 ? DType::kF32 : tensor.type->dtype.value_or(DType::kF32);
}

// `room`: of the parameter's bytes.
void make(const GgufTensor& tensor, const GgufParameter& parameter, std::span<std::byte> room) {
  const auto elements = static_cast<size_t>(element_count(tensor.shape));
  if (!tensor.type->dtype && parameter.rotary_heads == 0 && parameter.plus == 0)
    return dequantize_gguf(*tensor.type, tensor.bytes, {reinterpret_cast<float*>(room.data()), elements});
  std::vector<float> values(elements);
  dequantize_gguf(*tensor.type, tensor.bytes, values);
  if (parameter.rotary_heads > 0)
    values = with_row_order(RowOrder::kHalves, values, tensor.shape[0], parameter.rotary_heads);
  if (parameter.plus != 0)
    for (float& value : values) value -= parameter.plus;
  std::ranges::copy(from_float32(made_type(tensor, parameter), values), room.begin());
}

// Where each of the parameters has its bytes.
std::vector<std::span<std::byte>> make_all(const GgufFile& gguf, std::span<const GgufParameter* const> parameters,
                                           uint64_t most_in_memory_bytes, CheckpointContents& contents) {
  std::vector<uint64_t> begins = {0}, sizes;
  for (const GgufParameter* parameter : parameters) {
    const GgufTensor& tensor = gguf.tensors.at(parameter->stored);
    // No more than 13 times the bytes of the file, which has them all.
    sizes.push_back(static_cast<uint64_t>(element_count(tensor.shape)) * dtype_bytes(made_type(tensor, *parameter)));
    begins.push_back(begins.back() + (sizes.back() + kAlignment - 1) / kAlignment * kAlignment);
  }
  const ScratchBytes scratch = make_scratch(begins.back(), most_in_memory_bytes);
  contents.gathered.push_back({scratch.bytes, scratch.owner});
  std::vector<std::span<std::byte>> rooms;
  for (size_t i = 0; i < sizes.size(); ++i) rooms.push_back(scratch.bytes.subspan(begins[i], sizes[i]));
  parallel_for(static_cast<int64_t>(sizes.size()), [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    make(gguf.tensors.at(parameters[at]->stored), *parameters[at], rooms[at]);
  });
  return rooms;
}

}  // namespace

CheckpointContents read_gguf_checkpoint(Bytes file, const std::string& path, Contents wanted,
                                        uint64_t most_in_memory_bytes) {
  const GgufFile gguf = read_gguf(file, path);
  const Family& family = family_of(gguf.metadata, path);
  const GgufModel model = family.from_gguf(gguf.metadata, shapes_of(gguf), path);
  CheckpointContents contents;
  contents.config = model.config;
  std::vector<const GgufParameter*> to_make;
  for (const GgufParameter& parameter : model.parameters) {
    const GgufTensor& tensor = gguf.tensors.at(parameter.stored);
    check_rows(parameter, tensor.shape, path);
    const bool is_as_stored = tensor.type->dtype && parameter.rotary_heads == 0 && parameter.plus == 0;
    contents.tensors[parameter.parameter] = {made_type(tensor, parameter), tensor.shape,
                                             is_as_stored ? tensor.bytes : Bytes()};
    if (!is_as_stored) to_make.push_back(&parameter);
  }
  if (wanted == Contents::kShapes || to_make.empty()) return contents;
  const std::vector<std::span<std::byte>> made = make_all(gguf, to_make, most_in_memory_bytes, contents);
  for (size_t i = 0; i < to_make.size(); ++i) contents.tensors.at(to_make[i]->parameter).bytes = made[i];
  return contents;
}

}  // namespace thimble
