// code_learner.h: learns the codes of matrices with steps (method `slope`) by the gradient of any loss. Each weight has
// a latent, a real number of levels (runtime/codes/trellis.h). The codes are those of the trellis path that is nearest
// to the latents, or by rate too; gradients by weights pass to the latents as if there were no rounding (the
// straight-through estimator, Bengio et al., arXiv 1308.3432), and Adam without momentum moves these. Bits have a
// price: what a level costs is added to its gradient. Steps stay as they are. In: SteppedCodes, gradients by matrices.
// Out: codes. Not here: the loss, what besides codes is learned, and whether the model got better: learned for too long
// or too fast, codes flip to and fro. What stands between two paths can be kept and gone on from: same codes for any
// thread count.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "gptq/slope/adam.h"
#include "runtime/codes/quantized_model.h"
#include "runtime/ops/divergence_pass.h"
#include "runtime/tensor/host_device.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

// Of most models all weights learn at once; with gradients and latents, those that were nearest too, so many take 10
// GiB.
constexpr int64_t kLearnedBlock = int64_t{1} << 29;

struct CodeLearnerOptions {
  int64_t steps = 0;
  int64_t batch = 8;   // sequences of a step
  double rate = 0.02;  // levels that a latent moves in a step, at most about; rises over the first tenth of the steps,
                       // then falls along a cosine to 0
  double bit_price = 0;           // what the loss that the gradients are of must fall by for a bit of the codes
  int64_t block = kLearnedBlock;  // weights with latents at a time
};

// Steps from one path to the next: what these move is far less than a level.
constexpr int64_t kStepsPerPath = 4;
// Of each weight: its latent and the second moment of its gradients, and the latent that was best so far.
constexpr uint64_t kLearnedWeightBytes = 3 * sizeof(float);

// The codes of a matrix (R, K) as samples of Gaussians: level (r, k) of deviation rows[r] * columns[k].
struct LevelScales {
  std::vector<float> rows, columns;
};
// The most likely ones.
LevelScales fit_level_scales(ConstMatrixView levels);

// The derivative of a code's bits, -log2 of such a sample's density, by its level. Two sets of levels take turns, each
// two apart: no deviation counts as less than that of their rounding.
THIMBLE_HOST_DEVICE inline float bits_by_level(float level, float deviation) {
  constexpr float kInverseLog2 = 1.44269504F, kLeastVariance = 1.0F / 3;
  const float variance = deviation * deviation;
  return kInverseLog2 * level / (variance < kLeastVariance ? kLeastVariance : variance);
}

class CodeLearner {
 public:
  // Of a matrix (R, K), row-major.
  struct Latents {
    std::vector<float> levels, second;  // and second moments
    LevelScales scales;                 // of the codes at first

    friend auto members(Latents& latents) {
      return std::tie(latents.levels, latents.second, latents.scales.rows, latents.scales.columns);
    }
  };

  CodeLearner() = default;  // to be read from an archive
  // Of the model's matrices of stepped codes named in `matrices`, but for those without any code but 0, whose steps
  // mean nothing.
  CodeLearner(const QuantizedModel& model, const std::set<std::string>& matrices);

  int64_t steps_done() const { return steps_done_; }
  // Before the next step the model should have the codes of new paths. At first it has them.
  bool needs_paths() const { return steps_done_ > 0 && steps_done_ % kStepsPerPath == 0; }
  std::vector<std::string> matrices() const;

  // The codes of the path of least squared distance to the latents, plus rate_weight times the bits that codes are
  // going to take (SlopeGrid). Into `tensor`, one of the model's: its steps stay. Before the first step, without a rate
  // weight, the codes are what they were.
  void find_path(double rate_weight, QuantizedTensor& tensor) const;
  // The same of all its matrices in a model. Returns these tensors.
  std::vector<const QuantizedTensor*> find_paths(double rate_weight, QuantizedModel& model) const;

  // The next of options.steps steps. `student`: the model with the codes of the last paths; `gradients`: by its
  // matrices, of any scale, (R, K) each; become those by latents.
  void step(MatrixGradients& gradients, const QuantizedModel& student, const CodeLearnerOptions& options);
  // The same for who moves the latents: what Adam does.
  AdamStep begin_step(const CodeLearnerOptions& options);
  std::map<std::string, Latents>& latents() { return latents_; }
  // A copy that finds paths and does no steps: without moments, at step 0.
  CodeLearner at_rest() const;

  // What it consists of, for who keeps it between two paths.
  friend auto members(CodeLearner& learner) { return std::tie(learner.steps_done_, learner.latents_); }

 private:
  int64_t steps_done_ = 0;
  std::map<std::string, Latents> latents_;
};

// Moves a learner's latents by the gradients of a DivergencePass, where its student is: on the host or on a device.
class LatentMover {
 public:
  virtual ~LatentMover() = default;
  // Gives the student the matrices of the latents' paths.
  virtual void find_paths() = 0;
  // CodeLearner::step() with what DivergencePass::gradients() has summed last. Calls `meanwhile` once, which leaves
  // the pass and the learner alone: on a device while that moves the latents.
  virtual void step(const CodeLearnerOptions& options, const std::function<void()>& meanwhile) = 0;
  // Brings the latents back to the learner.
  virtual void store() = 0;
  // Keeps a copy of the latents, instead of the one before.
  virtual void keep() = 0;
  // Brings the copy to `to`, one at_rest(), unless it is there since.
  virtual void store_kept(CodeLearner& to) = 0;
};

// `student`: what the pass began with, whose steps stay. Its codes are found again from the latents where the learner
// has done steps. All but the model must outlive the result.
std::unique_ptr<LatentMover> make_latent_mover(CodeLearner& learner, const QuantizedModel& student,
                                               DivergencePass& pass);
// Of a pass whose student is on a device; a DeviceError in builds without CUDA.
std::unique_ptr<LatentMover> make_cuda_latent_mover(CodeLearner& learner, const QuantizedModel& student,
                                                    CudaStudent& on_device);

}  // namespace thimble
