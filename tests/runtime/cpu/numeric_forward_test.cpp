// numeric_forward_test.cpp: forward passes in numeric modes: each boundary is reached in either family; sf16 against a
// pass written here from the definition; bf16 against the losses of the original in bf16.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "runtime/cpu/backend_language_model.h"
#include "runtime/cpu/numeric_backend.h"
#include "runtime/families/any_model.h"
#include "tests/runtime/base/golden_files.h"
#include "tests/runtime/families/gpt2/random_gpt2.h"

namespace thimble {
namespace {

constexpr int64_t kWindow = 21;

std::vector<float> logits_of(const AnyModel& model, const NumericPolicy& policy, std::span<const uint16_t> tokens) {
  AnyModel rounded = model;
  std::visit([&](auto& m) { round_weights(policy, m); }, rounded);
  std::unique_ptr<Backend> backend = make_numeric_backend(make_cpu_backend(), policy, nvfp4_weights(rounded));
  std::unique_ptr<WindowScorer> scorer = make_window_scorer(rounded, *backend, kWindow);
  ConstMatrixView rows = scorer->logits(tokens, 0);
  return {rows.data, rows.data + rows.rows * rows.cols};
}

class NumericForward : public testing::TestWithParam<bool> {
 protected:
  bool is_gpt2() const { return GetParam(); }
  AnyModel model_ = is_gpt2() ? AnyModel(random_gpt2_model(small_gpt2_config(), 3))
                              : AnyModel(random_golf_model(small_golf_config()));
  std::vector<uint16_t> tokens_ = random_tokens(kWindow, vocab_size(config_of(model_)), 4);
};
INSTANTIATE_TEST_SUITE_P(Families, NumericForward, testing::Bool(),
                         [](const auto& test) { return test.param ? "Gpt2" : "Golf"; });

TEST_P(NumericForward, NothingIsWrappedInFp32) {
  std::unique_ptr<Backend> cpu = make_cpu_backend();
  const Backend* address = cpu.get();
  EXPECT_EQ(make_numeric_backend(std::move(cpu), numeric_policy(Numerics::kFp32)).get(), address);
}

// A policy that rounds at one boundary alone changes the logits, and only there is it felt.
TEST_P(NumericForward, EachBoundaryIsReached) {
  const std::vector<float> exact = logits_of(model_, {}, tokens_);
  for (size_t i = 0; i < kBoundaries; ++i) {
    const auto boundary = static_cast<Boundary>(i);
    SCOPED_TRACE(boundary_name(boundary));
    NumericPolicy policy;
    policy.roundings[i] = {Format::kQ115, Format::kFp32};
    const bool has_boundary = !is_gpt2() || boundary != Boundary::kCapped;
    EXPECT_EQ(logits_of(model_, policy, tokens_) != exact, has_boundary);
  }
}

TEST_P(NumericForward, EachScaleIsApplied) {
  const std::vector<float> exact = logits_of(model_, {}, tokens_);
  for (float NumericPolicy::*scale :
       {&NumericPolicy::logits_scale, &NumericPolicy::attention_scale, &NumericPolicy::mlp_scale}) {
    NumericPolicy policy;
    policy.*scale = 0.5f;
    const std::vector<float> found = logits_of(model_, policy, tokens_);
    EXPECT_NE(found, exact);
    if (scale != &NumericPolicy::logits_scale || !is_gpt2()) continue;
    for (size_t j = 0; j < exact.size(); ++j) EXPECT_EQ(found[j], exact[j] / 2);
  }
}

TEST_P(NumericForward, ModesDifferAndBf16AndFp16AreClose) {
  std::set<std::vector<float>> all;
  std::vector<float> exact = logits_of(model_, {}, tokens_);
  double largest = 0;
  for (float logit : exact) largest = std::max(largest, std::abs(double{logit}));
  for (Numerics numerics : kAllNumerics) {
    const std::vector<float> found = logits_of(model_, numeric_policy(numerics), tokens_);
    all.insert(found);
    double difference = 0;
    for (size_t i = 0; i < exact.size(); ++i) difference = std::max(difference, std::abs(double{found[i]} - exact[i]));
    if (numerics == Numerics::kBf16) {
      EXPECT_LT(difference, 0.1 * largest);
    } else if (numerics == Numerics::kFp16) {
      EXPECT_LT(difference, 0.0125 * largest);
    }
    for (float logit : found) ASSERT_TRUE(std::isfinite(logit)) << numerics_name(numerics);
  }
  EXPECT_EQ(all.size(), kAllNumerics.size());
}

// A score does not depend on what follows it: NVFP4's scales are a row's own.
TEST_P(NumericForward, EveryModeIsCausal) {
  for (Numerics numerics : kAllNumerics) {
    SCOPED_TRACE(numerics_name(numerics));
    const std::vector<float> one = logits_of(model_, numeric_policy(numerics), tokens_);
    std::vector<uint16_t> changed = tokens_;
    changed.back() = static_cast<uint16_t>((changed.back() + 1) % vocab_size(config_of(model_)));
    const std::vector<float> other = logits_of(model_, numeric_policy(numerics), changed);
    const auto before = static_cast<size_t>((kWindow - 1) * vocab_size(config_of(model_)));
    EXPECT_TRUE(std::equal(one.begin(), one.begin() + static_cast<int64_t>(before), other.begin()));
    EXPECT_NE(one, other);
  }
}

// GPT-2 in sf16 from its definition: float64 between boundaries, codes by integers. Nothing of the program's.
class NaiveSf16 {
 public:
  explicit NaiveSf16(const Gpt2Model& model) : model_(model) {}

