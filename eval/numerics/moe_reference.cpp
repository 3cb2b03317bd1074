// moe_reference.cpp: see moe_reference.h. Nothing of the pipeline's arithmetic is used: values of codes come from
// tables, sums are in float64.
#include "eval/numerics/moe_reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

namespace thimble {
namespace {

constexpr double kUnit = 0x1p-23;          // of float32
constexpr double kActivationBound = 2e-6;  // relative
constexpr double kSlack = 1e-6;            // of quotients in float32 that are rounded to codes

constexpr std::array<double, 8> kElements = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

double element_value(int code) { return code & 8 ? -kElements[code & 7] : kElements[code & 7]; }
double scale_value(int code) { return code < 8 ? std::ldexp(code, -9) : std::ldexp(8 + code % 8, code / 8 - 10); }

struct Staged {
  MatrixF64 values, steps;  // (R, K) and (R, B): block scale times tensor scale
};

Staged values_of(const Nvfp4Codes& coded, int64_t rows, int64_t columns) {
  const int64_t blocks = (columns + 15) / 16, row_bytes = (columns + 1) / 2;
  Staged staged{MatrixF64(rows, columns), MatrixF64(rows, blocks)};
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t b = 0; b < blocks; ++b)
      staged.steps(r, b) = scale_value(coded.block_scales[static_cast<size_t>(r * blocks + b)]) * coded.tensor_scale;
    for (int64_t k = 0; k < columns; ++k) {
      const int byte = coded.codes[static_cast<size_t>(r * row_bytes + k / 2)];
      staged.values(r, k) = element_value(k % 2 ? byte >> 4 : byte & 15) * staged.steps(r, k / 16);
    }
  }
  return staged;
}

// What a stage should give, and how far from it is allowed.
struct Expected {
  MatrixF64 values, bounds;
  Expected(int64_t rows, int64_t cols) : values(rows, cols), bounds(rows, cols) {}
};

MatrixF64 widened(ConstMatrixView x) {
  MatrixF64 wide(x.rows, x.cols);
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t c = 0; c < x.cols; ++c) wide(r, c) = x.row(r)[c];
  return wide;
}

// Routing weights, with the pipeline's choice among logits that are as good as equal.
Expected expected_routing(const MoeLayer& layer, ConstMatrixView x, const MoeTrace& trace) {
  Expected expected(x.rows, layer.experts);
  for (int64_t t = 0; t < x.rows; ++t) {
    std::vector<double> logits, bounds;
    for (int64_t e = 0; e < layer.experts; ++e) {
      const Float64Dot dot = float64_dot(x.row(t), layer.router.row(e), layer.model_dim);
      logits.push_back(dot.sum);
      bounds.push_back(kUnit * static_cast<double>(layer.model_dim) * dot.magnitude);
    }
    std::vector<size_t> order(logits.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, std::ranges::greater{}, [&](size_t e) {
      return logits[e] + (trace.routing(t, static_cast<int64_t>(e)) != 0 ? 2 * bounds[e] : 0);
    });
    order.resize(static_cast<size_t>(layer.top_k));
    double total = 0, bound = 4 * kUnit;
    for (size_t e : order) {
      total += std::exp(logits[e] - logits[order[0]]);
      bound = std::max(bound, std::expm1(2 * (bounds[e] + bounds[order[0]])) + 4 * kUnit);
    }
    for (size_t e : order) {
      const double weight = std::exp(logits[e] - logits[order[0]]) / total;
      expected.values(t, static_cast<int64_t>(e)) = weight;
      expected.bounds(t, static_cast<int64_t>(e)) = weight * bound + 0x1p-126;  // a small one may vanish
    }
  }
  return expected;
}

