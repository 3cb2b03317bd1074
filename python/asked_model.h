// asked_model.h: a model that Python runs, for cross terms and learning of codes (OutsideModel): each step is a
// question to a callable, whose answer is made of arrays. thimble/_quantize_process.py passes questions on to the
// process that has the model. R = output rows, K = input columns of a matrix
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "quantizer/methods/slope/cross_terms.h"
#include "quantizer/methods/slope/teacher.h"

namespace thimble {

// The questions, and what answers them. Arrays are float32 but where it says so; tensors are named as in the artifact,
// and floating.
//   ask("begin", {name: values})                    None
//   ask("collect", number of the input)             H = E[x~ x~^T] and E[(x - x~) x~^T], (K, K) in float64
//   ask("replace", name, values)                    None
//   ask("end")                                      None
//   ask("divergence", {name: values})               nats per token
//   ask("distill", ...)                             {name: gains of rows (R)}, {name: values of what has no codes},
//                                                   steps, sequences, how many more were held out; asked as "learn" is,
//                                                   but for its last:
//   ask("learn", {name: values of other codes}, {name: values of what has no codes},
//       {name: (levels (R, K), row steps (R), column steps (K), bits of the trellis)}, nats per token of a bit)
//                                                   {name: latents (R, K)}, {name: gains of rows (R)}, {name: values of
//                                                   what has no codes}, steps, sequences, how many more were held out
// Must be destroyed while the interpreter is held.
class AskedModel final : public PairedModels, public Teacher {
 public:
  // `key`: of the text that the model reads. Learned, with gains of rows, and distilled is where these say so.
  AskedModel(nanobind::callable ask, std::vector<std::vector<std::string>> inputs, std::string key, bool learns,
             bool learns_rows, bool distills);

  uint64_t key() const override;
  std::vector<std::vector<std::string>> inputs() const override { return inputs_; }
  void begin(const KnownTensors& known) override;
  StoredPair collect(size_t input) override;
  void replace(const QuantizedTensor& solved) override;
  void end() override;

  bool learns() const override { return learns_; }
  bool learns_rows() const override { return learns_rows_; }
  bool distills() const override { return distills_; }
  LearnedCodes learn(const QuantizedModel& model, double divergence, size_t block, Progress& progress) override;
  Distilled distill(const QuantizedModel& model, const SmallExponents& small, Progress& progress) override;
  TunedNames tuned(const QuantizedModel& model) const override;
  double divergence(const QuantizedModel& model, Progress& progress) override;

 private:
  const nanobind::callable ask_;
  const std::vector<std::vector<std::string>> inputs_;
  const std::string key_;
  const bool learns_, learns_rows_, distills_;
};

}  // namespace thimble
