// cpu_kernels.cpp: the kernels of cpu_kernels.h, compiled once per instruction set with THIMBLE_ISA set to its name.
// Everything here has internal linkage (cpu_kernel_maps.h says why).
#include "runtime/cpu/cpu_kernels.h"

#include "runtime/cpu/cpu_kernel_maps.h"

#define THIMBLE_STRING_(a) #a
#define THIMBLE_STRING(a) THIMBLE_STRING_(a)

namespace thimble {
namespace {

void gemm_nt(ConstMatrixView a, ConstMatrixView b, MatrixView c) { map(c).noalias() = map(a) * map(b).transpose(); }
void gemm_tn_add(ConstMatrixView a, ConstMatrixView b, MatrixView c) {
  map(c).noalias() += map(a).transpose() * map(b);
}
void gemm_nn_sub_f64(ConstMatrixViewF64 a, ConstMatrixViewF64 b, MatrixViewF64 c) {
  map(c).noalias() -= map(a) * map(b);
}

void add_scaled(const float* a, float scale, float* x, int64_t n) { Row(x, n) += scale * ConstRow(a, n); }

void rms_norm(const float* x, const float* gain, float factor, float epsilon, float* y, int64_t n) {
  Row(y, n) = ConstRow(x, n) * (inverse_rms(x, epsilon, n) * factor);
  if (gain) Row(y, n) *= ConstRow(gain, n);
}

void mix(const float* x, const float* a, const float* first, const float* second, float* y, int64_t n) {
  Row(y, n) = ConstRow(first, n) * ConstRow(x, n) + ConstRow(second, n) * ConstRow(a, n);
}

void multiply(const float* a, float* x, int64_t n) { Row(x, n) *= ConstRow(a, n); }

void rotate(float* x, const float* cosine, const float* sine, int64_t half) {
  for (int64_t k = 0; k < half; ++k) {
    float first = x[k], second = x[half + k];
    x[k] = first * cosine[k] + second * sine[k];
    x[half + k] = second * cosine[k] - first * sine[k];
  }
}

void smear(const float* x, const float* before, const float* gate, float* out, int64_t n) {
  ConstRow g(gate, n);
  Row(out, n) = (1.0f - g) * ConstRow(x, n) + g * ConstRow(before, n);
}

void add_skip(const float* skip, const float* weight, const float* gate, float* x, int64_t n) {
  Row row(x, n);
  if (gate == nullptr) {
    row += ConstRow(weight, n) * ConstRow(skip, n);
  } else {
    ConstRow g(gate, n);
    row = (1.0f - g) * (ConstRow(weight, n) * ConstRow(skip, n)) + g * row;
  }
}

void add(const float* a, const float* scale, float* x, int64_t n) { Row(x, n) += ConstRow(scale, n) * ConstRow(a, n); }

void leaky_relu_squared(float* z, int64_t n) {
  Row row(z, n);
  row = row.max(0.5f * row).square();
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

// As z / (1 + exp(-2u)), which is z / 2 * (1 + tanh u) without the cancellation at large negative u.
void gelu(float* z, int64_t n) {
  constexpr float kTwoSqrtTwoOverPi = 1.59576912f;
  Row row(z, n);
  row = row / (1.0f + (-kTwoSqrtTwoOverPi * (row + 0.044715f * row.cube())).exp());
}

void silu(float* z, int64_t n) {
  Row row(z, n);
  row = row / (1.0f + (-row).exp());
}

void softcap(float cap, float* x, int64_t n) {
  Row row(x, n);
  row = cap * (row * (1.0f / cap)).tanh();
}

void log_softmax(float* x, int64_t n) {
  Row row(x, n);
  float peak = row.maxCoeff();
  float log_sum = __builtin_logf((row - peak).exp().sum());
  row -= peak + log_sum;
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

void round_row(const RowRounding& r, float* x, int64_t n) {
  if (r.rounding) r.apply(*r.rounding, x, n);
}

// Few queries against many keys: matrix-vector products stream keys and values once, without packing them. Cached
// generation is bound by memory.
void attend_one_row(const AttentionTile& t, int64_t row, int64_t keys) {
  ConstMap<float> k(t.k, keys, t.head_dim, Eigen::OuterStride<>(t.k_stride));
  ConstMap<float> v(t.v, keys, t.head_dim, Eigen::OuterStride<>(t.v_stride));
  Eigen::Map<const Eigen::VectorXf> q(t.q + row * t.q_stride, t.head_dim);
  Eigen::Map<Eigen::VectorXf> scores(t.scores, keys), y(t.y + row * t.y_stride, t.head_dim);
  scores.noalias() = k * q;
  round_row(t.score_rounding, t.scores, keys);
  float inverse_sum = exponentiate(t.scores, keys, keys, t.scale);
  if (t.weight_rounding.rounding) {
    scores *= inverse_sum;
    inverse_sum = 1;
    round_row(t.weight_rounding, t.scores, keys);
  }
  y.noalias() = v.transpose() * scores;
  y *= inverse_sum;
}

constexpr int64_t kFewRows = 4;

void attention(const AttentionTile& t) {
  int64_t keys = t.first_position + t.rows;
  if (t.rows <= kFewRows) {
    for (int64_t i = 0; i < t.rows; ++i) attend_one_row(t, i, t.first_position + i + 1);
  } else {
    ConstMap<float> q(t.q, t.rows, t.head_dim, Eigen::OuterStride<>(t.q_stride));
    ConstMap<float> k(t.k, keys, t.head_dim, Eigen::OuterStride<>(t.k_stride));
    ConstMap<float> v(t.v, keys, t.head_dim, Eigen::OuterStride<>(t.v_stride));
    MutableMap<float> scores(t.scores, t.rows, keys, Eigen::OuterStride<>(keys));
    MutableMap<float> y(t.y, t.rows, t.head_dim, Eigen::OuterStride<>(t.y_stride));
    scores.noalias() = q * k.transpose();
    for (int64_t i = 0; i < t.rows; ++i) {
      float* row = t.scores + i * keys;
      int64_t valid = t.first_position + i + 1;
      round_row(t.score_rounding, row, valid);
      float inverse_sum = exponentiate(row, valid, keys, t.scale);
      Row(row, valid) *= inverse_sum;
      round_row(t.weight_rounding, row, valid);
    }
    y.noalias() = scores * v;
  }
  if (!t.exclusive) return;
  for (int64_t i = 0; i < t.rows; ++i)
    remove_own_value(t.v + (t.first_position + i) * t.v_stride, t.y + i * t.y_stride, t.head_dim);
}

constexpr CpuKernels kKernels = {THIMBLE_STRING(THIMBLE_ISA),
                                 gemm_nt,
                                 gemm_tn_add,
                                 gemm_nn_sub_f64,
                                 add_scaled,
                                 rms_norm,
                                 smear,
                                 add_skip,
                                 mix,
                                 multiply,
                                 rotate,
                                 add,
                                 layer_norm,
                                 leaky_relu_squared,
                                 gelu,
                                 silu,
                                 softcap,
                                 log_softmax,
                                 attention};

}  // namespace

const CpuKernels& THIMBLE_JOIN(cpu_kernels, THIMBLE_ISA)() { return kKernels; }

}  // namespace thimble