Expected expected_scales(const MatrixF64& x, double tensor_scale) {
  Expected expected(x.rows(), (x.cols() + 15) / 16);
  for (int64_t r = 0; r < x.rows(); ++r)
    for (int64_t b = 0; b < expected.values.cols(); ++b) {
      double most = 0;
      for (int64_t k = 16 * b; k < std::min<int64_t>(16 * b + 16, x.cols()); ++k)
        most = std::max(most, std::abs(x(r, k)));
      const double scale = most / 6 / tensor_scale;
      const int exponent = scale > 0 ? std::max(-6, std::ilogb(scale)) : -6;
      expected.values(r, b) = most / 6;
      expected.bounds(r, b) = (std::ldexp(1, exponent - 4) + kSlack * scale) * tensor_scale;
    }
  return expected;
}

Expected expected_codes(const MatrixF64& x, const MatrixF64& steps) {
  Expected expected(x.rows(), x.cols());
  for (int64_t r = 0; r < x.rows(); ++r)
    for (int64_t k = 0; k < x.cols(); ++k) {
      const double step = steps(r, k / 16), size = std::abs(x(r, k));
      // Without a scale all is 0; above 6 codes saturate.
      const double half_gap = size < 2 * step ? 0.25 : size < 4 * step ? 0.5 : 1;
      const double bound = size > 6 * step ? size - 6 * step : half_gap * step;
      expected.values(r, k) = x(r, k);
      expected.bounds(r, k) = bound + kSlack * size;
    }
  return expected;
}

// Row i: row source(i) of `a` times the weights of its expert.
template <typename Source>
Expected expected_product(const MoeTrace& trace, const MatrixF64& a, Source source,
                          const std::vector<Nvfp4Codes>& weights, int64_t n) {
  const int64_t k = a.cols();
  std::vector<MatrixF64> wide;
  for (const Nvfp4Codes& w : weights) wide.push_back(values_of(w, n, k).values);
  Expected expected(static_cast<int64_t>(trace.routes.size()), n);
  for (int64_t i = 0; i < expected.values.rows(); ++i) {
    const MatrixF64& w = wide[static_cast<size_t>(trace.routes[static_cast<size_t>(i)].expert)];
    for (int64_t j = 0; j < n; ++j) {
      const Float64Dot dot = float64_dot(a.row(source(i)), w.row(j), k);
      expected.values(i, j) = dot.sum;
      expected.bounds(i, j) = kUnit * static_cast<double>(k) * dot.magnitude + 0x1p-149;
    }
  }
  return expected;
}

Expected expected_activation(const MatrixF64& l1, int64_t hidden_dim) {
  Expected expected(l1.rows(), hidden_dim);
  for (int64_t r = 0; r < l1.rows(); ++r)
    for (int64_t f = 0; f < hidden_dim; ++f) {
      const double gate = l1(r, f), value = gate / (1 + std::exp(-gate)) * l1(r, hidden_dim + f);
      expected.values(r, f) = value;
      // Below -88 the exponential overflows, and what would be up to 2^-121 becomes 0.
      expected.bounds(r, f) =
          kActivationBound * std::abs(value) + 0x1p-120 * std::abs(l1(r, hidden_dim + f)) + 0x1p-126;
    }
  return expected;
}

Expected expected_scatter(const MoeTrace& trace, const MatrixF64& routing, const MatrixF64& l2, int64_t tokens,
                          int64_t top_k) {
  Expected expected(tokens, l2.cols());
  for (int64_t i = 0; i < l2.rows(); ++i) {
    const auto [expert, token] = trace.routes[static_cast<size_t>(i)];
    for (int64_t d = 0; d < l2.cols(); ++d) {
      const double part = routing(token, expert) * l2(i, d);
      expected.values(token, d) += part;
      expected.bounds(token, d) += kUnit * static_cast<double>(top_k + 1) * std::abs(part);
    }
  }
  return expected;
}

