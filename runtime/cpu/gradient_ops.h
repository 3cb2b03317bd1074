// gradient_ops.h: the larger transposes that a backward pass on the CPU is made of, at the inputs that the operations
// had, and the losses that it begins with.
// d<x> is the gradient of the loss with respect to x. Axis letters as in network.h; P = positions of one window.
// Work is cut into pieces of fixed size: results are the same bits for any thread count.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/ops/divergence_pass.h"
#include "runtime/ops/network.h"
#include "runtime/ops/token_sequences.h"
#include "runtime/tensor/matrix.h"
#include "runtime/tensor/product_arithmetic.h"

namespace thimble {

// Through op::Attention over a window from its start: q (P, H*d), k and v (P, G*d) are the inputs it had.
void attention_backward(ConstMatrixView q, ConstMatrixView k, ConstMatrixView v, const op::Attention& shape,
                        ConstMatrixView dy, MatrixView dq, MatrixView dk, MatrixView dv,
                        ProductArithmetic arithmetic = ProductArithmetic::kFloat32);

// What it takes of memory besides these, over P positions.
uint64_t attention_backward_bytes(const op::Attention& shape, int64_t positions);

// Through l = cap * tanh(z / cap) and the loss sum_p -log softmax(l[p])[targets[p]], logits l become dz in place.
// Returns the loss in nats.
double nll_backward(MatrixView logits, std::span<const Token> targets, float cap);

// The same with the loss sum_p KL(softmax(teacher[p]) || softmax(l[p])), of a teacher's softcapped logits (P, V).
double divergence_backward(MatrixView logits, ConstMatrixView teacher, float cap);
// Logits become those of (1 - share) softmax(logits) + share onehot(next token). next: (rows). share < 1.
void mix_data(std::span<const Token> next, double share, MatrixView logits);
// Adds what rows of softcapped logits (P, V) give, of the tokens that follow each.
void add_temperature_slopes(std::span<const Token> next, double temperature, ConstMatrixView logits,
                            TemperatureSlope& sums);

// sum_p a[p] * b[p] by columns, in float64, first row first.
std::vector<double> column_dots(ConstMatrixView a, ConstMatrixView b);

}  // namespace thimble
