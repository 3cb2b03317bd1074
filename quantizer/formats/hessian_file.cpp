// hessian_file.cpp: safetensors <-> StoredStatistics.
#include "quantizer/formats/hessian_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>

#include "quantizer/formats/safetensors.h"
#include "runtime/base/file.h"
#include "runtime/base/file_kind.h"
#include "runtime/base/json.h"

namespace thimble {
namespace {

// Two triangles of one matrix may differ by the rounding of the sums behind them, not by more.
constexpr double kSymmetryTolerance = 1e-3;

// What precedes the names of tensors that are no Hessians of layers.
constexpr std::string_view kOutputFisher = "output_fisher/";
constexpr std::string_view kLookupFisher = "lookup_fisher/";
constexpr std::string_view kRowCounts = "row_counts/";
constexpr std::string_view kHeadHessian = "head_hessian/";

bool is_hessian_of_a_layer(std::string_view name) {
  return std::ranges::none_of(std::array{kOutputFisher, kLookupFisher, kRowCounts, kHeadHessian},
                              [&](std::string_view prefix) { return name.starts_with(prefix); });
}

struct HessianFile {
  explicit HessianFile(const std::string& path) : file(path) {
    refuse_other_kinds(file.bytes(), FileUse::kHessians, path);
    contents = read_safetensors(file.bytes(), path);
  }
  MappedFile file;
  CheckpointContents contents;
};

std::vector<float> read_floats(const TensorView& tensor, const std::string& where) {
  if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kF64)
    throw FormatError(where, "dtype " + std::string(dtype_name(tensor.dtype)) + ", allowed are F32 and F64");
  return to_float32(tensor);
}

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

// `owner`: of the tensor's bytes.
StoredHessian read_matrix(const std::string& layer, const TensorView& tensor, const std::string& path,
                          const std::shared_ptr<const void>& owner, int64_t tokens, int64_t sequences) {
  std::string where = path + ": Hessian '" + layer + "'";
  if (tensor.shape.size() != 2 || tensor.shape[0] != tensor.shape[1] || tensor.shape[0] == 0)
    throw FormatError(where, "shape " + shape_text(tensor.shape) + ", expected a square matrix (K, K)");
  const int64_t size = tensor.shape[0];
  HeldBytes floats{tensor.bytes, owner};
  if (tensor.dtype != DType::kF32) floats = hold(from_float32(DType::kF32, read_floats(tensor, where)));
  auto at = [&](int64_t i, int64_t j) {
    float value;
    std::memcpy(&value, floats.bytes.data() + static_cast<size_t>(i * size + j) * sizeof(float), sizeof(float));
    return static_cast<double>(value);
  };
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      double lower = at(i, j), upper = at(j, i);
      auto entry = [&] { return "entry (" + std::to_string(i) + ", " + std::to_string(j) + ")"; };
      if (!std::isfinite(lower) || !std::isfinite(upper)) throw FormatError(where, entry() + " is not finite");
      if (i == j && lower < 0) throw FormatError(where, entry() + " is negative, a diagonal of E[x x^T] is not");
      if (std::abs(lower - upper) > kSymmetryTolerance * std::sqrt(std::abs(at(i, i) * at(j, j))))
        throw FormatError(where, entry() + " and its mirror differ: the matrix must be symmetric");
    }
  }
  return {std::move(floats), StoredHessian::Layout::kSquare, size, tokens, sequences};
}

void require_vector(const std::string& where, const TensorView& tensor) {
  if (tensor.shape.size() != 1 || tensor.shape[0] == 0)
    throw FormatError(where, "shape " + shape_text(tensor.shape) + ", expected a vector of at least one element");
}

Fisher read_fisher(const std::string& where, const TensorView& tensor, int64_t tokens) {
  require_vector(where, tensor);
  Fisher fisher{{}, tokens};
  for (float value : read_floats(tensor, where)) {
    if (!std::isfinite(value) || value < 0)
      throw FormatError(where, "element " + std::to_string(fisher.mean_square.size()) + " is " + std::to_string(value) +
                                   ", a mean square is finite and not negative");
    fisher.mean_square.push_back(static_cast<double>(value));
  }
  return fisher;
}

std::vector<int64_t> read_counts(const std::string& where, const TensorView& tensor) {
  require_vector(where, tensor);
  if (tensor.dtype != DType::kI64)
    throw FormatError(where, "dtype " + std::string(dtype_name(tensor.dtype)) + ", allowed is I64");
  ByteCursor cursor(tensor.bytes, where);
  std::vector<int64_t> counts;
  for (int64_t row = 0; row < tensor.shape[0]; ++row) {
    counts.push_back(cursor.read<int64_t>("count"));
    if (counts.back() < 0)
      throw FormatError(where, "element " + std::to_string(row) + " is " + std::to_string(counts.back()) +
                                   ", a count is not negative");
  }
  return counts;
}

