// cpu_gradients.cpp: see cpu_gradients.h.
#include "runtime/cpu/cpu_gradients.h"

#include <cassert>

#include "runtime/cpu/gradient_ops.h"

namespace thimble {

CpuGradients::CpuGradients(const Weights& weights, int64_t context_length, bool for_gains)
    : pass_(weights, context_length, {},
            {.has_backward = true, .reads_linear_outputs = for_gains, .has_vector_gradients = for_gains}),
      for_gains_(for_gains) {}

// Leaves softcapped logits in logits_.
void CpuGradients::forward(std::span<const Token> inputs, const WindowObservers& observers) {
  const Network& network = pass_.network();
  const ConstMatrixView hidden = pass_.run(window_batch(inputs), nullptr, 0, observers.inputs);
  if (observers.head_input) {
    const std::string name = network.matrix(network.head.weight).name;
    observers.head_input->on_linear_input({&name, 1}, hidden);
  }
  logits_.resize(hidden.rows, network.vocabulary());
  if (for_gains_) head_output_.resize(hidden.rows, network.vocabulary());
  pass_.logits(hidden, logits_, for_gains_ ? &head_output_ : nullptr);
}

// logits_ hold the gradient by the head's product.
void CpuGradients::backward(GradientObserver& gradients, VectorGradients* vectors) {
  assert(for_gains_ || !vectors);
  std::vector<double> sums;
  pass_.backward(logits_, for_gains_ ? ConstMatrixView(head_output_) : ConstMatrixView(), gradients,
                 vectors ? &sums : nullptr);
  if (vectors) *vectors = vector_gradients(pass_.network(), pass_.weights().vectors, sums);
}

double CpuGradients::run(std::span<const Token> tokens, const WindowObservers& observers, GradientObserver& gradients,
                         VectorGradients* vectors) {
  assert(tokens.size() >= 2);
  forward(tokens.first(tokens.size() - 1), observers);
  const double loss = nll_backward(logits_, tokens.subspan(1), pass_.network().head.softcap);
  backward(gradients, vectors);
  return loss;
}

double CpuGradients::run_divergence(std::span<const Token> inputs, ConstMatrixView teacher, GradientObserver& gradients,
                                    VectorGradients* vectors) {
  forward(inputs, {});
  const double divergence = divergence_backward(logits_, teacher, pass_.network().head.softcap);
  backward(gradients, vectors);
  return divergence;
}

MatrixView CpuGradients::logits(std::span<const Token> inputs) {
  forward(inputs, {});
  return logits_;
}

}  // namespace thimble
