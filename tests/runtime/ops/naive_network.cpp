// naive_network.cpp: see naive_network.h.
#include "tests/runtime/ops/naive_network.h"
#include "tests/runtime/ops/changed_matrix.h"

#include <cmath>
#include <numbers>

namespace thimble {
namespace {

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

class NaiveNetwork {
 public:
  NaiveNetwork(const Network& network, const NaiveTensors& tensors, const TokenBatch& batch, int64_t context)
      : network_(network), tensors_(tensors), batch_(batch), context_(context) {}

  std::vector<MatrixF64> run() {
    for (const Node& node : network_.nodes) {
      node_ = &node;
      y_ = MatrixF64(batch_.shape.rows(), network_.width_of(node.output));
      std::visit(*this, node.operation);
      values_.push_back(y_);
    }
    return values_;
  }

  void operator()(const op::Gather& o) {
    const std::vector<double>& table = tensors_.at(network_.matrix(o.table).name);
    const std::vector<int32_t> rows = looked_up_rows(o.index, batch_);
    fill([&](int64_t p, int64_t c) {
      return double{o.factor} * table[static_cast<size_t>(int64_t{rows[static_cast<size_t>(p)]} * y_.cols() + c)];
    });
  }
  void operator()(const op::Linear& o) {
    const std::vector<double>& w = tensors_.at(network_.matrix(o.weight).name);
    const std::vector<double> bias = vector(o.bias);
    fill([&](int64_t p, int64_t n) {
      double sum = bias.empty() ? 0 : bias[static_cast<size_t>(n)];
      for (int64_t k = 0; k < input(0).cols(); ++k)
        sum += input(0)(p, k) * w[static_cast<size_t>(n * input(0).cols() + k)];
      return sum;
    });
  }
  void operator()(const op::Add& o) {
    const std::vector<double> scale = vector(o.scale);
    fill([&](int64_t p, int64_t c) {
      const double factor = scale.empty() ? 1 : scale[scale.size() == 1 ? 0 : static_cast<size_t>(c)];
      return input(0)(p, c) + factor * input(1)(p, c);
    });
  }
  void operator()(const op::RmsNorm& o) {
    y_ = normed(input(0), input(0).cols(), double{o.epsilon});
    const std::vector<double> gain = vector(o.gain);
    fill([&](int64_t p, int64_t c) {
      return double{o.factor} * y_(p, c) * (gain.empty() ? 1 : gain[static_cast<size_t>(c)]);
    });
  }
  void operator()(const op::LayerNorm& o) {
    const std::vector<double> weight = vector(o.weight), bias = vector(o.bias);
    const auto n = static_cast<double>(y_.cols());
    for (int64_t p = 0; p < y_.rows(); ++p) {
      double mean = 0, variance = 0;
      for (int64_t c = 0; c < y_.cols(); ++c) mean += input(0)(p, c) / n;
      for (int64_t c = 0; c < y_.cols(); ++c) variance += std::pow(input(0)(p, c) - mean, 2) / n;
      for (int64_t c = 0; c < y_.cols(); ++c)
        y_(p, c) = (input(0)(p, c) - mean) / std::sqrt(variance + double{o.epsilon}) * weight[static_cast<size_t>(c)] +
                   bias[static_cast<size_t>(c)];
    }
  }
  void operator()(const op::Heads& o) {
    const std::vector<double> norm_gain = vector(o.norm_gain), head_gain = vector(o.head_gain);
    const int64_t d = o.head_dim;
    if (o.epsilon > 0) y_ = normed(input(0), d, double{o.epsilon});
    fill([&](int64_t p, int64_t c) {
      double value = o.epsilon > 0 ? y_(p, c) : input(0)(p, c);
      if (!norm_gain.empty()) value *= norm_gain[static_cast<size_t>(c % d)];
      return value * (head_gain.empty() ? 1 : head_gain[static_cast<size_t>(c / d)]);
    });
    if (o.rotary != kAbsent) rotate(network_.rotaries[static_cast<size_t>(o.rotary)], d);
  }
  void operator()(const op::Attention& o) {
    for (int64_t p = 0; p < y_.rows(); ++p)
      for (int64_t head = 0; head < o.heads; ++head) attend(o, p, head);
  }
  void operator()(const op::Activate& o) {
    fill([&](int64_t p, int64_t c) { return naive_activation(o.activation, input(0)(p, c)); });
  }
  void operator()(const op::Gate& o) {
    fill([&](int64_t p, int64_t c) { return naive_activation(o.activation, input(0)(p, c)) * input(1)(p, c); });
  }
  void operator()(const op::Mix& o) {
    const std::vector<double> first = vector(o.first), second = vector(o.second);
    fill([&](int64_t p, int64_t c) {
      return first[static_cast<size_t>(c)] * input(0)(p, c) + second[static_cast<size_t>(c)] * input(1)(p, c);
    });
  }
  void operator()(const op::Skip& o) {
    const std::vector<double> weight = vector(o.weight), gate = vector(o.gate);
    fill([&](int64_t p, int64_t c) {
      const auto i = static_cast<size_t>(c);
      const double skip = weight[i] * input(1)(p, c);
      return gate.empty() ? input(0)(p, c) + skip : gate[i] * input(0)(p, c) + (1 - gate[i]) * skip;
    });
  }
  void operator()(const op::Smear& o) {
    const std::vector<double> gate = vector(o.gate);
    fill([&](int64_t p, int64_t c) {
      const double g = gate[static_cast<size_t>(c)], before = position(p) == 0 ? 0 : input(0)(p - 1, c);
      return (1 - g) * input(0)(p, c) + g * before;
    });
  }
  void operator()(const op::Columns& o) {
    fill([&](int64_t p, int64_t c) { return input(0)(p, o.first + c); });
  }

