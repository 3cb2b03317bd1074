// cross_terms.cpp: see cross_terms.h.
#include "quantizer/methods/cross_terms.h"

#include <algorithm>

#include "runtime/ops/linear_layers.h"

namespace thimble {
namespace {

// On the CPU the activations of both models stay in memory.
constexpr int64_t kCpuSequences = 32;

}  // namespace

CrossTermSolver::CrossTermSolver(const Model& original, const QuantizedModel& fixed, const SlopeLayers& layers,
                                 const TokenSequences& tokens, const Device& device, StageTimes& times)
    : original_(original),
      fixed_(fixed),
      layers_(layers),
      tokens_(tokens),
      device_(device),
      times_(times),
      inputs_(inputs_of_blocks(original.config)) {}

// What is not solved yet is the original's.
Model CrossTermSolver::quantized_so_far(const std::vector<SlopeMatrix>& solved) const {
  FloatTensors tensors = dequantize_tensors(fixed_);
  for (const SlopeMatrix& matrix : solved) tensors[matrix.tensor.name] = dequantize(matrix.tensor);
  for (const auto& [name, matrix] : linear_layers(original_))
    tensors.try_emplace(name, matrix->values().begin(), matrix->values().end());
  return bind_model(original_.config, std::move(tensors));
}

std::vector<SlopeMatrix> CrossTermSolver::solve(double log2_c, double shrinkage, Progress& progress) const {
  const std::vector<std::string> all = layers_.names();
  std::vector<std::string> others = all;
  for (const std::vector<std::string>& readers : inputs_)
    for (const std::string& name : readers) std::erase(others, name);
  std::vector<SlopeMatrix> solved =
      times_.time("solve", [&] { return layers_.solve(others, log2_c, shrinkage, progress); });

  const int64_t sequences = device_.is_cuda ? tokens_.count : std::min(tokens_.count, kCpuSequences);
  const std::unique_ptr<InputPairs> pairs = times_.time("cross terms: models", [&] {
    return make_input_pairs(original_, quantized_so_far(solved), device_, tokens_, sequences);
  });
  for (const std::vector<std::string>& readers : inputs_) {
    std::vector<std::string> names;
    for (const std::string& name : readers)
      if (std::ranges::find(all, name) != all.end()) names.push_back(name);
    if (names.empty()) continue;
    progress.begin("reading inputs", sequences, "sequences");
    const InputPair pair = times_.time("cross terms: forward", [&] { return pairs->collect(readers); });
    progress.advance(sequences);
    progress.end();
    for (SlopeMatrix& matrix : layers_.solve_shifted(names, pair, log2_c, shrinkage, times_, progress)) {
      const Shape& shape = matrix.tensor.shape;
      times_.time("cross terms: replace",
                  [&] { pairs->replace(matrix.tensor.name, Matrix(dequantize(matrix.tensor), shape[0], shape[1])); });
      solved.push_back(std::move(matrix));
    }
  }
  std::ranges::sort(solved, {}, [](const SlopeMatrix& matrix) { return matrix.tensor.name; });
  return solved;
}

}  // namespace thimble