// Reads `tensor` into `loss` if its name says that it belongs there.
void read_loss_tensor(const std::string& name, const TensorView& tensor, int64_t tokens, int64_t sequences,
                      const std::string& path, const std::shared_ptr<const void>& owner, LossStatistics& loss) {
  std::string where = path + ": tensor '" + name + "'";
  if (name.starts_with(kOutputFisher)) {
    loss.output_fisher[name.substr(kOutputFisher.size())] = read_fisher(where, tensor, tokens);
  } else if (name.starts_with(kLookupFisher)) {
    loss.lookup_fisher[name.substr(kLookupFisher.size())] = read_fisher(where, tensor, tokens);
  } else if (name.starts_with(kRowCounts)) {
    loss.row_counts[name.substr(kRowCounts.size())] = read_counts(where, tensor);
  } else if (name.starts_with(kHeadHessian)) {
    if (!loss.head.empty()) throw FormatError(where, "a second one; a model has one output head");
    const StoredHessian hessian = read_matrix(name, tensor, path, owner, tokens, sequences);
    loss.head[name.substr(kHeadHessian.size())] =
        std::make_shared<const Hessian>(Hessian{*hessian.load(), tokens, sequences});
  }
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

ByteVector square_of(const SymmetricMatrix& matrix) {
  std::vector<float> square;
  square.reserve(static_cast<size_t>(matrix.size() * matrix.size()));
  for (int64_t i = 0; i < matrix.size(); ++i)
    for (int64_t j = 0; j < matrix.size(); ++j) square.push_back(static_cast<float>(matrix(i, j)));
  return from_float32(DType::kF32, square);
}

double rounded(double value) { return static_cast<double>(static_cast<float>(value)); }

void round_hessians(HessianSet& hessians) {
  std::map<const Hessian*, std::shared_ptr<const Hessian>> replacements;
  for (auto& [layer, hessian] : hessians) {
    auto& replacement = replacements[hessian.get()];
    if (!replacement) {
      auto copy = std::make_shared<Hessian>(*hessian);
      for (double& value : copy->matrix.values()) value = rounded(value);
      replacement = std::move(copy);
    }
    hessian = replacement;
  }
}

}  // namespace

StoredStatistics read_hessian_file(const std::string& path) {
  const HessianFile file(path);
  const CheckpointContents& contents = file.contents;
  verify_checksum(contents, path);
  int64_t tokens = read_count(contents.metadata, "tokens", path);
  int64_t sequences = read_count(contents.metadata, "sequences", path);
  StoredStatistics statistics;
  StoredHessians& set = statistics.hessians;
  for (const auto& [name, tensor] : contents.tensors) {
    if (is_hessian_of_a_layer(name)) {
      set[name] =
          std::make_shared<const StoredHessian>(read_matrix(name, tensor, path, file.file.owner(), tokens, sequences));
    } else {
      read_loss_tensor(name, tensor, tokens, sequences, path, file.file.owner(), statistics.loss);
    }
  }
  StoredHessians shared;  // apart: sharing names a tensor, not another that shares
  for (const auto& [layer, source] : read_sharing(contents.metadata, path)) {
    if (!set.contains(source) || contents.tensors.contains(layer) || !is_hessian_of_a_layer(layer))
      throw FormatError(path, "metadata key 'shared': layer '" + layer + "' uses '" + source +
                                  "', which must be a tensor, and '" + layer + "' must not");
    shared[layer] = set.at(source);
  }
  set.merge(shared);
  round_to_float32(statistics.loss);
  return statistics;
}

std::vector<std::string> hessian_file_layers(const std::string& path) {
  const HessianFile file(path);
  std::vector<std::string> layers;
  for (const auto& [layer, tensor] : file.contents.tensors)
    if (is_hessian_of_a_layer(layer)) layers.push_back(layer);
  for (const auto& [layer, source] : read_sharing(file.contents.metadata, path)) layers.push_back(layer);
  return layers;
}

void write_hessian_file(const std::string& path, const StoredStatistics& statistics) {
  Json shared = Json::object();
  TensorMap shapes;
  std::map<std::string, std::function<ByteVector()>> bytes_of;  // made when they are written
  int64_t tokens = 1, sequences = 1;
  auto add = [&](const std::string& name, DType dtype, Shape shape, std::function<ByteVector()> bytes) {
    shapes[name] = {dtype, std::move(shape), {}};
    bytes_of[name] = std::move(bytes);
  };
  auto add_hessian = [&](const std::string& name, const StoredHessian& hessian) {
    add(name, DType::kF32, {hessian.size(), hessian.size()}, [&hessian] { return square_of(*hessian.load()); });
    tokens = hessian.token_count();
    sequences = hessian.sequence_count();
  };
  std::map<const StoredHessian*, std::string> owner;
  for (const auto& [layer, hessian] : statistics.hessians) {
    auto [found, first] = owner.emplace(hessian.get(), layer);
    if (first) {
      add_hessian(layer, *hessian);
    } else {
      shared[layer] = found->second;
    }
  }
  const LossStatistics& loss = statistics.loss;
  const StoredHessians head = store_in_memory(loss.head);
  for (const auto& [name, hessian] : head) add_hessian(std::string(kHeadHessian) + name, *hessian);
  for (const auto& [prefix, set] :
       {std::pair(kOutputFisher, &loss.output_fisher), {kLookupFisher, &loss.lookup_fisher}})
    for (const auto& [name, fisher] : *set) {
      const std::vector<double>& squares = fisher.mean_square;
      add(std::string(prefix) + name, DType::kF32, {static_cast<int64_t>(squares.size())},
          [&squares] { return from_float32(DType::kF32, std::vector<float>(squares.begin(), squares.end())); });
    }
  for (const auto& [table, counts] : loss.row_counts)
    add(std::string(kRowCounts) + table, DType::kI64, {static_cast<int64_t>(counts.size())}, [&counts = counts] {
      ByteVector bytes;
      for (int64_t count : counts) append_little_endian(bytes, count);
      return bytes;
    });
  write_checksummed_safetensors(path, shapes,
                                {{"format", "thimble-hessians"},
                                 {"shared", canonical_json(shared)},
                                 {"sequences", std::to_string(sequences)},
                                 {"tokens", std::to_string(tokens)}},
                                [&](const std::string& name) { return bytes_of.at(name)(); });
}

void round_to_float32(LossStatistics& loss) {
  round_hessians(loss.head);
  for (FisherSet* set : {&loss.output_fisher, &loss.lookup_fisher})
    for (auto& [name, fisher] : *set)
      for (double& value : fisher.mean_square) value = rounded(value);
}

}  // namespace thimble
