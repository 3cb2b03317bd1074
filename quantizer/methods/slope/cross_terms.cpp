// cross_terms.cpp: see cross_terms.h.
#include "quantizer/methods/slope/cross_terms.h"

#include <algorithm>

#include "runtime/base/hash.h"

namespace thimble {
CrossTermSolver::CrossTermSolver(std::shared_ptr<const Weights> original, const QuantizedModel& fixed,
                                 const SlopeLayers& layers, const TokenSequences& tokens, int64_t sequences,
                                 const Device& device, StageTimes& times)
    : original_(std::move(original)),
      fixed_(fixed),
      layers_(layers),
      tokens_(tokens),
      sequences_(std::min(tokens.count, sequences)),
      device_(device),
      times_(times) {}

// What is not solved yet is the original's.
std::shared_ptr<const Weights> CrossTermSolver::quantized_so_far(const std::vector<SlopeMatrix>& solved) const {
  FloatTensors tensors = dequantize_tensors(fixed_);
  for (const SlopeMatrix& matrix : solved) tensors[matrix.tensor.name] = dequantize(matrix.tensor);
  const Network& network = *original_->network;
  for (MatrixId id : network.linear_matrices()) {
    const auto values = original_->matrix(id).values();
    tensors.try_emplace(network.matrix(id).name, values.begin(), values.end());
  }
  return std::make_shared<const Weights>(bind_weights(original_->network, std::move(tensors)));
}

std::vector<SlopeMatrix> CrossTermSolver::solve(double log2_c, double shrinkage, Progress& progress) const {
  const std::vector<std::string> all = layers_.names();
  SlopeSettings others;
  for (const std::string& name : all) others[name] = {log2_c, shrinkage};
  const Network& network = *original_->network;
  const std::vector<LinearInput> inputs = inputs_of_layers(network);
  for (const LinearInput& input : inputs)
    for (MatrixId id : input.readers) others.erase(network.matrix(id).name);
  std::vector<SlopeMatrix> solved = times_.time("solve", [&] { return layers_.solve(others, progress); });

  std::unique_ptr<InputPairs> pairs;  // once something is not kept
  const uint64_t key = Hasher()
                           .add(std::string_view("cross terms"))
                           .add(std::as_bytes(std::span(tokens_.tokens)))
                           .add(static_cast<uint64_t>(tokens_.length))
                           .add(static_cast<uint64_t>(sequences_))
                           .digest();
  for (const LinearInput& input : inputs) {
    std::vector<std::string> names;
    for (MatrixId id : input.readers)
      if (std::ranges::find(all, network.matrix(id).name) != all.end()) names.push_back(network.matrix(id).name);
    if (names.empty()) continue;
    auto collect = [&] {
      if (!pairs)
        pairs = times_.time("cross terms: models", [&] {
          return make_input_pairs(original_, quantized_so_far(solved), device_, tokens_, sequences_);
        });
      return times_.time("cross terms: forward", [&] { return pairs->collect(input); });
    };
    for (SlopeMatrix& matrix : layers_.solve_shifted(names, log2_c, shrinkage, key, collect, times_, progress)) {
      const Shape& shape = matrix.tensor.shape;
      if (pairs)
        times_.time("cross terms: replace",
                    [&] { pairs->replace(matrix.tensor.name, Matrix(dequantize(matrix.tensor), shape[0], shape[1])); });
      solved.push_back(std::move(matrix));
    }
  }
  std::ranges::sort(solved, {}, [](const SlopeMatrix& matrix) { return matrix.tensor.name; });
  return solved;
}

}  // namespace thimble
