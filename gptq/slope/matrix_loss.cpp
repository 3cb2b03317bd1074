// matrix_loss.cpp: see matrix_loss.h.
#include "gptq/slope/matrix_loss.h"

#include <algorithm>
#include <numeric>

#include "runtime/base/parallel.h"
#include "runtime/cpu/gemm.h"

namespace thimble {
namespace {

// Into kRowWeightRange of the mean; all 1 when nothing was felt anywhere.
void clamp_row_weights(std::vector<double>& weights) {
  double mean = mean_of(weights);
  for (double& weight : weights)
    weight = mean > 0 ? std::clamp(weight, mean / kRowWeightRange, mean * kRowWeightRange) : 1;
}

// How often each row is looked up, per token. One more time each: what calibration did not look up may yet be.
std::vector<double> lookup_rates(const std::vector<int64_t>& counts) {
  int64_t total = std::accumulate(counts.begin(), counts.end(), static_cast<int64_t>(counts.size()));
  std::vector<double> rates;
  for (int64_t count : counts) rates.push_back(static_cast<double>(count + 1) / static_cast<double>(total));
  return rates;
}

// A dimension that no loss depended on still needs a step.
std::vector<double> positive(std::vector<double> diagonal) {
  double floor = mean_of(diagonal) / kRowWeightRange;
  for (double& value : diagonal) value = floor > 0 ? std::max(value, floor) : 1;
  return diagonal;
}

MatrixLoss table_loss(const Fisher& lookup, const std::vector<int64_t>& counts) {
  MatrixLoss loss{nullptr, positive(lookup.mean_square), lookup_rates(counts)};
  clamp_row_weights(loss.row_weights);
  return loss;
}

// w_r e H e^T + f_r e diag(F) e^T for each row r, as one Hessian and one weight per row.
MatrixLoss tied_loss(const MatrixLoss& head, const MatrixLoss& table) {
  double head_mean = mean_of(head.row_weights), table_mean = mean_of(table.row_weights);
  std::vector<double> added;
  for (double value : table.diagonal) added.push_back(table_mean * value);
  auto hessian = std::make_shared<const StoredHessian>(head.hessian->scaled(head_mean, std::move(added)));
  double head_trace = mean_of(head.diagonal), table_trace = mean_of(table.diagonal);
  MatrixLoss loss{hessian, hessian->diagonal(), {}};
  for (size_t r = 0; r < head.row_weights.size(); ++r)
    loss.row_weights.push_back((head.row_weights[r] * head_trace + table.row_weights[r] * table_trace) /
                               (head_mean * head_trace + table_mean * table_trace));
  clamp_row_weights(loss.row_weights);
  return loss;
}

bool has_shape(const std::map<std::string, Shape>& shapes, const std::string& name, int64_t columns) {
  auto found = shapes.find(name);
  return found != shapes.end() && found->second.size() == 2 && found->second[1] == columns;
}

constexpr int64_t kLossRowsPerTask = 64;
constexpr int64_t kLossColumnsPerProduct = 256;

// The lower triangle L, twice what H has off its diagonal: e L e^T = e H e^T takes half the products.
MatrixF64 doubled_triangle(const StoredHessian& hessian) {
  MatrixF64 triangle(hessian.size(), hessian.size());
  for (int64_t i = 0; i < hessian.size(); ++i) {
    double* const row = triangle.row(i);
    hessian.load_row(i, {row, static_cast<size_t>(i + 1)});
    for (int64_t j = 0; j < i; ++j) row[j] *= 2;
  }
  return triangle;
}

// products -= errors L.
void subtract_triangle_product(ConstMatrixViewF64 errors, ConstMatrixViewF64 triangle, MatrixViewF64 products) {
  for (int64_t first = 0; first < triangle.cols; first += kLossColumnsPerProduct) {
    const int64_t width = std::min(kLossColumnsPerProduct, triangle.cols - first), below = triangle.rows - first;
    subtract_product(errors.block_cols(first, below), triangle.block_rows(first, below).block_cols(first, width),
                     products.block_cols(first, width));
  }
}

}  // namespace

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(std::max<size_t>(1, values.size()));
}

