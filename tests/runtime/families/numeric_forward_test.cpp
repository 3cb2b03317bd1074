// numeric_forward_test.cpp: forward passes in numeric modes: each boundary is reached in either family; sf16 against a
// pass written here from the definition.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "runtime/cpu/cpu_pass.h"
#include "tests/runtime/families/family_models.h"
#include "tests/runtime/families/golf/random_model.h"
#include "tests/runtime/families/gpt2/random_gpt2.h"

namespace thimble::numeric_forward_test {
namespace {

constexpr int64_t kWindow = 21;

std::vector<float> logits_of(const Weights& weights, const NumericPolicy& policy, std::span<const Token> tokens) {
  Weights rounded = weights;
  round_weights(policy, rounded);
  CpuPass pass(rounded, kWindow, policy);
  const ConstMatrixView hidden = pass.run(window_batch(tokens));
  Matrix logits(hidden.rows, weights.network->vocabulary());
  pass.logits(hidden, logits);
  return {logits.values().begin(), logits.values().end()};
}

class NumericForward : public ::testing::TestWithParam<bool> {
 protected:
  static bool is_gpt2() { return GetParam(); }
  const std::shared_ptr<const Weights> weights_ =
      is_gpt2() ? random_gpt2_weights(small_gpt2_config(), 3) : random_golf_weights(small_golf_config());
  const int64_t vocabulary_ = weights_->network->vocabulary();
  const std::vector<Token> tokens_ = random_tokens(kWindow, vocabulary_, 4);
};
INSTANTIATE_TEST_SUITE_P(Families, NumericForward, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Gpt2" : "Golf"; });

// A policy that rounds at one boundary alone changes the logits, and only there is it felt.
TEST_P(NumericForward, EachBoundaryIsReached) {
  const std::vector<float> exact = logits_of(*weights_, {}, tokens_);
  for (size_t i = 0; i < kBoundaries; ++i) {
    const auto boundary = static_cast<Boundary>(i);
    SCOPED_TRACE(boundary_name(boundary));
    NumericPolicy policy;
    policy.roundings[i] = {Format::kQ115, Format::kFp32};
    const bool has_boundary = !is_gpt2() || boundary != Boundary::kCapped;
    EXPECT_EQ(logits_of(*weights_, policy, tokens_) != exact, has_boundary);
  }
}

TEST_P(NumericForward, EachScaleIsApplied) {
  const std::vector<float> exact = logits_of(*weights_, {}, tokens_);
  for (float NumericPolicy::*scale :
       {&NumericPolicy::logits_scale, &NumericPolicy::attention_scale, &NumericPolicy::mlp_scale}) {
    NumericPolicy policy;
    policy.*scale = 0.5f;
    const std::vector<float> found = logits_of(*weights_, policy, tokens_);
    EXPECT_NE(found, exact);
    if (scale != &NumericPolicy::logits_scale || !is_gpt2()) continue;
    for (size_t j = 0; j < exact.size(); ++j) EXPECT_EQ(found[j], exact[j] / 2);
  }
}

TEST_P(NumericForward, ModesDifferAndBf16AndFp16AreClose) {
  std::set<std::vector<float>> all;
  std::vector<float> exact = logits_of(*weights_, {}, tokens_);
  double largest = 0;
  for (float logit : exact) largest = std::max(largest, std::abs(double{logit}));
  for (Numerics numerics : kAllNumerics) {
    const std::vector<float> found = logits_of(*weights_, numeric_policy(numerics), tokens_);
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
    const std::vector<float> one = logits_of(*weights_, numeric_policy(numerics), tokens_);
    std::vector<Token> changed = tokens_;
    changed.back() = static_cast<Token>((changed.back() + 1) % vocabulary_);
    const std::vector<float> other = logits_of(*weights_, numeric_policy(numerics), changed);
    const auto before = static_cast<size_t>((kWindow - 1) * vocabulary_);
    EXPECT_TRUE(std::equal(one.begin(), one.begin() + static_cast<int64_t>(before), other.begin()));
    EXPECT_NE(one, other);
  }
}

// GPT-2 in sf16 from its definition: float64 between boundaries, codes by integers. Nothing of the program's.
class NaiveSf16 {
 public:
  NaiveSf16(const Gpt2Config& config, const OwnedTensors& tensors) : config_(config), tensors_(tensors) {}

  using Row = std::vector<double>;

  std::vector<Row> logits(std::span<const Token> tokens) const {
    const auto width = static_cast<size_t>(config_.model_dim);
    const Row words = stored(kGpt2TokenEmbedding), places = stored(kGpt2PositionEmbedding);
    std::vector<Row> x;
    for (size_t p = 0; p < tokens.size(); ++p) {
      Row row(width);
      for (size_t i = 0; i < width; ++i)
        row[i] = q115(q115(words[static_cast<size_t>(tokens[p]) * width + i]) + q115(places[p * width + i]));
      x.push_back(row);
    }
    for (int64_t i = 0; i < config_.num_layers; ++i) {
      const Gpt2LayerNames layer(i);
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
    for (const Row& row : x) all.push_back(product(norm(row, kGpt2FinalNorm), kGpt2TokenEmbedding));
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

  // A tensor in bf16.
  Row stored(const std::string& name) const {
    Row values;
    for (float value : to_float32(tensors_.at(name).view())) values.push_back(weight(double{value}));
    return values;
  }
  Row product(const Row& x, const std::string& name) const {
    const Row w = stored(name);
    Row y;
    for (size_t first = 0; first < w.size(); first += x.size()) {
      double sum = 0;
      for (size_t c = 0; c < x.size(); ++c) sum += x[c] * w[first + c];
      y.push_back(q131(sum));
    }
    return y;
  }
  Row affine(const Row& x, const std::string& name) const {
    Row y = product(x, name);
    const Row bias = stored(bias_name(name));
    for (size_t i = 0; i < y.size(); ++i) y[i] = q131(y[i] + bias[i]);
    return y;
  }
  Row norm(const Row& x, const std::string& name) const {
    const Row gain = stored(name), bias = stored(bias_name(name));
    double mean = 0, variance = 0;
    for (double value : x) mean += value / static_cast<double>(x.size());
    for (double value : x) variance += (value - mean) * (value - mean) / static_cast<double>(x.size());
    Row y;
    for (size_t i = 0; i < x.size(); ++i)
      y.push_back(q115((x[i] - mean) / std::sqrt(variance + config_.norm_epsilon) * gain[i] + bias[i]));
    return y;
  }
  Row attend(const std::vector<Row>& projected, size_t p) const {
    const auto width = static_cast<size_t>(config_.model_dim), d = static_cast<size_t>(config_.head_dim());
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

  const Gpt2Config& config_;
  const OwnedTensors& tensors_;
};

// Where a sum in float32 falls to the other side of a tie than in float64, a value moves by a step of bf16, and what is
// made of it by as much. That is rare.
TEST(Sf16, MatchesThePassWrittenFromItsDefinition) {
  const Gpt2Config config = small_gpt2_config();
  const OwnedTensors tensors = random_gpt2_tensors(config, 3);
  const std::vector<Token> tokens = random_tokens(kWindow, config.vocab_size, 4);
  const std::vector<float> found = logits_of(*gpt2_weights(config, tensors), numeric_policy(Numerics::kSf16), tokens);
  const std::vector<NaiveSf16::Row> expected = NaiveSf16(config, tensors).logits(tokens);
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

}  // namespace
}  // namespace thimble::numeric_forward_test
