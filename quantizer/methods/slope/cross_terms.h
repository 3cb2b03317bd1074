// cross_terms.h: the method `slope` layer by layer, in the order in which the model runs them: each layer with the
// Hessian of what it reads from those quantized before it, and making up for what they did to it
// (gptq/factor/input_pairs.h). All other matrices are solved as ever, first.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gptq/factor/input_pairs.h"
#include "quantizer/console/console.h"
#include "quantizer/methods/slope/slope_layers.h"
#include "runtime/codes/quantized_model.h"

namespace thimble {

// Tensors of a model that is quantized so far, by name.
using KnownTensors = std::map<std::string, const QuantizedTensor*>;

// The original, and beside it a model that is quantized on the way: whoever runs them. All ranks call it alike.
class PairedModels {
 public:
  virtual ~PairedModels() = default;
  // Hash of the text that both read.
  virtual uint64_t key() const = 0;
  // The matrices that read each input of linear layers, in the order of forward passes.
  virtual std::vector<std::vector<std::string>> inputs() const = 0;
  // Before the first input is collected. What is not known yet is the original's.
  virtual void begin(const KnownTensors& known) = 0;
  // inputs()[input]. They come in that order; some may be left out, none comes twice.
  virtual StoredPair collect(size_t input) = 0;
  // Gives the quantized model one of the matrices that read the input collected last.
  virtual void replace(const QuantizedTensor& solved) = 0;
  // After the last one: what both hold is free again.
  virtual void end() = 0;
};

// Of a model that the program runs, by make_input_pairs(), shared among the ranks. At most `sequences` of `tokens` are
// read; all must outlive the result.
std::unique_ptr<PairedModels> make_paired_models(std::shared_ptr<const Weights> original, const TokenSequences& tokens,
                                                 int64_t sequences, const Device& device, Ranks& ranks);

struct CrossTerms {
  PairedModels& models;
  const QuantizedModel& fixed;  // the model with all tensors but those of `layers`
  const SlopeLayers& layers;
  StageTimes& times;

  // As SlopeLayers::solve(), which it is but for the linear layers of blocks. The models run once, layer by layer, or
  // again for each input of linear layers (make_input_pairs()); not before the first layer that is not kept.
  std::vector<SlopeMatrix> solve(double log2_c, Progress& progress, const OnSolved& on_solved = {}) const;
};

}  // namespace thimble
