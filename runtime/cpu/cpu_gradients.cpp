// cpu_gradients.cpp: see cpu_gradients.h.
#include "runtime/cpu/cpu_gradients.h"

#include <cassert>

#include "runtime/cpu/cpu_plans.h"
#include "runtime/cpu/gradient_ops.h"
#include "runtime/ops/logit_pieces.h"

namespace thimble {
namespace {

void scale(float factor, std::span<float> values) {
  for (float& value : values) value *= factor;
}

}  // namespace

PassOptions cpu_gradient_options(const Network& network, int64_t length, bool for_gains, bool for_matrices) {
  PassOptions options = {.has_backward = true,
                         .reads_linear_outputs = for_gains,
                         .reads_head_output = for_gains,
                         .has_vector_gradients = for_gains,
                         .reads_linear_inputs = for_matrices};
  if (cpu_pass_bytes(network, length, length, options) > kMostKeptBytes) options.keeps = Keeps::kCrossing;
  return options;
}

CpuGradients::CpuGradients(const Weights& weights, int64_t context_length, bool for_gains, bool for_matrices,
                           ProductArithmetic arithmetic)
    : CpuGradients(weights, context_length,
                   cpu_gradient_options(*weights.network, context_length, for_gains, for_matrices), arithmetic) {}

CpuGradients::CpuGradients(const Weights& weights, int64_t context_length, const PassOptions& options,
                           ProductArithmetic arithmetic)
    : pass_(weights, context_length, gradient_policy(arithmetic), options), for_gains_(options.reads_head_output) {
  assert(options.has_backward);
}

template <typename Loss>
double CpuGradients::forward(std::span<const Token> inputs, const WindowObservers& observers,
                             GradientObserver* gradients, const Loss& loss) {
  const Network& network = pass_.network();
  const ConstMatrixView hidden = pass_.run(window_batch(inputs), nullptr, 0, observers.inputs);
  if (observers.head_input) {
    const std::string name = network.matrix(network.head.weight).name;
    observers.head_input->on_linear_input({&name, 1}, hidden);
  }
  const bool keeps_output = gradients && for_gains_;
  double sum = 0;
  for_each_logit_piece(hidden.rows, network.vocabulary(), [&](int64_t first, int64_t rows) {
    logits_.resize(rows, network.vocabulary());
    if (keeps_output) head_output_.resize(rows, network.vocabulary());
    pass_.logits(hidden.block_rows(first, rows), logits_, keeps_output ? &head_output_ : nullptr);
    sum += loss(first, logits_);
    if (gradients)
      pass_.backward_head(first, logits_, keeps_output ? ConstMatrixView(head_output_) : ConstMatrixView(), *gradients);
  });
  return sum;
}

void CpuGradients::backward(GradientObserver& gradients, VectorGradients* vectors) {
  assert(for_gains_ || !vectors);
  std::vector<double> sums;
  pass_.backward(gradients, vectors ? &sums : nullptr);
  if (vectors) *vectors = vector_gradients(pass_.network(), pass_.weights().vectors, sums);
}

double CpuGradients::run(std::span<const Token> tokens, const WindowObservers& observers, GradientObserver& gradients,
                         VectorGradients* vectors) {
  assert(tokens.size() >= 2);
  const std::span<const Token> targets = tokens.subspan(1);
  const double loss = forward(tokens.first(targets.size()), observers, &gradients, [&](int64_t first, MatrixView rows) {
    return nll_backward(rows, targets.subspan(static_cast<size_t>(first), static_cast<size_t>(rows.rows)),
                        pass_.network().head.softcap);
  });
  backward(gradients, vectors);
  return loss;
}

auto CpuGradients::divergence_from(const TeacherRows& teacher) {
  return [&](int64_t first, MatrixView rows) {
    teacher_logits_.resize(rows.rows, rows.cols);
    teacher.pass.logits(teacher.hidden.block_rows(first, rows.rows), teacher_logits_);
    if (teacher.temperature != 1) scale(static_cast<float>(1 / teacher.temperature), teacher_logits_.values());
    if (teacher.data_share > 0)
      mix_data(teacher.next.subspan(static_cast<size_t>(first), static_cast<size_t>(rows.rows)), teacher.data_share,
               teacher_logits_);
    return divergence_backward(rows, teacher_logits_, pass_.network().head.softcap);
  };
}

double CpuGradients::run_divergence(std::span<const Token> inputs, const TeacherRows& teacher,
                                    GradientObserver& gradients, VectorGradients* vectors) {
  const double divergence = forward(inputs, {}, &gradients, divergence_from(teacher));
  backward(gradients, vectors);
  return divergence;
}

void CpuGradients::add_temperature_slopes(const TeacherRows& teacher, double temperature, TemperatureSlope& sums) {
  for_each_logit_piece(teacher.hidden.rows, pass_.network().vocabulary(), [&](int64_t first, int64_t rows) {
    teacher_logits_.resize(rows, pass_.network().vocabulary());
    teacher.pass.logits(teacher.hidden.block_rows(first, rows), teacher_logits_);
    thimble::add_temperature_slopes(teacher.next.subspan(static_cast<size_t>(first), static_cast<size_t>(rows)),
                                    temperature, teacher_logits_, sums);
  });
}

double CpuGradients::divergence(std::span<const Token> inputs, const TeacherRows& teacher) {
  return forward(inputs, {}, nullptr, divergence_from(teacher));
}

}  // namespace thimble
