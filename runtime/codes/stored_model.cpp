// stored_model.cpp: the small tensors of a stored model, on the host.
#include "runtime/codes/stored_model.h"

#include <algorithm>

#include "runtime/families/golf/golf_layout.h"

namespace thimble {
namespace {

// The tensor with its codes.
QuantizedTensor read_tensor(const StoredModel& stored, size_t index) {
  QuantizedTensor tensor = stored.model().tensors[index];
  auto* coded = std::get_if<RowScaledCodes>(&tensor.data);
  if (!coded) return tensor;
  coded->codes.resize(static_cast<size_t>(element_count(tensor.shape)));
  for (size_t b = 0; b < stored.blocks().size(); ++b) {
    const CodeBlock& block = stored.blocks()[b];
    if (block.tensor == index) std::ranges::copy(stored.unpack(b, stored.read(b)), coded->codes.begin() + block.first);
  }
  return tensor;
}

}  // namespace

CodeUnpacker unpacker_of(const StoredModel& stored, size_t block) {
  const CodeBlock& b = stored.blocks()[block];
  const auto& coded = std::get<RowScaledCodes>(stored.model().tensors[b.tensor].data);
  return make_code_unpacker(b.layout, coded.max_code, b.rows, b.columns, b.bytes);
}

Model bind_small_tensors(const StoredModel& stored) {
  ModelConfig config = quantized_config(stored.model(), stored.path());
  FloatTensors values;
  for (size_t i = 0; i < stored.model().tensors.size(); ++i)
    if (const std::string& name = stored.model().tensors[i].name; !is_golf_matrix(name))
      values.emplace(name, dequantize(read_tensor(stored, i)));
  return bind_model(config, std::move(values));
}

}  // namespace thimble
