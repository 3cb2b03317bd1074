// cross_terms.cpp: see cross_terms.h.
#include "quantizer/methods/slope/cross_terms.h"

#include <algorithm>

#include "runtime/base/hash.h"

namespace thimble {
namespace {

// What is not solved yet is the original's.
std::shared_ptr<const Weights> quantized_so_far(const QuantizedModel& fixed, const std::vector<SlopeMatrix>& solved,
                                                const Weights& original) {
  std::map<std::string, const QuantizedTensor*> tensors;
  for (const QuantizedTensor& tensor : fixed.tensors) tensors[tensor.name] = &tensor;
  for (const SlopeMatrix& matrix : solved) tensors[matrix.tensor.name] = &matrix.tensor;
  auto so_far = std::make_shared<Weights>(original);
  for (size_t i = 0; i < so_far->matrices.size(); ++i)
    if (const auto found = tensors.find(original.network->matrices[i].name); found != tensors.end())
      so_far->matrices[i] = stored_matrix(*found->second);
  FloatTensors small;
  for (const auto& [name, values] : original.small) small[name] = dequantize(*tensors.at(name));
  so_far->set_small(std::move(small));
  return so_far;
}

}  // namespace

std::vector<SlopeMatrix> CrossTerms::solve(double log2_c, double shrinkage, Progress& progress) const {
  const int64_t read = std::min(tokens.count, sequences);
  const std::vector<std::string> all = layers.names();
  SlopeSettings others;
  for (const std::string& name : all) others[name] = {log2_c, shrinkage};
  const Network& network = *original->network;
  const std::vector<LinearInput> inputs = inputs_of_layers(network);
  for (const LinearInput& input : inputs)
    for (MatrixId id : input.readers) others.erase(network.matrix(id).name);
  std::vector<SlopeMatrix> solved = times.time("solve", [&] { return layers.solve(others, progress); });

  std::unique_ptr<InputPairs> pairs;  // once something is not kept
  const uint64_t key = Hasher()
                           .add(std::string_view("cross terms"))
                           .add(std::as_bytes(std::span(tokens.tokens)))
                           .add(static_cast<uint64_t>(tokens.length))
                           .add(static_cast<uint64_t>(read))
                           .digest();
  for (const LinearInput& input : inputs) {
    std::vector<std::string> names;
    for (MatrixId id : input.readers)
      if (std::ranges::find(all, network.matrix(id).name) != all.end()) names.push_back(network.matrix(id).name);
    if (names.empty()) continue;
    auto collect = [&] {
      if (!pairs)
        pairs = times.time("cross terms: models", [&] {
          return make_input_pairs(original, quantized_so_far(fixed, solved, *original), device, tokens, read);
        });
      return times.time("cross terms: forward", [&] { return pairs->collect(input); });
    };
    for (SlopeMatrix& matrix : layers.solve_shifted(names, log2_c, shrinkage, key, collect, times, progress)) {
      if (pairs)
        times.time("cross terms: replace", [&] { pairs->replace(matrix.tensor.name, stored_matrix(matrix.tensor)); });
      solved.push_back(std::move(matrix));
    }
  }
  std::ranges::sort(solved, {}, [](const SlopeMatrix& matrix) { return matrix.tensor.name; });
  return solved;
}

}  // namespace thimble
