// fusion_meaning_test.cpp: what composites say that they compute, computed from that in float64 and the plainest loops,
// is what the nodes that they cover give.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/ops/fusion.h"
#include "tests/runtime/families/network_samples.h"
#include "tests/runtime/ops/naive_network.h"

namespace thimble::fusion_meaning_test {
namespace {

using Vector64 = std::vector<double>;

class FusionMeaning : public ::testing::TestWithParam<NetworkRecipe> {
 protected:
  void SetUp() override {
    values_ = naive_values(network_, tensors_, batch_, sample_.context);
    fusion_ = fuse(network_, {.fuses_products = true, .folds_gains = true, .column_multiple = 8});
  }

  const MatrixF64& value(ValueId id) const { return values_[static_cast<size_t>(id)]; }
  Vector64 vector(VectorId id) const { return naive_vector(network_.vector(id), tensors_); }
  // Element c of a vector, of one element for all, or 1 without a vector.
  double at(VectorId id, int64_t c) const {
    if (id == kAbsent) return 1;
    const Vector64 all = vector(id);
    return all.size() == 1 ? all[0] : all[static_cast<size_t>(c)];
  }
  double weight(MatrixId id, int64_t row, int64_t column) const {
    const MatrixUse& use = network_.matrix(id);
    return tensors_.at(use.name)[static_cast<size_t>(row * use.columns + column)];
  }
  int64_t rows() const { return batch_.shape.rows(); }

  static void norm(double* row, int64_t width, double factor, double epsilon) {
    double squares = 0;
    for (int64_t c = 0; c < width; ++c) squares += row[c] * row[c];
    for (int64_t c = 0; c < width; ++c) row[c] *= factor / std::sqrt(squares / static_cast<double>(width) + epsilon);
  }
  MatrixF64 input_of(const FusedInput& input) const {
    MatrixF64 rows = value(input.value);
    if (!input.is_normed) return rows;
    for (int64_t r = 0; r < rows.rows(); ++r)
      norm(rows.row(r), rows.cols(), static_cast<double>(input.factor), static_cast<double>(input.epsilon));
    return rows;  // without the norm's gain, which is its readers'
  }
  MatrixF64 product(const MatrixF64& x, MatrixId id, int64_t first_row, int64_t count, VectorId bias) const {
    MatrixF64 y(x.rows(), count);
    for (int64_t r = 0; r < x.rows(); ++r)
      for (int64_t n = 0; n < count; ++n) {
        double sum = bias == kAbsent ? 0 : vector(bias)[static_cast<size_t>(first_row + n)];
        const VectorId gain = fusion_.column_gains[static_cast<size_t>(id)];
        for (int64_t k = 0; k < x.cols(); ++k) sum += x(r, k) * weight(id, first_row + n, k) * at(gain, k);
        y(r, n) = sum;
      }
    return y;
  }
  MatrixF64 heads_of(const FusedInput& input, const HeadSource& source) const {
    return product(input_of(input), source.weight, source.first_row, source.rows, source.bias);
  }
  // Rows of a table that was multiplied beforehand.
  MatrixF64 looked_up(const ProductTable& table) const {
    const std::vector<int32_t> index = looked_up_rows(table.index, batch_);
    const MatrixUse& use = network_.matrix(table.table);
    MatrixF64 x(rows(), use.columns);
    for (int64_t r = 0; r < rows(); ++r)
      for (int64_t c = 0; c < use.columns; ++c) x(r, c) = weight(table.table, index[static_cast<size_t>(r)], c);
    MatrixF64 y = product(x, table.product, 0, network_.matrix(table.product).rows, kAbsent);
    for (double& value : y.values()) value *= at(table.scale, 0);
    return y;
  }

  void expect_equal(const MatrixF64& found, ValueId id) const {
    const MatrixF64& expected = value(id);
    ASSERT_EQ(found.cols(), expected.cols());
    for (int64_t r = 0; r < found.rows(); ++r)
      for (int64_t c = 0; c < found.cols(); ++c)
        ASSERT_NEAR(found(r, c), expected(r, c), 1e-5 * (1 + std::abs(expected(r, c)))) << "row " << r << " of " << id;
  }
  // But for the rotation of each head's first `rotated` columns, which keeps their length.
  void expect_rotated(MatrixF64 found, ValueId id, int64_t head_dim, int64_t rotated) const {
    MatrixF64 expected = value(id);
    for (MatrixF64* rows : {&found, &expected})
      for (int64_t r = 0; r < rows->rows(); ++r)
        for (int64_t h = 0; h < rows->cols(); h += head_dim)
          for (int64_t k = 0; k < rotated / 2; ++k) {
            double &first = (*rows)(r, h + k), &second = (*rows)(r, h + rotated / 2 + k);
            first = std::hypot(first, second);
            second = 0;
          }
    for (int64_t r = 0; r < found.rows(); ++r)
      for (int64_t c = 0; c < found.cols(); ++c)
        ASSERT_NEAR(found(r, c), expected(r, c), 1e-5 * (1 + std::abs(expected(r, c)))) << "row " << r << " of " << id;
  }

