// gradient_ops.cpp: cuts the operations of gradient_ops.h into chunks of rows and query tiles for the kernels.
#include "runtime/cpu/gradient_ops.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/parallel.h"
#include "runtime/cpu/cpu_gradient_kernels.h"
#include "runtime/cpu/tile_products.h"

namespace thimble {
namespace {

constexpr int64_t kGradientTile = 128;
// A head's query tiles are dealt to so many parts, each with sums of dk and dv of its own: enough tasks for a large
// machine, few enough sums to add up. Part of the result's definition: the sums round.
constexpr int64_t kAttentionParts = 4;
constexpr int64_t kColumnsPerTask = 64;

// The sums of one part over all its query tiles.
struct AttentionPart {
  Matrix dk, dv;  // (P, H*d): of each query head apart
};

// sum[p] = sum over parts, then over the query heads of each group.
void add_up_parts(const std::vector<AttentionPart>& parts, const Matrix AttentionPart::*member,
                  const op::Attention& shape, MatrixView sum) {
  int64_t heads_per_group = shape.heads / shape.kv_heads, d = shape.head_dim;
  for_each_row(sum.rows, sum.cols, [&](int64_t p) {
    std::fill(sum.row(p), sum.row(p) + sum.cols, 0.0f);
    for (const AttentionPart& part : parts) {
      const float* row = (part.*member).row(p);
      for (int64_t head = 0; head < shape.heads; ++head) {
        float* out = sum.row(p) + head / heads_per_group * d;
        for (int64_t i = 0; i < d; ++i) out[i] += row[head * d + i];
      }
    }
  });
}

// In float64, first row first.
template <typename LossOfRow>
double sum_of_rows(ConstMatrixView logits, const LossOfRow& loss_of_row) {
  std::vector<float> losses(static_cast<size_t>(logits.rows));
  for_each_row(logits.rows, logits.cols, [&](int64_t p) { losses[static_cast<size_t>(p)] = loss_of_row(p); });
  double sum = 0;
  for (float loss : losses) sum += static_cast<double>(loss);
  return sum;
}

}  // namespace

uint64_t attention_backward_bytes(const op::Attention& shape, int64_t positions) {
  const int64_t parts = std::min(kAttentionParts, (positions + kGradientTile - 1) / kGradientTile);
  return static_cast<uint64_t>(2 * parts * positions * shape.heads * shape.head_dim) * sizeof(float);
}

void attention_backward(ConstMatrixView q, ConstMatrixView k, ConstMatrixView v, const op::Attention& shape,
                        ConstMatrixView dy, MatrixView dq, MatrixView dk, MatrixView dv, ProductArithmetic arithmetic) {
  const TileProducts* products = tile_products(arithmetic);
  int64_t tiles = (q.rows + kGradientTile - 1) / kGradientTile, d = shape.head_dim;
  std::vector<AttentionPart> parts;
  for (int64_t i = 0; i < std::min(kAttentionParts, tiles); ++i)
    parts.push_back({Matrix(q.rows, q.cols), Matrix(q.rows, q.cols)});
  auto part_count = static_cast<int64_t>(parts.size());
  parallel_for(part_count * shape.heads, [&](int64_t task) {
    int64_t head = task % shape.heads, part = task / shape.heads;
    int64_t q_col = head * d, kv_col = head / (shape.heads / shape.kv_heads) * d;
    AttentionPart& sums = parts[static_cast<size_t>(part)];
    thread_local AlignedVector<float> scratch;
    // Dealt in turn, since late tiles see the most keys.
    for (int64_t tile = part; tile < tiles; tile += part_count) {
      int64_t first = tile * kGradientTile, rows = std::min(kGradientTile, q.rows - first);
      // Keys that no query of the tile sees are left out.
      const int64_t first_key = first_seen(first, shape.window), first_position = first - first_key;
      auto seen = [&](const StoredMatrixView& all) {
        return all.block_rows(first_key, first_position + rows).block_cols(kv_col, d);
      };
      auto needed = static_cast<size_t>(attention_gradient_scratch(rows, first_position, d));
      if (scratch.size() < needed) scratch.resize(needed);
      cpu_gradient_kernels().attention_backward(
          {q.row(first) + q_col, q.stride, seen(k), seen(v), rows, first_position, d, shape.window, shape.scale,
           shape.exclusive, scratch.data(), 1, products},
          {dy.row(first) + q_col, dq.row(first) + q_col, sums.dk.row(first_key) + q_col, sums.dv.row(first_key) + q_col,
           dy.stride, dq.stride, sums.dk.cols()});
    }
  });
  add_up_parts(parts, &AttentionPart::dk, shape, dk);
  add_up_parts(parts, &AttentionPart::dv, shape, dv);
}

double nll_backward(MatrixView logits, std::span<const Token> targets, float cap) {
  return sum_of_rows(logits, [&](int64_t p) {
    return cpu_gradient_kernels().nll_backward(logits.row(p), targets[static_cast<size_t>(p)], cap, logits.cols);
  });
}

double divergence_backward(MatrixView logits, ConstMatrixView teacher, float cap) {
  assert(logits.rows == teacher.rows && logits.cols == teacher.cols);
  return sum_of_rows(logits, [&](int64_t p) {
    return cpu_gradient_kernels().divergence_backward(logits.row(p), teacher.row(p), cap, logits.cols);
  });
}

void mix_data(std::span<const Token> next, double share, MatrixView logits) {
  for_each_row(logits.rows, logits.cols, [&](int64_t p) {
    float* row = logits.row(p);
    cpu_gradient_kernels().log_softmax(row, logits.cols);
    const auto shift = static_cast<float>(std::log(1 - share));
    for (int64_t c = 0; c < logits.cols; ++c) row[c] += shift;
    float& follows = row[next[static_cast<size_t>(p)]];
    follows = static_cast<float>(std::log(std::exp(double{follows}) + share));
  });
}

void add_temperature_slopes(std::span<const Token> next, double temperature, ConstMatrixView logits,
                            TemperatureSlope& sums) {
  struct Moments {
    double mean, variance;
  };
  std::vector<Moments> of_rows(static_cast<size_t>(logits.rows));
  for_each_row(logits.rows, logits.cols, [&](int64_t p) {
    const std::span<const float> l(logits.row(p), static_cast<size_t>(logits.cols));
    const double peak = std::ranges::max(l);
    double weights = 0, mean = 0, square = 0;
    for (float value : l) {
      const double weight = std::exp((value - peak) / temperature), below = value - peak;
      weights += weight;
      mean += weight * below;
      square += weight * below * below;
    }
    mean /= weights;
    of_rows[static_cast<size_t>(p)] = {mean + peak, square / weights - mean * mean};
  });
  for (size_t p = 0; p < of_rows.size(); ++p)
    sums.add(of_rows[p].mean, of_rows[p].variance, logits.row(static_cast<int64_t>(p))[next[p]]);
}

std::vector<double> column_dots(ConstMatrixView a, ConstMatrixView b) {
  std::vector<double> sums(static_cast<size_t>(a.cols));
  parallel_chunks(a.cols, kColumnsPerTask, [&](int64_t begin, int64_t end) {
    double* sum = sums.data();
    for (int64_t p = 0; p < a.rows; ++p) {
      const float *left = a.row(p), *right = b.row(p);
      for (int64_t c = begin; c < end; ++c) sum[c] += static_cast<double>(left[c]) * static_cast<double>(right[c]);
    }
  });
  return sums;
}

}  // namespace thimble
