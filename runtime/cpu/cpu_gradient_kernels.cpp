// cpu_gradient_kernels.cpp: the kernels of cpu_gradient_kernels.h, compiled once per instruction set (kernel_rows.h).
#include "runtime/cpu/cpu_gradient_kernels.h"

#include "runtime/cpu/kernel_rows.h"
#include "runtime/cpu/packed_products.h"

namespace thimble {
namespace {

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
void gemm_nn_sub_f64(ConstMatrixViewF64 a, ConstMatrixViewF64 b, MatrixViewF64 c) {
  map(c).noalias() -= map(a) * map(b);
}

void pack_transposed(const StoredMatrixView& b, const PackedBlocks& blocks, int64_t i, int64_t k, float* packed) {
  pack_block<true>(
      b.block_rows(blocks.first_column(k), blocks.columns_of(k)).block_cols(blocks.first_row(i), blocks.rows_of(i)),
      packed + blocks.offset(i, k));
}

void multiply_packed_tn(ConstMatrixView a, const PackedBlocks& blocks, const float* packed, int64_t first, int64_t last,
                        MatrixView c) {
  add_packed_product<Eigen::RowMajor>(a.data, a.stride, blocks, packed, first, last, c, true);
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

// The sum of sum(first, count) over pieces of n columns, in float64: float32 loses, of the sum of a large vocabulary's
// hundreds of thousands, what is below its last bit.
template <typename Sum>
float sum_of_pieces(int64_t n, const Sum& sum) {
  constexpr int64_t kColumns = 4096;
  double all = 0;
  for (int64_t first = 0; first < n; first += kColumns) all += sum(first, n - first < kColumns ? n - first : kColumns);
  return static_cast<float>(all);
}

template <typename AnyRow>
float sum_of_exp(const AnyRow& row, float peak) {
  return sum_of_pieces(row.size(),
                       [&](int64_t first, int64_t count) { return (row.segment(first, count) - peak).exp().sum(); });
}

// ln(sum exp(row)).
template <typename AnyRow>
float log_sum_exp(const AnyRow& row) {
  const float peak = row.maxCoeff();
  return peak + __builtin_logf(sum_of_exp(row, peak));
}

void log_softmax(float* x, int64_t n) { Row(x, n) -= log_sum_exp(Row(x, n)); }

// With l = cap * tanh(z / cap): dz = (softmax(l) - onehot(target)) (1 - (l / cap)^2). A cap of 0: l = z.
float nll_backward(float* logits, int64_t target, float cap, int64_t n) {
  Row row(logits, n);
  const float peak = row.maxCoeff(), log_sum = __builtin_logf(sum_of_exp(row, peak)), target_logit = logits[target];
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
  const float divergence = sum_of_pieces(n, [&](int64_t first, int64_t count) {
    const auto p = row.segment(first, count) - log_sum;
    const auto q = goal.segment(first, count) - goal_log_sum;
    return (q.exp() * (q - p)).sum();
  });
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
void attention_backward(const AttentionTile& t, const AttentionGradients& to) {
  const int64_t keys = t.first_position + t.rows;
  const MatrixView probabilities = attention_weights(t, {});
  const MatrixView gradients(t.scratch + t.rows * keys, t.rows, keys);
  const MatrixView y(gradients.data + t.rows * keys, t.rows, t.head_dim);
  const MatrixView dy(y.data + t.rows * t.head_dim, t.rows, t.head_dim);
  map(dy) = map(ConstMatrixView(to.dy, t.rows, t.head_dim, to.dy_stride));
  if (t.exclusive) {
    tile_nn(t, probabilities, t.v, y);
    for (int64_t i = 0; i < t.rows; ++i) {
      const int64_t position = t.first_position + i;
      remove_own_value_backward(t.v.float32().row(position), y.row(i), dy.row(i), to.dv + position * to.dkv_stride,
                                t.head_dim);
    }
  }
  tile_add_tn(t, probabilities, dy, {to.dv, keys, t.head_dim, to.dkv_stride});
  tile_nt(t, dy, t.v, gradients);
  for (int64_t i = 0; i < t.rows; ++i) {
    const int64_t first = first_key(t, i), valid = t.first_position + i + 1;
    float* row = gradients.row(i);
    ConstRow p(t.scratch + i * keys + first, valid - first);
    Row g(row + first, valid - first);
    const float mean = (p * g).sum();
    g = p * (g - mean) * t.scale;
    for (int64_t j = 0; j < first; ++j) row[j] = 0.0f;
    for (int64_t j = valid; j < keys; ++j) row[j] = 0.0f;
  }
  tile_nn(t, gradients, t.k, {to.dq, t.rows, t.head_dim, to.dq_stride});
  tile_add_tn(t, gradients, queries_of(t), {to.dk, keys, t.head_dim, to.dkv_stride});
}

constexpr CpuGradientKernels kGradientKernels = {
    gemm_nn,           gemm_nn_sub_f64,     pack_transposed,     multiply_packed_tn,
    rms_norm_backward, layer_norm_backward, activation_backward, attention_backward,
    log_softmax,       nll_backward,        divergence_backward};

}  // namespace

const CpuGradientKernels& THIMBLE_JOIN(cpu_gradient_kernels, THIMBLE_ISA)() { return kGradientKernels; }

}  // namespace thimble