  void check(const fused::Single&) const {}
  void check(const fused::Embed& e) const {
    const int64_t width = network_.width_of(e.start);
    MatrixF64 x(rows(), width);
    for (int64_t r = 0; r < rows(); ++r)
      for (int64_t c = 0; c < width; ++c) x(r, c) = weight(e.tokens, batch_.tokens[static_cast<size_t>(r)], c);
    if (e.pairs != kAbsent) {
      const MatrixF64 pairs = looked_up(fusion_.tables[static_cast<size_t>(e.pairs)]);
      for (size_t i = 0; i < x.values().size(); ++i) x.values()[i] += pairs.values()[i];
    }
    for (int64_t r = 0; r < rows(); ++r) norm(x.row(r), width, 1, static_cast<double>(e.epsilon));
    MatrixF64 start = x, stream = x;
    for (int64_t r = 0; r < rows(); ++r)
      for (int64_t c = 0; c < width; ++c) {
        const double gate = e.smear_gate == kAbsent ? 0 : at(e.smear_gate, c);
        start(r, c) = (1 - gate) * x(r, c) + gate * (r == 0 ? 0 : x(r - 1, c));
        stream(r, c) = at(e.first, c) * start(r, c) + at(e.second, c) * start(r, c);
      }
    expect_equal(start, e.start);
    expect_equal(stream, e.stream);
  }
  void check(const fused::Project& p) const {
    const int64_t d = p.attention.head_dim;
    const int64_t rotated = p.rotary == kAbsent ? 0 : network_.rotaries[static_cast<size_t>(p.rotary)].dims;
    MatrixF64 query = heads_of(p.input, p.query), key = heads_of(p.input, p.key), own = heads_of(p.input, p.value);
    for (MatrixF64* heads : {&query, &key})
      for (int64_t r = 0; r < rows(); ++r)
        for (int64_t h = 0; h < heads->cols() / d; ++h) {
          double* head = heads->row(r) + h * d;
          if (p.norm_epsilon > 0) norm(head, d, 1, static_cast<double>(p.norm_epsilon));
          for (int64_t c = 0; heads == &query && c < d; ++c) head[c] *= at(p.query_gain, h);
        }
    if (p.value_table != kAbsent) {
      const MatrixF64 table = looked_up(fusion_.tables[static_cast<size_t>(p.value_table)]);
      for (size_t i = 0; i < own.values().size(); ++i) own.values()[i] += at(p.value_scale, 0) * table.values()[i];
    }
    for (const Node& node : network_.nodes) {
      const auto* attention = std::get_if<op::Attention>(&node.operation);
      if (!attention || attention->cache != p.attention.cache) continue;
      EXPECT_EQ(node.inputs[0], p.queries);
      expect_rotated(query, node.inputs[0], d, rotated);
      expect_rotated(key, node.inputs[1], d, rotated);
      expect_equal(own, node.inputs[2]);
    }
  }
  void check(const fused::Attend& a) const {
    const Node& node = network_.nodes[network_.maker_of(a.output)];
    EXPECT_EQ(std::get<op::Attention>(node.operation).cache, a.attention.cache);
    EXPECT_EQ(node.inputs, (std::vector<ValueId>{a.query, a.key, a.value}));
  }
  void check(const fused::LinearAdd& a) const {
    MatrixF64 x = product(value(a.input), a.weight, 0, network_.matrix(a.weight).rows, a.bias);
    auto update = [&](auto body) {
      for (int64_t r = 0; r < x.rows(); ++r)
        for (int64_t c = 0; c < x.cols(); ++c) x(r, c) = body(r, c);
    };
    update([&](int64_t r, int64_t c) { return value(a.residual)(r, c) + at(a.scale, c) * x(r, c); });
    if (a.sum != kAbsent) expect_equal(x, a.sum);
    if (a.skipped != kAbsent)
      update([&](int64_t r, int64_t c) {
        const double weighted = at(a.skip_weight, c) * value(a.skipped)(r, c), gate = at(a.skip_gate, c);
        return a.skip_gate == kAbsent ? weighted + x(r, c) : (1 - gate) * weighted + gate * x(r, c);
      });
    if (a.mix_first != kAbsent)
      update([&](int64_t r, int64_t c) {
        return at(a.mix_first, c) * x(r, c) + at(a.mix_second, c) * value(a.start)(r, c);
      });
    expect_equal(x, a.output);
  }
  void check(const fused::LinearActivate& a) const {
    MatrixF64 y = product(input_of(a.input), a.weight, 0, network_.matrix(a.weight).rows, a.bias);
    for (double& value : y.values()) value = naive_activation(a.activation, value);
    expect_equal(y, a.output);
  }
  void check(const fused::LinearGate& g) const {
    const int64_t width = network_.width_of(g.output);
    const MatrixF64 gate = product(input_of(g.input), g.gate, 0, width, kAbsent);
    MatrixF64 y = product(input_of(g.input), g.up, 0, width, kAbsent);
    for (int64_t r = 0; r < y.rows(); ++r)
      for (int64_t c = 0; c < width; ++c) y(r, c) *= naive_activation(g.activation, gate(r, c));
    expect_equal(y, g.output);
  }

  const NetworkSample sample_ = GetParam().make();
  const Network& network_ = *sample_.weights->network;
  NaiveTensors tensors_ = naive_tensors(*sample_.weights);
  TokenBatch batch_ = window_batch(sample_.tokens(std::min<int64_t>(sample_.window, 23)));
  std::vector<MatrixF64> values_;
  Fusion fusion_;
};
INSTANTIATE_TEST_SUITE_P(Samples, FusionMeaning, ::testing::ValuesIn(network_recipes()), recipe_name);

TEST_P(FusionMeaning, IsThatOfTheNodes) {
  for (const Composite& composite : fusion_.composites)
    std::visit([&](const auto& work) { check(work); }, composite.work);
  expect_equal(input_of(fusion_.head), network_.head.hidden);
}

}  // namespace
}  // namespace thimble::fusion_meaning_test
