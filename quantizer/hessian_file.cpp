// hessian_file.cpp: safetensors <-> HessianSet.
#include "quantizer/hessian_file.h"

#include <bit>
#include <charconv>
#include <cmath>

#include "quantizer/checksummed_safetensors.h"
#include "runtime/file.h"
#include "runtime/json.h"
#include "runtime/parallel.h"

namespace thimble {
namespace {

// Two triangles of one matrix may differ by the rounding of the sums behind them, not by more.
constexpr double kSymmetryTolerance = 1e-3;

int64_t read_count(const std::map<std::string, std::string>& metadata, const std::string& key,
                   const std::string& path) {
  auto found = metadata.find(key);
  if (found == metadata.end()) return 1;
  int64_t count = 0;
  const char* end = found->second.data() + found->second.size();
  auto [stop, error] = std::from_chars(found->second.data(), end, count);
  if (error != std::errc() || stop != end || count < 1)
    throw FormatError(path, "metadata key '" + key + "' is '" + found->second + "', allowed is a positive integer");
  return count;
}

SymmetricMatrix read_matrix(const std::string& layer, const TensorView& tensor, const std::string& path) {
  std::string where = path + ": Hessian '" + layer + "'";
  if (tensor.shape.size() != 2 || tensor.shape[0] != tensor.shape[1] || tensor.shape[0] == 0)
    throw FormatError(where, "shape " + shape_text(tensor.shape) + ", expected a square matrix (K, K)");
  if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kF64)
    throw FormatError(where, "dtype " + std::string(dtype_name(tensor.dtype)) + ", allowed are F32 and F64");
  int64_t size = tensor.shape[0];
  std::vector<float> values = to_float32(tensor);
  auto at = [&](int64_t i, int64_t j) { return static_cast<double>(values[static_cast<size_t>(i * size + j)]); };
  SymmetricMatrix matrix(size);
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      double lower = at(i, j), upper = at(j, i);
      auto entry = [&] { return "entry (" + std::to_string(i) + ", " + std::to_string(j) + ")"; };
      if (!std::isfinite(lower) || !std::isfinite(upper)) throw FormatError(where, entry() + " is not finite");
      if (i == j && lower < 0) throw FormatError(where, entry() + " is negative, a diagonal of E[x x^T] is not");
      if (std::abs(lower - upper) > kSymmetryTolerance * std::sqrt(std::abs(at(i, i) * at(j, j))))
        throw FormatError(where, entry() + " and its mirror differ: the matrix must be symmetric");
      matrix.lower_row(i)[j] = lower;
    }
  }
  return matrix;
}

std::map<std::string, std::string> read_sharing(const std::map<std::string, std::string>& metadata,
                                                const std::string& path) {
  auto found = metadata.find("shared");
  if (found == metadata.end()) return {};
  Json shared = parse_json(as_bytes_of(found->second), path);
  std::map<std::string, std::string> sharing;
  if (!shared.is_object()) throw FormatError(path, "metadata key 'shared' must be a JSON object");
  for (const auto& [layer, source] : shared.items()) {
    if (!source.is_string()) throw FormatError(path, "metadata key 'shared': layer '" + layer + "' must name a layer");
    sharing[layer] = source.get<std::string>();
  }
  return sharing;
}

ByteVector square_bytes(const SymmetricMatrix& matrix) {
  ByteVector bytes;
  bytes.reserve(static_cast<size_t>(matrix.size() * matrix.size()) * sizeof(float));
  for (int64_t i = 0; i < matrix.size(); ++i)
    for (int64_t j = 0; j < matrix.size(); ++j)
      append_little_endian(bytes, std::bit_cast<uint32_t>(static_cast<float>(matrix(i, j))));
  return bytes;
}

}  // namespace

HessianSet read_hessian_file(const std::string& path) {
  MappedFile file(path);
  SafetensorsContents contents = read_safetensors(file.bytes(), path);
  verify_checksum(contents, path);
  int64_t tokens = read_count(contents.metadata, "tokens", path);
  int64_t sequences = read_count(contents.metadata, "sequences", path);
  HessianSet set;
  for (const auto& [layer, tensor] : contents.tensors)
    set[layer] = std::make_shared<const Hessian>(Hessian{read_matrix(layer, tensor, path), tokens, sequences});
  for (const auto& [layer, source] : read_sharing(contents.metadata, path)) {
    if (!contents.tensors.contains(source) || contents.tensors.contains(layer))
      throw FormatError(path, "metadata key 'shared': layer '" + layer + "' uses '" + source +
                                  "', which must be a tensor, and '" + layer + "' must not");
    set[layer] = set.at(source);
  }
  return set;
}

std::vector<std::string> hessian_file_layers(const std::string& path) {
  MappedFile file(path);
  SafetensorsContents contents = read_safetensors(file.bytes(), path);
  std::vector<std::string> layers;
  for (const auto& [layer, tensor] : contents.tensors) layers.push_back(layer);
  for (const auto& [layer, source] : read_sharing(contents.metadata, path)) layers.push_back(layer);
  return layers;
}

void write_hessian_file(const std::string& path, const HessianSet& hessians) {
  std::map<const Hessian*, std::string> owner;
  Json shared = Json::object();
  TensorMap tensors;
  std::vector<ByteVector> bytes;
  bytes.reserve(hessians.size());  // views into it stay valid
  int64_t tokens = 1, sequences = 1;
  for (const auto& [layer, hessian] : hessians) {
    auto [found, first] = owner.emplace(hessian.get(), layer);
    if (!first) {
      shared[layer] = found->second;
      continue;
    }
    bytes.push_back(square_bytes(hessian->matrix));
    tensors[layer] = {DType::kF32, {hessian->matrix.size(), hessian->matrix.size()}, bytes.back()};
    tokens = hessian->token_count;
    sequences = hessian->sequence_count;
  }
  write_checksummed_safetensors(path, tensors,
                                {{"format", "thimble-hessians"},
                                 {"shared", canonical_json(shared)},
                                 {"sequences", std::to_string(sequences)},
                                 {"tokens", std::to_string(tokens)}});
}

void round_to_float32(HessianSet& hessians) {
  std::map<const Hessian*, std::shared_ptr<const Hessian>> rounded;
  for (auto& [layer, hessian] : hessians) {
    auto& replacement = rounded[hessian.get()];
    if (!replacement) {
      auto copy = std::make_shared<Hessian>(*hessian);
      for (double& value : copy->matrix.values()) value = static_cast<double>(static_cast<float>(value));
      replacement = std::move(copy);
    }
    hessian = replacement;
  }
}

}  // namespace thimble
