// cpu_gradients.h: forward and backward pass over one window on the CPU in float32: the inputs of linear layers, the
// gradients at their outputs, the loss. The reference for every device.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/cpu/cpu_pass.h"
#include "runtime/ops/divergence_pass.h"
#include "runtime/ops/token_sequences.h"

namespace thimble {

// What looks on while a window runs; null: nobody.
struct WindowObservers {
  LinearObserver* inputs = nullptr;      // of the linear layers below the head
  LinearObserver* head_input = nullptr;  // of the output head
};

// A teacher's softcapped logits, some rows at a time.
struct TeacherRows {
  const CpuPass& pass;
  ConstMatrixView hidden;                  // (inputs, D), the input of its head after each input
  std::span<const Token> next = {};        // (inputs) what follows
  double data_share = 0, temperature = 1;  // DivergenceOptions
};

// Of a pass over windows of so many tokens. `for_gains`, `for_matrices`: as of CpuGradients. Layers are computed again
// where all that the pass would keep is more than kMostKeptBytes.
PassOptions cpu_gradient_options(const Network& network, int64_t length, bool for_gains, bool for_matrices);
constexpr uint64_t kMostKeptBytes = uint64_t{1} << 30;

// Runs windows of at most the context length, one after another, reusing its buffers.
class CpuGradients {
 public:
  // `weights` must outlive the object and may change between windows. `for_gains`: observers also see the outputs of
  // matrices, and gradients by vectors may be asked for. `for_matrices`: they see the inputs of matrices. `arithmetic`:
  // of products with matrices.
  CpuGradients(const Weights& weights, int64_t context_length, bool for_gains = false, bool for_matrices = false,
               ProductArithmetic arithmetic = ProductArithmetic::kFloat32);
  // With a backward pass.
  CpuGradients(const Weights& weights, int64_t context_length, const PassOptions& options,
               ProductArithmetic arithmetic = ProductArithmetic::kFloat32);

  // `tokens`: at least two; each but the last is an input, each but the first a target. Returns the summed loss in
  // nats.
  double run(std::span<const Token> tokens, const WindowObservers& observers, GradientObserver& gradients,
             VectorGradients* vectors = nullptr);
  // `inputs`: at least one token. Returns the summed divergence from the teacher in nats.
  double run_divergence(std::span<const Token> inputs, const TeacherRows& teacher, GradientObserver& gradients,
                        VectorGradients* vectors = nullptr);
  // The same from the forward pass alone.
  double divergence(std::span<const Token> inputs, const TeacherRows& teacher);
  // Adds what the teacher's rows give.
  void add_temperature_slopes(const TeacherRows& teacher, double temperature, TemperatureSlope& sums);

 private:
  // loss(first row, softcapped logits): the summed loss of a piece of logits, which become their gradient.
  template <typename Loss>
  double forward(std::span<const Token> inputs, const WindowObservers& observers, GradientObserver* gradients,
                 const Loss& loss);
  auto divergence_from(const TeacherRows& teacher);
  void backward(GradientObserver& gradients, VectorGradients* vectors);

  CpuPass pass_;
  bool for_gains_;
  // Of a piece of rows: logits; those of a teacher; what the head gave before the softcap, where observers see outputs.
  Matrix logits_, teacher_logits_, head_output_;
};

}  // namespace thimble
