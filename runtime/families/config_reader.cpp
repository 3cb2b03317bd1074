// config_reader.cpp: see config_reader.h.
#include "runtime/families/config_reader.h"

#include <algorithm>
#include <set>

#include "runtime/base/count_text.h"

namespace thimble {
namespace {

// A scalar may be stored as [] or [1].
bool same_shape(const Shape& found, const Shape& expected) {
  if (found == expected) return true;
  return found.size() <= 1 && expected.size() <= 1 && element_count(expected) == 1 && element_count(found) == 1;
}

}  // namespace

const TensorView& find_tensor(const TensorMap& tensors, const std::string& name, size_t rank, const std::string& path,
                              const std::string& family) {
  auto found = tensors.find(name);
  if (found == tensors.end())
    throw FormatError(path, "tensor '" + name + "' is missing; a " + family + " model has it");
  if (found->second.shape.size() != rank)
    throw FormatError(path, "tensor '" + name + "': shape " + shape_text(found->second.shape) + ", expected " +
                                counted(rank, "dimension"));
  for (int64_t dimension : found->second.shape)
    if (dimension < 1 || dimension > kMaxDimension)
      throw FormatError(path, "tensor '" + name + "': shape " + shape_text(found->second.shape) +
                                  ", dimensions must be 1 to " + std::to_string(kMaxDimension));
  return found->second;
}

bool is_tied_copy(const TensorMap& tensors, const std::string& head, const std::string& table) {
  const auto copy = tensors.find(head), original = tensors.find(table);
  return copy != tensors.end() && original != tensors.end() && copy->second.dtype == original->second.dtype &&
         copy->second.shape == original->second.shape && !copy->second.bytes.empty() &&
         std::ranges::equal(copy->second.bytes, original->second.bytes);
}

void check_vocabulary(int64_t vocab_size, const std::string& tensor, const std::string& path) {
  if (vocab_size > kMostTokens)
    throw FormatError(path, "tensor '" + tensor + "': a vocabulary of " + std::to_string(vocab_size) +
                                " tokens, at most " + std::to_string(kMostTokens) + " are allowed");
}

void check_every_tensor(std::span<const Parameter> expected, const TensorMap& tensors, const std::string& path,
                        const std::string& family) {
  std::set<std::string> names;
  for (const auto& [name, shape, role] : expected) {
    names.insert(name);
    auto found = tensors.find(name);
    if (found == tensors.end())
      throw FormatError(path, "tensor '" + name + "' is missing, expected shape " + shape_text(shape));
    if (!same_shape(found->second.shape, shape))
      throw FormatError(
          path, "tensor '" + name + "': shape " + shape_text(found->second.shape) + ", expected " + shape_text(shape));
    if (!is_floating(found->second.dtype))
      throw FormatError(path, "tensor '" + name + "': dtype " + std::string(dtype_name(found->second.dtype)) +
                                  ", expected a floating-point dtype");
  }
  for (const auto& [name, tensor] : tensors)
    if (!names.contains(name))
      throw FormatError(path, "tensor '" + name + "' of shape " + shape_text(tensor.shape) + " is not part of a " +
                                  family + " model with this config");
}

}  // namespace thimble
