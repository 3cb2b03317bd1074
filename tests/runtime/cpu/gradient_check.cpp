// gradient_check.cpp: see gradient_check.h.
#include "tests/runtime/cpu/gradient_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "runtime/cpu/cpu_pass.h"
#include "tests/runtime/cpu/small_network.h"
#include "tests/runtime/ops/naive_network.h"
#include "tests/runtime/tensor/guarded_matrix.h"

namespace thimble {
namespace {

constexpr double kStep = 1e-4;

class GradientCheck {
 public:
  GradientCheck(const Weights& weights, const TokenBatch& batch)
      : weights_(weights),
        network_(*weights.network),
        batch_(batch),
        tensors_(naive_tensors(weights)),
        values_(naive_values(network_, tensors_, batch, batch.shape.positions)),
        logit_gradient_(random_matrix(batch.shape.rows(), network_.vocabulary(), 41)),
        hidden_gradient_(through_head()) {}

  void run(double terms) {
    find_gradients();
    for (const auto& [name, gradient] : gradients_) {
      SCOPED_TRACE(name);
      expect_differences(name, gradient, terms);
    }
  }

 private:
  // The nodes that the head's input depends on, last first: the order of a backward pass.
  std::vector<const Node*> nodes_backwards() const {
    std::set<ValueId> needed = {network_.head.hidden};
    std::vector<const Node*> nodes;
    for (size_t i = network_.nodes.size(); i-- > 0;) {
      const Node& node = network_.nodes[i];
      if (!needed.contains(node.output)) continue;
      needed.insert(node.inputs.begin(), node.inputs.end());
      nodes.push_back(&node);
    }
    return nodes;
  }

  const MatrixF64& value(ValueId id) const { return values_[static_cast<size_t>(id)]; }
  std::vector<double>& gradient_of(MatrixId id) {
    std::vector<double>& gradient = gradients_[network_.matrix(id).name];
    gradient.resize(tensors_.at(network_.matrix(id).name).size());
    return gradient;
  }

  // Sums what the pass says into gradients of whole parameters.
  class Recorder final : public GradientObserver {
   public:
    explicit Recorder(GradientCheck& check) : check_(check) {
      for (const Node* node : check.nodes_backwards()) {
        if (std::holds_alternative<op::Linear>(node->operation)) linears_.push_back(node);
        if (std::holds_alternative<op::Gather>(node->operation)) gathers_.push_back(node);
      }
    }

    void on_output_gradient(const std::string& weight, int64_t, ConstMatrixView gradient,
                            ConstMatrixView output) override {
      const Network& network = check_.network_;
      if (is_head_) {
        is_head_ = false;
        EXPECT_EQ(weight, network.matrix(network.head.weight).name);
        return expect_output(network.head.weight, check_.value(network.head.hidden), gradient, output);
      }
      ASSERT_LT(next_linear_, linears_.size());
      const Node& node = *linears_[next_linear_++];
      const MatrixId id = std::get<op::Linear>(node.operation).weight;
      EXPECT_EQ(weight, network.matrix(id).name);
      expect_output(id, check_.value(node.inputs[0]), gradient, output);
    }

    void on_linear_gradient(const std::string& weight, ConstMatrixView gradient, ConstMatrixView input) override {
      ++inputs_;
      const MatrixId id = check_.network_.id_of(weight);
      ASSERT_EQ(input.rows, gradient.rows);
      ASSERT_EQ(input.cols, check_.network_.matrix(id).columns);
      std::vector<double>& sum = check_.gradient_of(id);
      for (int64_t p = 0; p < input.rows; ++p)
        for (int64_t n = 0; n < gradient.cols; ++n)
          for (int64_t k = 0; k < input.cols; ++k)
            sum[static_cast<size_t>(n * input.cols + k)] += double{gradient.row(p)[n]} * double{input.row(p)[k]};
    }

    void on_lookup_gradient(const std::string& table, std::span<const int32_t> rows,
                            ConstMatrixView gradient) override {
      ASSERT_LT(next_gather_, gathers_.size());
      const auto& gather = std::get<op::Gather>(gathers_[next_gather_++]->operation);
      EXPECT_EQ(table, check_.network_.matrix(gather.table).name);
      EXPECT_TRUE(std::ranges::equal(rows, looked_up_rows(gather.index, check_.batch_)));
      std::vector<double>& sum = check_.gradient_of(gather.table);
      for (int64_t p = 0; p < gradient.rows; ++p)
        for (int64_t c = 0; c < gradient.cols; ++c)
          sum[static_cast<size_t>(int64_t{rows[static_cast<size_t>(p)]} * gradient.cols + c)] +=
              double{gradient.row(p)[c]};
    }

