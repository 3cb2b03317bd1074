// gpt2_checkpoint.cpp: see gpt2_checkpoint.h.
#include "quantizer/checkpoints/gpt2_checkpoint.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/families/gpt2/gpt2_config.h"

namespace thimble {
namespace {

constexpr std::string_view kPrefix = "transformer.";

bool is_mask(const std::string& name) { return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"); }

std::string full_name(const std::string& name) {
  return name == kGpt2Head || name.starts_with(kPrefix) ? name : std::string(kPrefix) + name;
}

bool is_tied_copy(const TensorMap& tensors) {
  auto head = tensors.find(kGpt2Head), table = tensors.find(kGpt2TokenEmbedding);
  return head != tensors.end() && table != tensors.end() && head->second.dtype == table->second.dtype &&
         head->second.shape == table->second.shape && std::ranges::equal(head->second.bytes, table->second.bytes);
}

bool is_stored_transposed(const std::string& name, const TensorView& tensor) {
  return is_gpt2_projection(name) && tensor.shape.size() == 2;
}

}  // namespace

bool is_gpt2_checkpoint(const Json& config, const TensorMap& tensors) {
  if (is_gpt2_config(config)) return true;
  if (config.contains("architecture") || config.contains("model_type")) return false;
  const std::string first = Gpt2LayerNames(0).query_key_value;
  return tensors.contains(first) || tensors.contains(first.substr(kPrefix.size()));
}

TensorMap with_gpt2_names(const TensorMap& tensors, const std::string& path) {
  TensorMap named;
  for (const auto& [name, tensor] : tensors)
    if (!is_mask(name) && !named.emplace(full_name(name), tensor).second)
      throw FormatError(path, "tensors '" + name + "' and '" + std::string(kPrefix) + name + "' are the same");
  if (is_tied_copy(named)) named.erase(kGpt2Head);
  return named;
}

TensorMap with_transposed_shapes(const TensorMap& tensors) {
  TensorMap shapes = tensors;
  for (auto& [name, tensor] : shapes) {
    tensor.bytes = {};
    if (is_stored_transposed(name, tensor)) std::swap(tensor.shape[0], tensor.shape[1]);
  }
  return shapes;
}

TensorMap with_transposed_projections(const TensorMap& tensors, std::vector<ByteVector>& storage) {
  TensorMap out = tensors;
  std::vector<TensorView*> projections;
  for (auto& [name, tensor] : out)
    if (is_stored_transposed(name, tensor)) projections.push_back(&tensor);
  storage.resize(projections.size());
  parallel_for(static_cast<int64_t>(projections.size()), [&](int64_t i) {
    TensorView& view = *projections[static_cast<size_t>(i)];
    Tensor turned = transposed(view);
    storage[static_cast<size_t>(i)] = std::move(turned.bytes);
    view = {turned.dtype, turned.shape, storage[static_cast<size_t>(i)]};
  });
  return out;
}

Tensor transposed(const TensorView& matrix) {
  constexpr int64_t kTile = 32;  // so that reads and writes both stay within few cache lines
  const int64_t rows = matrix.shape.at(0), cols = matrix.shape.at(1);
  const size_t width = dtype_bytes(matrix.dtype);
  Tensor out{matrix.dtype, {cols, rows}, ByteVector(matrix.bytes.size())};
  for (int64_t first_row = 0; first_row < rows; first_row += kTile)
    for (int64_t first_col = 0; first_col < cols; first_col += kTile)
      for (int64_t r = first_row; r < std::min(rows, first_row + kTile); ++r)
        for (int64_t c = first_col; c < std::min(cols, first_col + kTile); ++c)
          std::memcpy(out.bytes.data() + static_cast<size_t>(c * rows + r) * width,
                      matrix.bytes.data() + static_cast<size_t>(r * cols + c) * width, width);
  return out;
}

}  // namespace thimble
