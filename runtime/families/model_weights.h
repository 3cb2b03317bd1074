// model_weights.h: a model ready to be run: its spec, and its weights in host memory, from a checkpoint's tensors or
// from codes.
#pragma once

#include <memory>
#include <string>

#include "runtime/codes/quantized_model.h"
#include "runtime/families/family.h"
#include "runtime/ops/weights.h"

namespace thimble {

struct RunnableModel {
  Spec spec;
  std::shared_ptr<const Weights> weights;
};

// `parameters` with bytes, which Family::resolve() has accepted. Matrices of floats of at most 32 bits stay where they
// lie, for as long as the weights hold `owner`; without one, the bytes must outlive the weights.
std::shared_ptr<const Weights> weights_of(const Spec& spec, const TensorMap& parameters,
                                          const std::shared_ptr<const void>& owner = nullptr);

// The spec that an artifact's config describes, checked against the names and shapes of its tensors, not their
// contents. A config of a family that does not run, or tensors that do not fit it, are FormatErrors(path).
Spec quantized_spec(const QuantizedModel& quantized, const std::string& path);

// The tensors of the checkpoint that an artifact stands for, with elements of `dtype`: those of dequantized_tensors()
// under the names and in the shapes of its family's files, banks too. Of a family that does not run they stay as they
// are; a FormatError(path) where they were in banks. Of one that runs, quantized_spec() checks them.
std::map<std::string, Tensor> checkpoint_tensors(const QuantizedModel& quantized, DType dtype, const std::string& path);

// The weights that the codes stand for. Matrices are as stored_matrix() has them.
Weights dequantize_weights(std::shared_ptr<const Network> network, const QuantizedModel& quantized);

RunnableModel dequantize_model(const QuantizedModel& quantized, const std::string& path);

}  // namespace thimble
