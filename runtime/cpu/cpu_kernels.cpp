// cpu_kernels.cpp: the kernels of cpu_kernels.h, compiled once per instruction set with THIMBLE_ISA set to its name.
// Everything here has internal linkage or lies in a namespace named after the instruction set: otherwise the linker
// could pick an AVX-512 copy of a shared template for a machine that has no AVX-512.
#include "runtime/cpu/cpu_kernels.h"

#define THIMBLE_JOIN_(a, b) a##_##b
#define THIMBLE_JOIN(a, b) THIMBLE_JOIN_(a, b)
#define THIMBLE_STRING_(a) #a
#define THIMBLE_STRING(a) THIMBLE_STRING_(a)

#define Eigen THIMBLE_JOIN(Eigen, THIMBLE_ISA)
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>

#include "runtime/cpu/widening_products.h"

namespace thimble {
namespace {

constexpr float kMinValueNorm = 1e-12f;
constexpr float kTwoSqrtTwoOverPi = 1.59576912f;

template <typename T>
using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <typename T>
using MutableMap = Eigen::Map<RowMajor<T>, Eigen::Unaligned, Eigen::OuterStride<>>;
template <typename T>
using ConstMap = Eigen::Map<const RowMajor<T>, Eigen::Unaligned, Eigen::OuterStride<>>;
using Row = Eigen::Map<Eigen::ArrayXf>;
using ConstRow = Eigen::Map<const Eigen::ArrayXf>;

template <typename T>
MutableMap<T> map(BasicMatrixView<T> m) {
  return {m.data, m.rows, m.cols, Eigen::OuterStride<>(m.stride)};
}
template <typename T>
ConstMap<T> map(BasicMatrixView<const T> m) {
  return {m.data, m.rows, m.cols, Eigen::OuterStride<>(m.stride)};
}

// c = a m, or c += it.
template <typename Right>
void assign_product(ConstMatrixView a, const Right& m, MatrixView c, bool adds) {
  if (adds)
    map(c).noalias() += map(a) * m;
  else
    map(c).noalias() = map(a) * m;
}

void gemm_nt(ConstMatrixView a, const StoredMatrixView& b, MatrixView c) {
  if (b.is_float32()) return assign_product(a, map(b.float32()).transpose(), c, false);
  if (is_special(a, c)) return assign_product(a, map(WidenedMatrix(b, b.cols).view()).transpose(), c, false);
  if (a.rows == 1)
    return for_each_widened_part(b, kVectorRows, b.stride, [&](int64_t first, const WidenedMatrix& part) {
      const ConstMatrixView m = part.view();
      assign_product(a, map(m).transpose(), c.block_cols(first, m.rows), false);
    });
  map(c).setZero();
  with_elements(b, [&](const auto& elements) { add_widened_product<false>(a, elements, c); });
}
void gemm_nn(ConstMatrixView a, const StoredMatrixView& b, MatrixView c, bool adds) {
  if (b.is_float32()) return assign_product(a, map(b.float32()), c, adds);
  if (is_special(a, c)) return assign_product(a, map(WidenedMatrix(b, b.cols).view()), c, adds);
  if (a.rows == 1)
    return for_each_widened_part(b, kVectorDepth,
                                 b.stride < kLongStride || b.cols >= kLongStride ? b.cols : kLongStride,
                                 [&](int64_t first, const WidenedMatrix& part) {
                                   const ConstMatrixView m = part.view();
                                   assign_product(a.block_cols(first, m.rows), map(m), c, adds || first > 0);
                                 });
  if (!adds) map(c).setZero();
  with_elements(b, [&](const auto& elements) { add_widened_product<true>(a, elements, c); });
}
void gemm_tn_add(ConstMatrixView a, ConstMatrixView b, MatrixView c) {
  map(c).noalias() += map(a).transpose() * map(b);
}
void gemm_nn_sub_f64(ConstMatrixViewF64 a, ConstMatrixViewF64 b, MatrixViewF64 c) {
  map(c).noalias() -= map(a) * map(b);
}

void add_scaled(const float* a, float scale, float* x, int64_t n) { Row(x, n) += scale * ConstRow(a, n); }

void add(const float* a, const float* scale, float* x, int64_t n) { Row(x, n) += ConstRow(scale, n) * ConstRow(a, n); }

// 1 / sqrt(mean(x^2) + epsilon).
float inverse_rms(const float* x, float epsilon, int64_t n) {
  return 1.0f / __builtin_sqrtf(ConstRow(x, n).square().sum() / static_cast<float>(n) + epsilon);
}

void rms_norm(const float* x, const float* gain, float factor, float epsilon, float* y, int64_t n) {
  Row(y, n) = ConstRow(x, n) * (inverse_rms(x, epsilon, n) * factor);
  if (gain) Row(y, n) *= ConstRow(gain, n);
}

// y = c s gain x with s = (mean(x^2) + epsilon)^-1/2, whose derivative is ds/dx = -s^3 x / n. With g = gain dy:
// dx = c (s g - s^3 mean(x g) x).
void rms_norm_backward(const float* x, const float* gain, float factor, float epsilon, const float* dy, float* dx,
                       int64_t n) {
  ConstRow row(x, n);
  Row out(dx, n);
  if (gain)
    out = ConstRow(dy, n) * ConstRow(gain, n);
  else
    out = 1.0f * ConstRow(dy, n);
  float s = inverse_rms(x, epsilon, n);
  float along = s * s * ((row * out).sum() / static_cast<float>(n));
  out = (factor * s) * (out - along * row);
}

// In two passes: the differences from the mean stay small whatever the mean is. Eigen sums a plain array in an order
// that follows from its address, a product by its elements alone; the same row must give the same bits wherever it
// lies.
void layer_norm(const float* x, const float* weight, const float* bias, float epsilon, float* y, int64_t n) {
  const auto width = static_cast<float>(n);
  Row out(y, n);
  out = ConstRow(x, n) - (1.0f * ConstRow(x, n)).sum() / width;
  const float inverse = 1.0f / __builtin_sqrtf(out.square().sum() / width + epsilon);
  out = out * inverse * ConstRow(weight, n) + ConstRow(bias, n);
}

// y = weight n + bias with n = (x - mean) s, s = (variance + epsilon)^-1/2. With g = weight dy:
// dx = s (g - mean(g) - n mean(n g)).
void layer_norm_backward(const float* x, const float* weight, float epsilon, const float* dy, float* dx, int64_t n) {
  const auto width = static_cast<float>(n);
  ConstRow row(x, n);
  Row out(dx, n);
  const float mean = (1.0f * row).sum() / width;
  const float s = 1.0f / __builtin_sqrtf((row - mean).square().sum() / width + epsilon);
  out = ConstRow(dy, n) * ConstRow(weight, n);
  const float mean_gradient = (1.0f * out).sum() / width, along = ((row - mean) * out).sum() * (s / width);
  out = s * (out - mean_gradient - (row - mean) * (s * along));
}

void mix(const float* x, const float* a, const float* first, const float* second, float* y, int64_t n) {
  Row(y, n) = ConstRow(first, n) * ConstRow(x, n) + ConstRow(second, n) * ConstRow(a, n);
}

void multiply(const float* x, const float* a, float* y, int64_t n) { Row(y, n) = ConstRow(x, n) * ConstRow(a, n); }

// The rotation's inverse is its transpose.
void rotate(float* x, const float* cosine, const float* sine, int64_t half, float turn) {
  for (int64_t k = 0; k < half; ++k) {
    const float first = x[k], second = x[half + k], s = turn * sine[k];
    x[k] = first * cosine[k] + second * s;
    x[half + k] = second * cosine[k] - first * s;
  }
}

void smear(const float* x, const float* before, const float* gate, float* out, int64_t n) {
  ConstRow g(gate, n);
  Row(out, n) = (1.0f - g) * ConstRow(x, n) + g * ConstRow(before, n);
}

void gated_skip(const float* skip, const float* weight, const float* gate, float* x, int64_t n) {
  ConstRow g(gate, n);
  Row row(x, n);
  row = (1.0f - g) * (ConstRow(weight, n) * ConstRow(skip, n)) + g * row;
}

void activate(Activation activation, float* z, int64_t n) {
  Row row(z, n);
  switch (activation) {
    case Activation::kLeakyReluSquared: row = row.max(0.5f * row).square(); break;
    case Activation::kGeluTanh:
      // As z / (1 + exp(-2u)), which is z / 2 * (1 + tanh u) without the cancellation at large negative u.
      row = row / (1.0f + (-kTwoSqrtTwoOverPi * (row + 0.044715f * row.cube())).exp());
      break;
    case Activation::kSilu: row = row / (1.0f + (-row).exp()); break;
  }
}

void activation_backward(Activation activation, const float* x, const float* dy, float* dx, int64_t n) {
  ConstRow z(x, n), gradient(dy, n);
  Row out(dx, n);
  switch (activation) {
    case Activation::kLeakyReluSquared:  // max(z, z/2)^2
      out = gradient * ((2.0f * z).max(0.0f) + (0.5f * z).min(0.0f));
      break;
    case Activation::kGeluTanh:  // z sigma(t(z)), as above
      for (int64_t i = 0; i < n; ++i) {
        const float square = x[i] * x[i];
        const float sigma = 1.0f / (1.0f + __builtin_expf(-kTwoSqrtTwoOverPi * (x[i] + 0.044715f * square * x[i])));
        const float slope = kTwoSqrtTwoOverPi * (1.0f + 3.0f * 0.044715f * square);
        dx[i] = dy[i] * (sigma + x[i] * sigma * (1.0f - sigma) * slope);
      }
      break;
    case Activation::kSilu:  // z sigma(z)
      for (int64_t i = 0; i < n; ++i) {
        const float sigma = 1.0f / (1.0f + __builtin_expf(-x[i]));
        dx[i] = dy[i] * (sigma + x[i] * sigma * (1.0f - sigma));
      }
      break;
  }
}

void softcap(float cap, float* x, int64_t n) {
  Row row(x, n);
  row = cap * (row * (1.0f / cap)).tanh();
}

// ln(sum exp(row)).
template <typename AnyRow>
float log_sum_exp(const AnyRow& row) {
  const float peak = row.maxCoeff();
  return peak + __builtin_logf((row - peak).exp().sum());
}

void log_softmax(float* x, int64_t n) { Row(x, n) -= log_sum_exp(Row(x, n)); }

// With l = cap * tanh(z / cap): dz = (softmax(l) - onehot(target)) (1 - (l / cap)^2). A cap of 0: l = z.
float nll_backward(float* logits, int64_t target, float cap, int64_t n) {
  Row row(logits, n);
  const float peak = row.maxCoeff(), log_sum = __builtin_logf((row - peak).exp().sum()), target_logit = logits[target];
  // 1 - p of the target itself, as a difference of numbers near 1, loses nothing that float32 had of p.
  const float target_gradient = __builtin_expf(target_logit - peak - log_sum) - 1.0f;
  const float inverse_cap = cap > 0 ? 1.0f / cap : 0.0f, target_tanh = cap > 0 ? target_logit / cap : 0.0f;
  row = (row - (peak + log_sum)).exp() * (1.0f - (row * inverse_cap).square());
  logits[target] = target_gradient * (1.0f - target_tanh * target_tanh);
  return peak + log_sum - target_logit;
}

// With q = softmax(teacher), p = softmax(l): dz = (p - q) (1 - (l / cap)^2). Returns sum q (log q - log p).
float divergence_backward(float* logits, const float* teacher, float cap, int64_t n) {
  Row row(logits, n);
  ConstRow goal(teacher, n);
  const float log_sum = log_sum_exp(row), goal_log_sum = log_sum_exp(goal);
  float divergence = ((goal - goal_log_sum).exp() * ((goal - goal_log_sum) - (row - log_sum))).sum();
  const float inverse_cap = cap > 0 ? 1.0f / cap : 0.0f;
  row = ((row - log_sum).exp() - (goal - goal_log_sum).exp()) * (1.0f - (row * inverse_cap).square());
  return divergence;
}

// Softmax numerators of one row of scores times `scale`, in place, over its `valid` keys; zero beyond. Returns 1 /
// their sum.
float exponentiate(float* scores, int64_t valid, int64_t keys, float scale) {
  Row row(scores, valid);
  float peak = row.maxCoeff();
  row = ((row - peak) * scale).exp();
  for (int64_t j = valid; j < keys; ++j) scores[j] = 0.0f;
  return 1.0f / row.sum();
}

// y -= (y . vhat) vhat with vhat = v / max(|v|, 1e-12), the own position's value.
void remove_own_value(const float* v, float* y, int64_t d) {
  ConstRow value(v, d);
  Row out(y, d);
  float norm = __builtin_sqrtf(value.square().sum());
  float inverse = 1.0f / (norm > kMinValueNorm ? norm : kMinValueNorm);
  float along = (out * value).sum() * inverse;
  out -= (along * inverse) * value;
}

// Through y -= (y . vhat) vhat, vhat = v / max(|v|, 1e-12), at the own position's value v:
//   dy  = g - (g . vhat) vhat                                    written over `dy`, which holds g
//   dv += (I - vhat vhat^T) / |v|  of  -((y . vhat) g + (g . vhat) y)
// (I is without vhat vhat^T where |v| was replaced).
void remove_own_value_backward(const float* v, const float* y, float* dy, float* dv, int64_t d) {
  ConstRow value(v, d), out(y, d);
  Row g(dy, d);
  float norm = __builtin_sqrtf(value.square().sum());
  bool is_replaced = !(norm > kMinValueNorm);
  float inverse = 1.0f / (is_replaced ? kMinValueNorm : norm);
  float y_along = (out * value).sum() * inverse, g_along = (g * value).sum() * inverse;
  // vhat's component of the gradient of vhat.
  float along = is_replaced ? 0.0f : -2.0f * y_along * g_along;
  Row(dv, d) -= inverse * (y_along * g + g_along * out + (along * inverse) * value);
  g -= (g_along * inverse) * value;
}

void round_row(const RowRounding& r, float* x, int64_t n) {
  if (r.rounding) r.apply(*r.rounding, x, n);
}

ConstMap<float> head_rows(const float* first, int64_t rows, int64_t stride, const AttentionTile& t) {
  return {first, rows, t.head_dim, Eigen::OuterStride<>(stride)};
}
MutableMap<float> head_rows(float* first, int64_t rows, int64_t stride, const AttentionTile& t) {
  return {first, rows, t.head_dim, Eigen::OuterStride<>(stride)};
}
ConstMap<float> queries_of(const AttentionTile& t) { return head_rows(t.q, t.rows, t.q_stride, t); }
ConstMap<float> keys_of(const AttentionTile& t, int64_t keys) { return head_rows(t.k, keys, t.k_stride, t); }
ConstMap<float> values_of(const AttentionTile& t, int64_t keys) { return head_rows(t.v, keys, t.v_stride, t); }

int64_t first_key(const AttentionTile& t, int64_t row) { return first_seen(t.first_position + row, t.window); }

// Few queries against many keys: matrix-vector products stream keys and values once, without packing them. Cached
// generation is bound by memory.
void attend_one_row(AttentionTile t, int64_t row, float* out, const AttentionRoundings& roundings) {
  const int64_t first = first_key(t, row), keys = t.first_position + row + 1 - first;
  t.k += first * t.k_stride;
  t.v += first * t.v_stride;
  Eigen::Map<const Eigen::VectorXf> q(t.q + row * t.q_stride, t.head_dim);
  Eigen::Map<Eigen::VectorXf> scores(t.scratch, keys), y(out, t.head_dim);
  scores.noalias() = keys_of(t, keys) * q;
  round_row(roundings.scores, t.scratch, keys);
  float inverse_sum = exponentiate(t.scratch, keys, keys, t.scale);
  if (roundings.weights.rounding) {
    scores *= inverse_sum;
    inverse_sum = 1;
    round_row(roundings.weights, t.scratch, keys);
  }
  y.noalias() = values_of(t, keys).transpose() * scores;
  y *= inverse_sum;
}

// Attention's weights (rows, keys) in the tile's scratch, zero where a row does not see the key.
MutableMap<float> attention_weights(const AttentionTile& t, const AttentionRoundings& roundings) {
  const int64_t keys = t.first_position + t.rows;
  MutableMap<float> weights(t.scratch, t.rows, keys, Eigen::OuterStride<>(keys));
  weights.noalias() = queries_of(t) * keys_of(t, keys).transpose();
  for (int64_t i = 0; i < t.rows; ++i) {
    float* row = t.scratch + i * keys;
    const int64_t first = first_key(t, i), valid = t.first_position + i + 1 - first;
    for (int64_t j = 0; j < first; ++j) row[j] = 0.0f;
    row += first;
    round_row(roundings.scores, row, valid);
    const float inverse_sum = exponentiate(row, valid, keys - first, t.scale);
    Row(row, valid) *= inverse_sum;
    round_row(roundings.weights, row, valid);
  }
  return weights;
}

constexpr int64_t kFewRows = 4;

void attention(const AttentionTile& t, float* y, int64_t y_stride, const AttentionRoundings& roundings) {
  if (t.rows <= kFewRows) {
    for (int64_t i = 0; i < t.rows; ++i) attend_one_row(t, i, y + i * y_stride, roundings);
  } else {
    head_rows(y, t.rows, y_stride, t).noalias() =
        attention_weights(t, roundings) * values_of(t, t.first_position + t.rows);
  }
  if (!t.exclusive) return;
  for (int64_t i = 0; i < t.rows; ++i)
    remove_own_value(t.v + (t.first_position + i) * t.v_stride, y + i * y_stride, t.head_dim);
}

// With P = softmax(scale q k^T), y = P v: dv = P^T dy; dP = dy v^T; dS = scale P (dP - rowsum(P dP));
// dq = dS k; dk = dS^T q. Scores, probabilities and outputs are computed again: a window's would fill gigabytes.
void attention_backward(const AttentionTile& t, const AttentionGradients& to) {
  const int64_t keys = t.first_position + t.rows;
  const MutableMap<float> probabilities = attention_weights(t, {});
  float* gradient_data = t.scratch + t.rows * keys;
  float* y_data = gradient_data + t.rows * keys;
  float* dy_data = y_data + t.rows * t.head_dim;
  MutableMap<float> gradients(gradient_data, t.rows, keys, Eigen::OuterStride<>(keys));
  MutableMap<float> dy = head_rows(dy_data, t.rows, t.head_dim, t);
  dy = head_rows(to.dy, t.rows, to.dy_stride, t);
  if (t.exclusive) {
    head_rows(y_data, t.rows, t.head_dim, t).noalias() = probabilities * values_of(t, keys);
    for (int64_t i = 0; i < t.rows; ++i) {
      const int64_t position = t.first_position + i;
      remove_own_value_backward(t.v + position * t.v_stride, y_data + i * t.head_dim, dy_data + i * t.head_dim,
                                to.dv + position * to.dkv_stride, t.head_dim);
    }
  }
  head_rows(to.dv, keys, to.dkv_stride, t).noalias() += probabilities.transpose() * dy;
  gradients.noalias() = dy * values_of(t, keys).transpose();
  for (int64_t i = 0; i < t.rows; ++i) {
    const int64_t first = first_key(t, i), valid = t.first_position + i + 1;
    float* row = gradient_data + i * keys;
    ConstRow p(t.scratch + i * keys + first, valid - first);
    Row g(row + first, valid - first);
    const float mean = (p * g).sum();
    g = p * (g - mean) * t.scale;
    for (int64_t j = 0; j < first; ++j) row[j] = 0.0f;
    for (int64_t j = valid; j < keys; ++j) row[j] = 0.0f;
  }
  head_rows(to.dq, t.rows, to.dq_stride, t).noalias() = gradients * keys_of(t, keys);
  head_rows(to.dk, keys, to.dkv_stride, t).noalias() += gradients.transpose() * queries_of(t);
}

constexpr CpuKernels kKernels = {THIMBLE_STRING(THIMBLE_ISA),
                                 gemm_nt,
                                 gemm_nn,
                                 gemm_tn_add,
                                 gemm_nn_sub_f64,
                                 add_scaled,
                                 add,
                                 rms_norm,
                                 layer_norm,
                                 smear,
                                 gated_skip,
                                 mix,
                                 multiply,
                                 rotate,
                                 activate,
                                 softcap,
                                 log_softmax,
                                 attention,
                                 rms_norm_backward,
                                 layer_norm_backward,
                                 activation_backward,
                                 attention_backward,
                                 nll_backward,
                                 divergence_backward};

}  // namespace

const CpuKernels& THIMBLE_JOIN(cpu_kernels, THIMBLE_ISA)() { return kKernels; }

}  // namespace thimble