    void expect_all_seen() const {
      EXPECT_FALSE(is_head_);
      EXPECT_EQ(next_linear_, linears_.size());
      EXPECT_EQ(inputs_, linears_.size() + 1);  // and the head's
      EXPECT_EQ(next_gather_, gathers_.size());
    }

   private:
    // Of y = x w^T the observer sees x w^T itself.
    void expect_output(MatrixId id, const MatrixF64& x, ConstMatrixView gradient, ConstMatrixView output) {
      const std::vector<double>& w = check_.tensors_.at(check_.network_.matrix(id).name);
      ASSERT_EQ(output.rows, x.rows());
      ASSERT_EQ(output.cols, gradient.cols);
      for (int64_t p = 0; p < x.rows(); ++p)
        for (int64_t n = 0; n < gradient.cols; ++n) {
          double product = 0, magnitude = 1;
          for (int64_t k = 0; k < x.cols(); ++k) {
            const auto at = static_cast<size_t>(n * x.cols() + k);
            product += x(p, k) * w[at];
            magnitude += std::abs(x(p, k) * w[at]);
          }
          ASSERT_NEAR(output.row(p)[n], product, 1e-5 * magnitude) << "output of " << check_.network_.matrix(id).name;
        }
    }

    GradientCheck& check_;
    std::vector<const Node*> linears_, gathers_;
    bool is_head_ = true;
    size_t next_linear_ = 0, next_gather_ = 0, inputs_ = 0;
  };

  void find_gradients() {
    CpuPass pass(weights_, batch_.shape.positions, {},
                 {.has_backward = true,
                  .reads_linear_outputs = true,
                  .has_vector_gradients = true,
                  .reads_linear_inputs = true});
    const ConstMatrixView hidden = pass.run(batch_);
    Matrix logits(hidden.rows, network_.vocabulary()), product(hidden.rows, network_.vocabulary());
    pass.logits(hidden, logits, &product);
    Recorder recorder(*this);
    std::vector<double> sums;
    pass.backward_head(0, logit_gradient_, product, recorder);
    pass.backward(recorder, &sums);
    recorder.expect_all_seen();
    const VectorGradients vectors = vector_gradients(network_, weights_.vectors, sums);
    for (auto& [name, gradient] : stored_gradients(network_, weights_.small, vectors)) gradients_[name] = gradient;
  }

  // By the head's input.
  MatrixF64 through_head() const {
    const int64_t width = network_.width_of(network_.head.hidden);
    const std::vector<double>& head = tensors_.at(head_name());
    MatrixF64 gradient(logit_gradient_.rows(), width);
    for (int64_t p = 0; p < gradient.rows(); ++p)
      for (int64_t v = 0; v < logit_gradient_.cols(); ++v) {
        const double by_logit = logit_gradient_(p, v), *weights = &head[static_cast<size_t>(v * width)];
        double* sums = gradient.row(p);
        for (int64_t k = 0; k < width; ++k) sums[k] += by_logit * weights[k];
      }
    return gradient;
  }
  const std::string& head_name() const { return network_.matrix(network_.head.weight).name; }

  double loss(bool has_another_head) const {
    const std::vector<MatrixF64> values = naive_values(network_, tensors_, batch_, batch_.shape.positions);
    const MatrixF64& hidden = values[static_cast<size_t>(network_.head.hidden)];
    const MatrixF64 weights = has_another_head ? through_head() : hidden_gradient_;
    return std::inner_product(hidden.values().begin(), hidden.values().end(), weights.values().begin(), 0.0);
  }

  void expect_differences(const std::string& name, const std::vector<double>& gradient, double terms) {
    std::vector<double>& tensor = tensors_.at(name);
    double largest = 1;
    for (double value : gradient) largest = std::max(largest, std::abs(value));
    const double allowed = 1e-6 + (terms + 16) * kFloatRounding * largest;
    for (size_t i = 0; i < gradient.size(); i += std::max<size_t>(1, gradient.size() / 60)) {
      const double before = tensor[i];
      if (std::isnan(before)) {  // beside an input: nothing depends on it
        ASSERT_EQ(gradient[i], 0) << "element " << i;
        continue;
      }
      tensor[i] = before + kStep;
      const double above = loss(name == head_name());
      tensor[i] = before - kStep;
      const double below = loss(name == head_name());
      tensor[i] = before;
      ASSERT_NEAR(gradient[i], (above - below) / (2 * kStep), allowed) << "element " << i;
    }
  }

  const Weights& weights_;
  const Network& network_;
  const TokenBatch& batch_;
  NaiveTensors tensors_;
  const std::vector<MatrixF64> values_;
  const Matrix logit_gradient_;
  const MatrixF64 hidden_gradient_;
  std::map<std::string, std::vector<double>> gradients_;
};

}  // namespace

void expect_gradients(const Weights& weights, const TokenBatch& batch, double terms) {
  GradientCheck(weights, batch).run(terms);
}

}  // namespace thimble
