// model_rate.h: what quantizing the matrices of a model costs by the prediction of their MatrixLoss, the bits that they
// take in the artifact, and the fewest that any code could take at this loss (gptq/slope/rate_bound.h).
// In: checkpoint, losses, quantized model and its artifact.  Out: a table, by matrix and in total.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "gptq/slope/rate_bound.h"
#include "packer/artifact.h"
#include "runtime/base/json.h"
#include "runtime/base/memory_plan.h"
#include "runtime/base/progress.h"
#include "runtime/codes/quantized_model.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

struct MatrixRate {
  int64_t weights = 0;
  double predicted_loss = 0;  // unit of matrix_loss.h
  double stored_bits = 0;     // codes and steps or scales, as `inspect` counts them
  std::optional<double> bound_bits;

  double bits_per_weight() const { return stored_bits / static_cast<double>(weights); }
  double distance() const { return (stored_bits - *bound_bits) / static_cast<double>(weights); }  // bits per weight
};

struct ModelRate {
  std::map<std::string, MatrixRate> matrices;  // with codes and a known loss
  MatrixRate total;                            // the bound: of all matrices together, at the sum of their losses
};

// Measures one quantized model after another of the same checkpoint. What the bound needs of Hessians is computed once.
class RateMeter {
 public:
  // Of `tensors`, those named in `losses`; both must outlive the meter. Losses are measured on the first device.
  RateMeter(const TensorMap& tensors, const std::map<std::string, MatrixLoss>& losses, const Device& device = {})
      : tensors_(tensors), losses_(losses), device_(device) {}

  // `artifact`: of this model.
  ModelRate measure(const QuantizedModel& model, const ArtifactSummary& artifact, bool with_bound, Progress& progress);

 private:
  void find_spectra(Progress& progress);
  uint64_t working_bytes() const;

  const TensorMap& tensors_;
  const std::map<std::string, MatrixLoss>& losses_;
  const Device device_;
  std::map<std::string, GaussianSource> sources_;  // filled when the first bound is asked for
};

// `in_nats`: row weights are an output Fisher; else the losses are half the squared errors of outputs.
Json to_json(const ModelRate& rate, bool in_nats);
// A line for each matrix and one in total: bits per weight, bound, distance, share of the loss.
std::string to_text(const ModelRate& rate);

}  // namespace thimble