  using Row = std::vector<double>;

  std::vector<Row> logits(std::span<const uint16_t> tokens) const {
    const Gpt2Config& c = model_.config;
    const auto width = static_cast<size_t>(c.model_dim);
    std::vector<Row> x;
    for (size_t p = 0; p < tokens.size(); ++p) {
      Row row(width);
      for (size_t i = 0; i < width; ++i)
        row[i] = q115(q115(weight(model_.token_embedding(tokens[p], static_cast<int64_t>(i)))) +
                      q115(weight(model_.position_embedding(static_cast<int64_t>(p), static_cast<int64_t>(i)))));
      x.push_back(row);
    }
    for (const Gpt2Layer& layer : model_.layers) {
      std::vector<Row> projected;
      for (const Row& row : x) projected.push_back(affine(norm(row, layer.attention_norm), layer.query_key_value));
      for (size_t p = 0; p < x.size(); ++p) add(affine(attend(projected, p), layer.attention_output), x[p]);
      for (Row& row : x) {
        Row wide = affine(norm(row, layer.mlp_norm), layer.up);
        for (double& z : wide) z = q115(z / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (z + 0.044715 * z * z * z))));
        add(affine(wide, layer.down), row);
      }
    }
    std::vector<Row> all;
    for (const Row& row : x) all.push_back(product(norm(row, model_.final_norm), model_.token_embedding));
    return all;
  }

 private:
  // In bf16: 8 significant bits, ties to even.
  static double weight(double x) {
    if (x == 0) return 0;
    const double step = std::ldexp(1.0, std::ilogb(x) - 7);
    return std::nearbyint(x / step) * step;
  }
  static double fixed(double x, double scale) {
    const double limit = double{0.999f};
    return std::nearbyint(std::clamp(x, -limit, limit) * scale) / scale;
  }
  static double q115(double x) { return weight(fixed(x, 32768)); }
  static double q131(double x) { return q115(fixed(x, 2147483648.0)); }

