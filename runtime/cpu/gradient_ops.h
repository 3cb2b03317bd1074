// gradient_ops.h: the operations that a backward pass on the CPU is made of, as backend.h has those of the forward
// pass. Each is the transpose of the operation it is named after, at the inputs which that one had.
// d<x> is the gradient of the loss with respect to x. Axis letters as in backend.h; P = positions of one window.
// Work is cut into pieces of fixed size: results are the same bits for any thread count.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/cpu/backend.h"
#include "runtime/ops/network.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

// Through y = x w^T: dx (P,K) = dy (P,N) w, w (N,K); the same added to dx.
void linear_backward(ConstMatrixView dy, ConstMatrixView w, MatrixView dx);
void linear_backward_add(ConstMatrixView dy, ConstMatrixView w, MatrixView dx);

// Through y = scale * x by columns: dx = scale * dy. dx may be dy.
void scale_backward(ConstMatrixView dy, std::span<const float> scale, MatrixView dx);

// Through y = rms(x) * c, s = 1 / sqrt(mean(x^2) + 1.1920929e-7):  dx += c s (dy - s^2 mean(x dy) x).
void rms_norm_backward(ConstMatrixView x, float c, ConstMatrixView dy, MatrixView dx);

// Through y = leaky_relu(z, 0.5)^2, dy becomes dz in place: dz = 2 z dy where z > 0, else z / 2 dy.
void leaky_relu_squared_backward(ConstMatrixView z, MatrixView dy);

// Through norm_and_rotate() of rows 0.. of a window, dy becomes dx in place; x are the inputs it had.
void norm_and_rotate_backward(ConstMatrixView x, int64_t head_dim, const RotaryTable& rotary,
                              std::span<const float> gain, MatrixView dy);

// Through out[p] = (1 - gate) x[p] + gate x[p-1]:  dx[p] = (1 - gate) dy[p] + gate dy[p+1].
void smear_backward(ConstMatrixView dy, std::span<const float> gate, MatrixView dx);

// Through attention() over a window from its start: q (P, H*d), k and v (P, G*d) are the inputs it had.
void attention_backward(ConstMatrixView q, ConstMatrixView k, ConstMatrixView v, const op::Attention& shape,
                        ConstMatrixView dy, MatrixView dq, MatrixView dk, MatrixView dv);

// Through l = cap * tanh(z / cap) and the loss sum_p -log softmax(l[p])[targets[p]], logits l become dz in place.
// Returns the loss in nats.
double nll_backward(MatrixView logits, std::span<const uint16_t> targets, float cap);

// The same with the loss sum_p KL(softmax(teacher[p]) || softmax(l[p])), of a teacher's softcapped logits (P, V).
double divergence_backward(MatrixView logits, ConstMatrixView teacher, float cap);

// sum_p a[p] * b[p] by columns, in float64, first row first.
std::vector<double> column_dots(ConstMatrixView a, ConstMatrixView b);

}  // namespace thimble