std::vector<double> row_mean_squares(ConstMatrixView weights) {
  std::vector<double> means;
  for (int64_t r = 0; r < weights.rows; ++r) {
    double sum = 0;
    for (int64_t k = 0; k < weights.cols; ++k) sum += double{weights.row(r)[k]} * weights.row(r)[k];
    means.push_back(sum / static_cast<double>(std::max<int64_t>(1, weights.cols)));
  }
  return means;
}

std::map<std::string, MatrixLoss> matrix_losses(const StoredStatistics& statistics,
                                                const std::map<std::string, Shape>& shapes) {
  std::map<std::string, MatrixLoss> losses;
  const StoredHessians head = store_in_memory(statistics.loss.head);
  for (const StoredHessians* set : {&statistics.hessians, &head})
    for (const auto& [name, hessian] : *set) {
      if (!has_shape(shapes, name, hessian->size())) continue;
      MatrixLoss loss{hessian, hessian->diagonal(), {}};
      auto fisher = statistics.loss.output_fisher.find(name);
      if (fisher != statistics.loss.output_fisher.end()) loss.row_weights = fisher->second.mean_square;
      loss.row_weights.resize(static_cast<size_t>(shapes.at(name)[0]), 1.0);
      clamp_row_weights(loss.row_weights);
      losses.emplace(name, std::move(loss));
    }
  for (const auto& [name, lookup] : statistics.loss.lookup_fisher) {
    auto counts = statistics.loss.row_counts.find(name);
    if (counts == statistics.loss.row_counts.end() ||
        !has_shape(shapes, name, static_cast<int64_t>(lookup.mean_square.size())))
      continue;
    MatrixLoss table = table_loss(lookup, counts->second);
    auto [found, is_new] = losses.try_emplace(name, table);
    if (!is_new) found->second = tied_loss(found->second, table);
  }
  return losses;
}

// Errors of GPTQ lie where H is small, so that most of e H e^T cancels: float64.
double predicted_loss(const MatrixLoss& loss, const StoredMatrixView& weights, const StoredMatrixView& quantized) {
  const MatrixF64 triangle = loss.hessian ? doubled_triangle(*loss.hessian) : MatrixF64();
  std::vector<double> row_sums(static_cast<size_t>(weights.rows));
  parallel_chunks(weights.rows, kLossRowsPerTask, [&](int64_t first, int64_t last) {
    MatrixF64 errors(last - first, weights.cols), products(last - first, weights.cols);
    std::vector<float> before(static_cast<size_t>(weights.cols)), after(before.size());
    for (int64_t r = first; r < last; ++r) {
      weights.read_row(r, before.data());
      quantized.read_row(r, after.data());
      std::ranges::transform(after, before, errors.row(r - first), [](float a, float b) { return double{a} - b; });
    }
    // -e L, or -e diag(H), row by row.
    if (loss.hessian) subtract_triangle_product(errors, triangle, products);
    for (int64_t r = 0; r < errors.rows() && !loss.hessian; ++r)
      for (int64_t k = 0; k < errors.cols(); ++k)
        products(r, k) = -errors(r, k) * loss.diagonal[static_cast<size_t>(k)];
    for (int64_t r = first; r < last; ++r) {
      const double* error = errors.row(r - first);
      row_sums[static_cast<size_t>(r)] = -std::inner_product(error, error + weights.cols, products.row(r - first), 0.0);
    }
  });
  return total_loss(row_sums, loss);
}

double total_loss(const std::vector<double>& row_sums, const MatrixLoss& loss) {
  return std::max(0.0, std::inner_product(row_sums.begin(), row_sums.end(), loss.row_weights.begin(), 0.0) / 2);
}

}  // namespace thimble