  static Row product(const Row& x, const Matrix& w) {
    Row y;
    for (int64_t r = 0; r < w.rows(); ++r) {
      double sum = 0;
      for (int64_t c = 0; c < w.cols(); ++c) sum += x[static_cast<size_t>(c)] * weight(w(r, c));
      y.push_back(q131(sum));
    }
    return y;
  }
  static Row affine(const Row& x, const AffineWeights& w) {
    Row y = product(x, w.weight);
    for (size_t i = 0; i < y.size(); ++i) y[i] = q131(y[i] + weight(w.bias[i]));
    return y;
  }
  Row norm(const Row& x, const NormWeights& w) const {
    double mean = 0, variance = 0;
    for (double value : x) mean += value / static_cast<double>(x.size());
    for (double value : x) variance += (value - mean) * (value - mean) / static_cast<double>(x.size());
    Row y;
    for (size_t i = 0; i < x.size(); ++i)
      y.push_back(q115((x[i] - mean) / std::sqrt(variance + model_.config.norm_epsilon) * weight(w.weight[i]) +
                       weight(w.bias[i])));
    return y;
  }
  Row attend(const std::vector<Row>& projected, size_t p) const {
    const auto width = static_cast<size_t>(model_.config.model_dim), d = static_cast<size_t>(model_.config.head_dim());
    Row y(width);
    for (size_t head = 0; head < width; head += d) {
      Row weights;
      double sum = 0;
      for (size_t k = 0; k <= p; ++k) {
        double score = 0;
        for (size_t i = 0; i < d; ++i) score += projected[p][head + i] * projected[k][width + head + i];
        weights.push_back(std::exp(q131(score) / std::sqrt(static_cast<double>(d))));
        sum += weights.back();
      }
      for (size_t k = 0; k <= p; ++k)
        for (size_t i = 0; i < d; ++i) y[head + i] += q115(weights[k] / sum) * projected[k][2 * width + head + i];
      for (size_t i = 0; i < d; ++i) y[head + i] = q131(y[head + i]);
    }
    return y;
  }
  static void add(const Row& branch, Row& x) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = q115(x[i] + branch[i]);
  }

  const Gpt2Model& model_;
};

// Where a sum in float32 falls to the other side of a tie than in float64, a value moves by a step of bf16, and what is
// made of it by as much. That is rare.
TEST(Sf16, MatchesThePassWrittenFromItsDefinition) {
  Gpt2Model model = random_gpt2_model(small_gpt2_config(), 3);
  const std::vector<uint16_t> tokens = random_tokens(kWindow, model.config.vocab_size, 4);
  const std::vector<float> found = logits_of(model, numeric_policy(Numerics::kSf16), tokens);
  const std::vector<NaiveSf16::Row> expected = NaiveSf16(model).logits(tokens);
  size_t equal = 0, inside = 0;
  for (size_t p = 0; p < expected.size(); ++p)
    for (size_t v = 0; v < expected[p].size(); ++v) {
      const double one = expected[p][v], other = found[p * expected[p].size() + v];
      equal += one == other;
      inside += std::abs(one) < 0.99;
      EXPECT_NEAR(one, other, 0.05);
    }
  EXPECT_GT(inside, found.size() / 10);  // not all are clamped
  EXPECT_GE(static_cast<double>(equal), 0.95 * static_cast<double>(found.size()));
}

// The original rounds elsewhere within operations, so that single losses differ; their mean hardly does.
TEST(Bf16, MeanLossIsThatOfTheOriginalInBf16) {
  if (!file_exists(shared_data("golf30m/golden.safetensors"))) GTEST_SKIP() << "golden checkpoints are not here";
  GoldenFile golden(shared_data("golf30m/golden.safetensors"));
  const std::vector<uint16_t> tokens = golden.tokens("golden_tokens");
  const std::vector<float> expected = golden.floats("nll_bf16");
  const AnyModel model = rounded_model(load_golden_model("golf30m"), Numerics::kBf16);
  std::unique_ptr<Backend> backend = make_numeric_backend(make_cpu_backend(), numeric_policy(Numerics::kBf16));
  std::unique_ptr<WindowScorer> scorer = make_window_scorer(model, *backend, 2048);
  ConstMatrixView rows = scorer->log_probabilities(std::span(tokens).first(2048), 0);
  double found_mean = 0, mean = 0;
  for (int64_t p = 0; p < 2048; ++p) {
    found_mean -= double{rows.row(p)[tokens[static_cast<size_t>(p) + 1]]} / 2048;
    mean += double{expected[static_cast<size_t>(p)]} / 2048;
  }
  EXPECT_NEAR(found_mean, mean, 0.005);
}

}  // namespace
}  // namespace thimble
