// small_steps.h: how coarsely tensors without codes may be stored: gains of norms, scales, mixes, gates, biases. By the
// slope that all other weights have (step_plan.h), values of a tensor are multiples of
//   step = c / (2 sqrt(F)),   rounded to a power of two
// F being the Fisher information of its elements, mean over them: an error e of one of them costs F e^2 / 2 nats per
// token, a rounding error F step^2 / 24. The slope alone would say c / sqrt(F). But these are few errors, the same in
// every artifact of a model: to first order they move the loss of a text one way or the other, half as far with half
// the step, for a quarter of the bytes saved. Such values need no format of their own: fp16 holds them with zeros in
// its lowest bits, and a general codec makes little of those.
//
// In: gradients of the original's loss, c. Out: the steps, and values rounded to them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/ops/divergence_pass.h"

namespace thimble {

// Of each small tensor, by name: nats per token and square of its unit.
using SmallFisher = std::map<std::string, double>;

// What makes gradients of the divergence, with the original as the student too, gradients of its loss on the tokens:
// half of these.
DivergenceOptions fisher_pass_options();

// By `sequences` sequences, at least 2, of so many positions each, that a pass of the original against itself with
// fisher_pass_options() reads, from its first on:
//   F_i = Var(dL / dw_i) / positions,   L the summed loss of a sequence
// Gradients of single tokens are independent of each other where the model wrote them, so that the variance of their
// sum is that of one times their number; what a text that is no sample of the model has in common is left out with the
// mean. Deterministic: sequences in order.
SmallFisher small_fisher(DivergencePass& original, int64_t sequences, int64_t positions);

// log2 of the steps of some small tensors, by name.
using SmallExponents = std::map<std::string, int>;

// Each value to the nearest multiple of 2^exponent, ties to even. Exact where |value| < 2^(24 + exponent); beyond that
// float32 has no finer values.
std::vector<float> rounded_to_steps(std::vector<float> values, int exponent);

// The steps at any c of the small tensors of one model.
class SmallSteps {
 public:
  // Of fewer elements than this a tensor stays as it is: there is nothing to gain.
  static constexpr size_t kLeastElements = 8;

  SmallSteps() = default;  // of no tensors
  // `values`: the original's. Tensors that either argument lacks, or whose values are all 0, get no step; one whose
  // errors cost nothing gets the longest.
  SmallSteps(const SmallFisher& fisher, const FloatTensors& values);

  bool empty() const { return steps_.empty(); }
  // No step is longer than half its tensor's root mean square: beyond, the loss is no longer quadratic.
  SmallExponents at(double log2_c) const;
  // Hash of all steps at all c.
  uint64_t key() const;

 private:
  struct Step {
    double log2_step = 0;  // at c = 1
    double log2_most = 0;
  };
  std::map<std::string, Step> steps_;
};

}  // namespace thimble