MoeStageErrors compare(MoeStage stage, const MatrixF64& found, const Expected& expected) {
  MoeStageErrors errors;
  errors.stage = stage;
  errors.elements = found.rows() * found.cols();
  for (int64_t r = 0; r < found.rows(); ++r)
    for (int64_t c = 0; c < found.cols(); ++c) {
      const double reference = expected.values(r, c), bound = expected.bounds(r, c);
      const double error = std::abs(found(r, c) - reference);
      errors.max_absolute = std::max(errors.max_absolute, error);
      if (reference != 0) errors.max_relative = std::max(errors.max_relative, error / std::abs(reference));
      if (error <= bound) {
        if (bound > 0) errors.worst_share = std::max(errors.worst_share, error / bound);
        continue;
      }
      // Also NaN, and what should be 0.
      const bool has_share = bound > 0 && std::isfinite(error);
      errors.worst_share =
          std::max(errors.worst_share, has_share ? error / bound : std::numeric_limits<double>::infinity());
      if (errors.over_count++ > 0) continue;
      errors.first_row = r;
      errors.first_column = c;
      errors.first_found = found(r, c);
      errors.first_reference = reference;
    }
  return errors;
}

double relative_rms(const MatrixF64& found, const MatrixF64& reference) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < found.values().size(); ++i) {
    difference += std::pow(found.values()[i] - reference.values()[i], 2);
    size += std::pow(reference.values()[i], 2);
  }
  return size > 0 ? std::sqrt(difference / size) : 0;
}

}  // namespace

std::vector<MoeStageErrors> compare_moe(const MoeLayer& layer, ConstMatrixView x, const MoeTrace& trace) {
  std::vector<MoeStageErrors> stages;
  auto add = [&](MoeStage stage, const MatrixF64& found, const Expected& expected, const MatrixF64& unrounded) {
    stages.push_back(compare(stage, found, expected));
    stages.back().drift = relative_rms(found, unrounded);
  };
  auto add_staged = [&](MoeStage scales, MoeStage codes, const MatrixF64& input, const Nvfp4Codes& coded,
                        const MatrixF64& unrounded) {
    Staged staged = values_of(coded, input.rows(), input.cols());
    add(scales, staged.steps, expected_scales(input, coded.tensor_scale), staged.steps);
    add(codes, staged.values, expected_codes(input, staged.steps), unrounded);
    return std::move(staged.values);
  };
  // Both products, of what the pipeline has and, without any rounding, of what it should have.
  auto up = [&](const MatrixF64& input) {
    return expected_product(
        trace, input, [&](int64_t i) { return trace.routes[static_cast<size_t>(i)].token; }, layer.up,
        2 * layer.hidden_dim);
  };
  auto down = [&](const MatrixF64& hidden) {
    return expected_product(
        trace, hidden, [](int64_t i) { return i; }, layer.down, layer.model_dim);
  };

  const MatrixF64 routing = widened(trace.routing), wide = widened(x), l1 = widened(trace.l1),
                  activated = widened(trace.activated), l2 = widened(trace.l2);
  const Expected router = expected_routing(layer, x, trace);
  const MatrixF64 exact_l1 = up(wide).values, exact_activated = expected_activation(exact_l1, layer.hidden_dim).values,
                  exact_l2 = down(exact_activated).values;
  add(MoeStage::kRouter, routing, router, router.values);
  const MatrixF64 staged_x = add_staged(MoeStage::kXScales, MoeStage::kXCodes, wide, trace.x, wide);
  add(MoeStage::kL1, l1, up(staged_x), exact_l1);
  add(MoeStage::kActivation, activated, expected_activation(l1, layer.hidden_dim), exact_activated);
  const MatrixF64 staged_h =
      add_staged(MoeStage::kHScales, MoeStage::kHCodes, activated, trace.hidden, exact_activated);
  add(MoeStage::kL2, l2, down(staged_h), exact_l2);
  add(MoeStage::kScatter, widened(trace.output), expected_scatter(trace, routing, l2, x.rows, layer.top_k),
      expected_scatter(trace, router.values, exact_l2, x.rows, layer.top_k).values);
  return stages;
}

const MoeStageErrors* first_failure(const std::vector<MoeStageErrors>& stages) {
  auto found = std::ranges::find_if(stages, [](const MoeStageErrors& stage) { return !stage.passed(); });
  return found == stages.end() ? nullptr : &*found;
}

}  // namespace thimble
