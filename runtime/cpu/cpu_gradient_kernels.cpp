// cpu_gradient_kernels.cpp: the kernels of cpu_gradient_kernels.h, compiled once per instruction set with THIMBLE_ISA
// set to its name. Everything here has internal linkage (cpu_kernel_maps.h says why).
#include "runtime/cpu/cpu_gradient_kernels.h"

#include "runtime/cpu/cpu_kernel_maps.h"

namespace thimble {
namespace {

void gemm_nn(ConstMatrixView a, ConstMatrixView b, MatrixView c) { map(c).noalias() = map(a) * map(b); }
void gemm_nn_add(ConstMatrixView a, ConstMatrixView b, MatrixView c) { map(c).noalias() += map(a) * map(b); }

void scale(const float* x, const float* factor, float* y, int64_t n) {
  Row(y, n) = ConstRow(x, n) * ConstRow(factor, n);
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

void activation_backward(Activation activation, const float* x, const float* dy, float* dx, int64_t n) {
  ConstRow z(x, n), gradient(dy, n);
  Row out(dx, n);
  switch (activation) {
    case Activation::kLeakyReluSquared:  // max(z, z/2)^2
      out = gradient * ((2.0f * z).max(0.0f) + (0.5f * z).min(0.0f));
      break;
    case Activation::kGeluTanh: {  // z sigma(t(z)), as cpu_kernels.cpp has it
      constexpr float kTwoSqrtTwoOverPi = 1.59576912f;
      for (int64_t i = 0; i < n; ++i) {
        const float square = x[i] * x[i];
        const float sigma = 1.0f / (1.0f + __builtin_expf(-kTwoSqrtTwoOverPi * (x[i] + 0.044715f * square * x[i])));
        const float slope = kTwoSqrtTwoOverPi * (1.0f + 3.0f * 0.044715f * square);
        dx[i] = dy[i] * (sigma + x[i] * sigma * (1.0f - sigma) * slope);
      }
      break;
    }
    case Activation::kSilu:  // z sigma(z)
      for (int64_t i = 0; i < n; ++i) {
        const float sigma = 1.0f / (1.0f + __builtin_expf(-x[i]));
        dx[i] = dy[i] * (sigma + x[i] * sigma * (1.0f - sigma));
      }
      break;
  }
}

// The rotation's inverse is its transpose.
void rotate_back(float* dy, const float* cosine, const float* sine, int64_t half) {
  for (int64_t k = 0; k < half; ++k) {
    float first = dy[k], second = dy[half + k];
    dy[k] = first * cosine[k] - second * sine[k];
    dy[half + k] = first * sine[k] + second * cosine[k];
  }
}

// With l = cap * tanh(z / cap): dz = (softmax(l) - onehot(target)) (1 - (l / cap)^2). A cap of 0: l = z.
float nll_backward(float* logits, int64_t target, float cap, int64_t n) {
  Row row(logits, n);
  float peak = row.maxCoeff();
  float log_sum = __builtin_logf((row - peak).exp().sum());
  float target_logit = logits[target];
  // 1 - p of the target itself, as a difference of numbers near 1, loses nothing that float32 had of p.
  float target_gradient = __builtin_expf(target_logit - peak - log_sum) - 1.0f;
  if (cap == 0) {
    row = (row - (peak + log_sum)).exp();
    logits[target] = target_gradient;
    return peak + log_sum - target_logit;
  }
  float target_slope = 1.0f - (target_logit / cap) * (target_logit / cap);
  row = (row - (peak + log_sum)).exp() * (1.0f - (row * (1.0f / cap)).square());
  logits[target] = target_gradient * target_slope;
  return peak + log_sum - target_logit;
}

// With q = softmax(teacher), p = softmax(l): dz = (p - q) (1 - (l / cap)^2). Returns sum q (log q - log p).
float divergence_backward(float* logits, const float* teacher, float cap, int64_t n) {
  Row row(logits, n);
  ConstRow goal(teacher, n);
  float peak = row.maxCoeff(), goal_peak = goal.maxCoeff();
  float log_sum = peak + __builtin_logf((row - peak).exp().sum());
  float goal_log_sum = goal_peak + __builtin_logf((goal - goal_peak).exp().sum());
  float divergence = ((goal - goal_log_sum).exp() * ((goal - goal_log_sum) - (row - log_sum))).sum();
  const float inverse_cap = cap > 0 ? 1.0f / cap : 0.0f;
  row = ((row - log_sum).exp() - (goal - goal_log_sum).exp()) * (1.0f - (row * inverse_cap).square());
  return divergence;
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

// With P = softmax(scale q k^T), y = P v: dv = P^T dy; dP = dy v^T; dS = scale P (dP - rowsum(P dP));
// dq = dS k; dk = dS^T q. Scores, probabilities and outputs are computed again: a window's would fill gigabytes.
void attention_backward(const AttentionGradientTile& t) {
  int64_t keys = t.first_position + t.rows;
  float* score_data = t.scratch;
  float* gradient_data = score_data + t.rows * keys;
  float* y_data = gradient_data + t.rows * keys;
  float* dy_data = y_data + t.rows * t.head_dim;
  ConstMap<float> q(t.q, t.rows, t.head_dim, Eigen::OuterStride<>(t.q_stride));
  ConstMap<float> k(t.k, keys, t.head_dim, Eigen::OuterStride<>(t.k_stride));
  ConstMap<float> v(t.v, keys, t.head_dim, Eigen::OuterStride<>(t.v_stride));
  MutableMap<float> dk(t.dk, keys, t.head_dim, Eigen::OuterStride<>(t.dkv_stride));
  MutableMap<float> dv(t.dv, keys, t.head_dim, Eigen::OuterStride<>(t.dkv_stride));
  MutableMap<float> dq(t.dq, t.rows, t.head_dim, Eigen::OuterStride<>(t.dq_stride));
  MutableMap<float> probabilities(score_data, t.rows, keys, Eigen::OuterStride<>(keys));
  MutableMap<float> gradients(gradient_data, t.rows, keys, Eigen::OuterStride<>(keys));
  MutableMap<float> y(y_data, t.rows, t.head_dim, Eigen::OuterStride<>(t.head_dim));
  MutableMap<float> dy(dy_data, t.rows, t.head_dim, Eigen::OuterStride<>(t.head_dim));

  probabilities.noalias() = q * k.transpose();
  for (int64_t i = 0; i < t.rows; ++i) {
    int64_t valid = t.first_position + i + 1;
    float inverse_sum = exponentiate(score_data + i * keys, valid, keys, t.scale);
    Row(score_data + i * keys, valid) *= inverse_sum;
  }
  dy = ConstMap<float>(t.dy, t.rows, t.head_dim, Eigen::OuterStride<>(t.dy_stride));
  if (t.exclusive) {
    y.noalias() = probabilities * v;
    for (int64_t i = 0; i < t.rows; ++i) {
      int64_t position = t.first_position + i;
      remove_own_value_backward(t.v + position * t.v_stride, y_data + i * t.head_dim, dy_data + i * t.head_dim,
                                t.dv + position * t.dkv_stride, t.head_dim);
    }
  }
  dv.noalias() += probabilities.transpose() * dy;
  gradients.noalias() = dy * v.transpose();
  for (int64_t i = 0; i < t.rows; ++i) {
    int64_t valid = t.first_position + i + 1;
    ConstRow p(score_data + i * keys, valid);
    Row g(gradient_data + i * keys, valid);
    float mean = (p * g).sum();
    g = p * (g - mean) * t.scale;
    for (int64_t j = valid; j < keys; ++j) gradient_data[i * keys + j] = 0.0f;
  }
  dq.noalias() = gradients * k;
  dk.noalias() += gradients.transpose() * q;
}

constexpr CpuGradientKernels kKernels = {gemm_nn,           gemm_nn_add,         scale,
                                         rms_norm_backward, layer_norm_backward, activation_backward,
                                         rotate_back,       nll_backward,        divergence_backward,
                                         attention_backward};

}  // namespace

const CpuGradientKernels& THIMBLE_JOIN(cpu_gradient_kernels, THIMBLE_ISA)() { return kKernels; }

}  // namespace thimble
