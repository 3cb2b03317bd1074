// gguf_checkpoint.cpp: see gguf_checkpoint.h.
#include "quantizer/formats/gguf_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>

#include "quantizer/console/quoted_name.h"
#include "quantizer/formats/gguf.h"
#include "quantizer/formats/gguf_rows.h"
#include "runtime/base/parallel.h"
#include "runtime/families/family.h"

namespace thimble {
namespace {

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

Tensor made(const GgufTensor& tensor, const GgufParameter& parameter) {
  std::vector<float> values(static_cast<size_t>(element_count(tensor.shape)));
  dequantize_gguf(*tensor.type, tensor.bytes, values);
  if (parameter.rotary_heads > 0)
    values = with_row_order(RowOrder::kHalves, values, tensor.shape[0], parameter.rotary_heads);
  if (parameter.plus != 0)
    for (float& value : values) value -= parameter.plus;
  // What is only reordered keeps its type; the difference is one of float32.
  const DType dtype = parameter.plus != 0 ? DType::kF32 : tensor.type->dtype.value_or(DType::kF32);
  return {dtype, tensor.shape, from_float32(dtype, values)};
}

}  // namespace

CheckpointContents read_gguf_checkpoint(Bytes file, const std::string& path) {
  const GgufFile gguf = read_gguf(file, path);
  const Family& family = family_of(gguf.metadata, path);
  const GgufModel model = family.from_gguf(gguf.metadata, shapes_of(gguf), path);
  CheckpointContents contents;
  contents.config = model.config;
  std::vector<const GgufParameter*> to_make;
  for (const GgufParameter& parameter : model.parameters) {
    const GgufTensor& tensor = gguf.tensors.at(parameter.stored);
    check_rows(parameter, tensor.shape, path);
    if (tensor.type->dtype && parameter.rotary_heads == 0 && parameter.plus == 0)
      contents.tensors[parameter.parameter] = {*tensor.type->dtype, tensor.shape, tensor.bytes};
    else
      to_make.push_back(&parameter);
  }
  contents.gathered.resize(to_make.size());
  std::vector<Tensor> tensors(to_make.size());
  parallel_for(static_cast<int64_t>(to_make.size()), [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    tensors[at] = made(gguf.tensors.at(to_make[at]->stored), *to_make[at]);
    contents.gathered[at] = std::move(tensors[at].bytes);
  });
  for (size_t i = 0; i < to_make.size(); ++i)
    contents.tensors[to_make[i]->parameter] = {tensors[i].dtype, tensors[i].shape, contents.gathered[i]};
  return contents;
}

}  // namespace thimble