 private:
  const MatrixF64& input(size_t i) const { return values_[static_cast<size_t>(node_->inputs[i])]; }
  // Empty for a vector that is not there.
  std::vector<double> vector(VectorId id) const {
    return id == kAbsent ? std::vector<double>() : naive_vector(network_.vector(id), tensors_);
  }
  int64_t position(int64_t row) const { return row % batch_.shape.positions; }

  template <typename Element>
  void fill(const Element& element) {
    for (int64_t p = 0; p < y_.rows(); ++p)
      for (int64_t c = 0; c < y_.cols(); ++c) y_(p, c) = element(p, c);
  }

  // x / sqrt(mean(x^2) + epsilon) over each `width` columns.
  static MatrixF64 normed(const MatrixF64& x, int64_t width, double epsilon) {
    MatrixF64 y = x;
    for (int64_t p = 0; p < x.rows(); ++p)
      for (int64_t first = 0; first < x.cols(); first += width) {
        double squares = 0;
        for (int64_t c = first; c < first + width; ++c) squares += x(p, c) * x(p, c);
        for (int64_t c = first; c < first + width; ++c)
          y(p, c) /= std::sqrt(squares / static_cast<double>(width) + epsilon);
      }
    return y;
  }

  void rotate(const RotaryRule& rule, int64_t d) {
    const std::vector<double> frequencies = rule.frequencies(context_);
    const auto half = static_cast<int64_t>(frequencies.size());
    for (int64_t p = 0; p < y_.rows(); ++p)
      for (int64_t first = 0; first < y_.cols(); first += d)
        for (int64_t k = 0; k < half; ++k) {
          const double angle = static_cast<double>(position(p)) * frequencies[static_cast<size_t>(k)];
          const double a = y_(p, first + k), b = y_(p, first + half + k);
          y_(p, first + k) = a * std::cos(angle) + b * std::sin(angle);
          y_(p, first + half + k) = b * std::cos(angle) - a * std::sin(angle);
        }
  }

  void attend(const op::Attention& o, int64_t p, int64_t head) {
    const int64_t d = o.head_dim, q_col = head * d, kv_col = head / (o.heads / o.kv_heads) * d;
    const int64_t seen = o.window > 0 ? std::min(o.window, position(p) + 1) : position(p) + 1;
    const int64_t first = p + 1 - seen;  // in the row's sequence
    std::vector<double> weights;
    double peak = -1e300, sum = 0;
    for (int64_t j = first; j <= p; ++j) {
      double score = 0;
      for (int64_t c = 0; c < d; ++c) score += double{o.scale} * input(0)(p, q_col + c) * input(1)(j, kv_col + c);
      weights.push_back(score);
      peak = std::max(peak, score);
    }
    for (double& weight : weights) sum += weight = std::exp(weight - peak);
    for (int64_t j = first; j <= p; ++j)
      for (int64_t c = 0; c < d; ++c)
        y_(p, q_col + c) += weights[static_cast<size_t>(j - first)] / sum * input(2)(j, kv_col + c);
    if (!o.exclusive) return;
    double squares = 0, along = 0;
    for (int64_t c = 0; c < d; ++c) squares += std::pow(input(2)(p, kv_col + c), 2);
    const double norm = std::max(std::sqrt(squares), 1e-12);
    for (int64_t c = 0; c < d; ++c) along += y_(p, q_col + c) * input(2)(p, kv_col + c) / norm;
    for (int64_t c = 0; c < d; ++c) y_(p, q_col + c) -= along * input(2)(p, kv_col + c) / norm;
  }

  const Network& network_;
  const NaiveTensors& tensors_;
  const TokenBatch& batch_;
  const int64_t context_;
  const Node* node_ = nullptr;
  MatrixF64 y_;
  std::vector<MatrixF64> values_;
};

}  // namespace

NaiveTensors naive_tensors(const Weights& weights) {
  NaiveTensors tensors;
  for (const auto& [name, values] : weights.small) tensors[name].assign(values.begin(), values.end());
  for (size_t i = 0; i < weights.matrices.size(); ++i) {
    const std::vector<float> values = values_of(weights.matrices[i]);
    tensors[weights.network->matrices[i].name].assign(values.begin(), values.end());
  }
  return tensors;
}

std::vector<double> naive_vector(const VectorRule& rule, const NaiveTensors& tensors) {
  std::vector<double> vector;
  for (int64_t i = 0; i < rule.count; ++i) {
    double value = tensors.at(rule.parameter)[static_cast<size_t>(rule.first + i)];
    if (rule.sigmoid) value = logistic(value);
    if (!rule.times.empty()) value *= tensors.at(rule.times)[0];
    vector.push_back(value + double{rule.plus});
  }
  return vector;
}

double naive_activation(Activation activation, double x) {
  switch (activation) {
    case Activation::kLeakyReluSquared: return x > 0 ? x * x : 0.25 * x * x;
    case Activation::kGeluTanh:  // 1 + tanh(u) = 2 / (1 + exp(-2u)), which loses nothing at large negative u
      return x * logistic(2 * std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x));
    case Activation::kSilu: return x * logistic(x);
  }
  return 0;
}

std::vector<MatrixF64> naive_values(const Network& network, const NaiveTensors& tensors, const TokenBatch& batch,
                                    int64_t context) {
  return NaiveNetwork(network, tensors, batch, context).run();
}

}  // namespace thimble
