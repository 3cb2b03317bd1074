// divergence_pass.h: how far a student is from its teacher, and how that changes with gains of the student's matrices,
// with these matrices and with its small tensors: forward passes of both, backward pass of the student.
//   divergence = sum over positions of KL(softmax(teacher's logits) || softmax(student's)), in nats
// In: weights of two models, sequences, gains.  Out: divergence and gradients, summed over sequences in order, or over
// parts of them (models.h): the same bits for any thread count. The CPU's (cpu_models.h) is the reference; CUDA devices
// must agree with it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/ops/weights.h"

namespace thimble {

// What changes of a student.
struct Gains {
  std::map<std::string, std::vector<float>> rows;  // linear layers below the head -> factor of each row; absent: 1
  float head = 1;                                  // factor of the output head, of a tied one wherever it is used
  FloatTensors small;                              // all small tensors, as stored
};

struct GainGradients {
  double divergence = 0;
  // By the logarithms of the gains: of all linear layers, whether they have gains or not, or of none.
  NamedGradients rows;
  double head = 0;
  NamedGradients small;
};

// By matrices of a student as it is, with their gains, (R, K) each; by name.
using MatrixGradients = std::map<std::string, Matrix>;

struct DivergenceOptions {
  std::set<std::string> summed = {};  // matrices whose gradients may be asked for: these have room
  bool sums_rows = true;              // gradients by gains of rows are asked for
  // The inputs of the teacher's head are kept, and its logits made of them again some rows at a time: those of as many
  // sequences as take so many bytes, at least two. Where there are more, they are computed again.
  int64_t teacher_bytes = int64_t{1} << 31;
  // What the teacher predicts is mixed with the token that does follow, which counts for this share, 0 to below 1: a
  // teacher that is not the best for a text itself is no reason to stay close to it there.
  double data_share = 0;
  // Before that, what it predicts is softmax(logits / temperature) (Guo et al., On Calibration of Modern Neural
  // Networks, 2017).
  double temperature = 1;
  // What a device adds up of its gradients by matrices: nothing; parts that it has summed itself, for whose sum it has
  // room; or those of other devices too, with room for one matrix of theirs.
  enum class Adds { kNothing, kOwnParts, kAllParts };
  Adds adds = Adds::kOwnParts;

  // Of inputs of so many bytes an element.
  int64_t kept_sequences(const Network& network, int64_t count, int64_t length, size_t element_bytes) const {
    const int64_t width = network.matrix(network.head.weight).columns;
    const int64_t bytes = (length - 1) * width * static_cast<int64_t>(element_bytes);
    return std::min(count, std::max<int64_t>(2, teacher_bytes / bytes));
  }
};

// Of the loss of tokens that follow, at a temperature of a teacher's predictions, by its inverse: sums over positions,
// with l the logits and y the token, at p = softmax(l / temperature).
struct TemperatureSlope {
  double slope = 0;      // E_p[l] - l_y
  double curvature = 0;  // Var_p[l]
  double squares = 0;    // of the terms of `slope`

  void add(double mean, double variance, double logit) {
    slope += mean - logit;
    curvature += variance;
    squares += (mean - logit) * (mean - logit);
  }
};

class CudaStudent;  // runtime/cuda/cuda_student.cuh

class DivergencePass {
 public:
  virtual ~DivergencePass() = default;
  // The student from now on: its matrices as they were at first, or as set_matrix() left them, times the gains.
  virtual void set(const Gains& gains) = 0;
  // Puts another matrix of the same shape in the place of one that the student had at first. Without a gain until the
  // next set().
  virtual void set_matrix(const std::string& name, const StoredMatrix& matrix) = 0;
  // Over sequences [first, first + count), each less its last token. `sums_matrices`: also sums the gradients by the
  // matrices of DivergenceOptions::summed, in float32, the same bits for any thread count and any batch of a device.
  virtual GainGradients gradients(int64_t first, int64_t count, bool sums_matrices) = 0;
  // What gradients() has summed by matrices last, until it sums them again, which anybody may change; where the student
  // is on a device, a copy.
  virtual MatrixGradients& matrix_gradients() = 0;
  virtual double divergence(int64_t first, int64_t count) = 0;
  // The same of each sequence by itself. As many at a time as preferred_sequences() keep all busy that compute it.
  virtual std::vector<double> divergences(int64_t first, int64_t count) {
    std::vector<double> all;
    for (int64_t s = first; s < first + count; ++s) all.push_back(divergence(s, 1));
    return all;
  }
  virtual int64_t preferred_sequences() const { return 1; }
  // Of the teacher, on the tokens that follow in sequences [first, first + count), whatever temperature the options
  // say.
  virtual TemperatureSlope temperature_slope(int64_t first, int64_t count, double temperature) = 0;
  // Where the student's matrices lie in a CUDA device's memory, until they go; null: they lie in the host's.
  virtual CudaStudent* on_device() { return nullptr; }

  GainGradients gradients(int64_t first, int64_t count) { return gradients(first, count, false); }
  // `matrices` may be null.
  GainGradients gradients(int64_t first, int64_t count, MatrixGradients* matrices) {
    GainGradients sums = gradients(first, count, matrices != nullptr);
    if (matrices) *matrices = matrix_gradients();
    return sums;
  }
};

// A pass on one device, whose gradients by matrices may be parts of a sum that is made on one of several. Sums are
// float32, and depend on the order in which parts are added.
class DevicePass : public DivergencePass {
 public:
  // Adds what gradients() has summed by matrices last to the sum, or with `begins` makes the sum of it. From then on,
  // until gradients() sums again, the sum is what matrix_gradients() and on_device() give. The part is spent.
  virtual void add_part(bool begins) = 0;
  // The same of what another pass of the same models and options has summed last, on a device of the same kind.
  virtual void add_part_of(DevicePass& other, bool begins) = 0;
  // The same of one matrix (R, K), from wherever.
  virtual void add_matrix(const std::string& name, ConstMatrixView values, bool begins) = 0;
  // A matrix of what gradients() has summed last, in host memory: its own, or `buffer`.
  virtual ConstMatrixView part(const std::string& name, Matrix& buffer) = 0;
  // Gives other such passes the matrices that were changed where they lie (CudaStudent) since the last set().
  virtual void give_changes_to(std::span<DevicePass* const> others) = 0;
};

}  // namespace thimble
