// toy_decoder_test.cpp: the family of examples/family against a plain pass in float64, and all that follows from its
// description: errors, text, gradients.
#include "examples/family/toy_decoder.h"

#include <gtest/gtest.h>

#include "runtime/base/random.h"
#include "runtime/cpu/cpu_gradients.h"
#include "runtime/cpu/cpu_models.h"
#include "runtime/families/model_weights.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble::toy_decoder_test {
namespace {

using Rows = std::vector<std::vector<double>>;

class ToyDecoder : public ::testing::Test {
 protected:
  static constexpr int64_t kLength = 9;

  ToyDecoder() {
    uint64_t stream = 0;
    for (const auto& [name, shape, role] : toy_parameters(config_)) {
      std::vector<float> values(static_cast<size_t>(element_count(shape)));
      const double size = role == Role::kSmall ? 0.3 : 1 / std::sqrt(static_cast<double>(shape.back()));
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>((role == Role::kSmall ? 1 : 0) + size * (4 * uniform_at(1, stream, i) - 2));
      tensors_[name] = {DType::kF32, shape, from_float32(DType::kF32, values)};
      ++stream;
    }
  }

  Spec spec() const { return family_.resolve(json_, views_of(tensors_), {"config.json", "toy.safetensors"}); }
  std::vector<double> values(const std::string& name) const {
    const std::vector<float> stored = to_float32(tensors_.at(name).view());
    return {stored.begin(), stored.end()};
  }

  // The formulas, token by token.
  Rows linear(const Rows& x, const std::string& name) const {
    const std::vector<double> w = values(name);
    const auto rows = static_cast<size_t>(tensors_.at(name).shape[0]);
    Rows y(x.size(), std::vector<double>(rows));
    for (size_t p = 0; p < x.size(); ++p)
      for (size_t r = 0; r < rows; ++r)
        for (size_t k = 0; k < x[p].size(); ++k) y[p][r] += w[r * x[p].size() + k] * x[p][k];
    return y;
  }
  Rows norm(Rows x, const std::string& name) const {
    const std::vector<double> gain = values(name);
    for (std::vector<double>& row : x) {
      double squares = 0;
      for (double value : row) squares += value * value;
      const double inverse = 1 / std::sqrt(squares / static_cast<double>(row.size()) + config_.norm_epsilon);
      for (size_t c = 0; c < row.size(); ++c) row[c] *= inverse * gain[c];
    }
    return x;
  }
  Rows rotated(Rows x) const {
    const auto d = static_cast<size_t>(config_.head_dim()), half = d / 2;
    for (size_t p = 0; p < x.size(); ++p)
      for (size_t h = 0; h < x[p].size(); h += d)
        for (size_t k = 0; k < half; ++k) {
          const double angle = static_cast<double>(p) * std::pow(config_.rope_base, -2.0 * double(k) / double(d));
          const double a = x[p][h + k], b = x[p][h + half + k];
          x[p][h + k] = a * std::cos(angle) + b * std::sin(angle);
          x[p][h + half + k] = b * std::cos(angle) - a * std::sin(angle);
        }
    return x;
  }
  Rows attention(const Rows& q, const Rows& k, const Rows& v) const {
    const auto d = static_cast<size_t>(config_.head_dim()), heads = static_cast<size_t>(config_.heads);
    const size_t group = heads / static_cast<size_t>(config_.kv_heads);
    Rows y(q.size(), std::vector<double>(q[0].size()));
    for (size_t p = 0; p < q.size(); ++p)
      for (size_t h = 0; h < heads; ++h) {
        std::vector<double> weights(p + 1);
        double sum = 0;
        for (size_t j = 0; j <= p; ++j) {
          double score = 0;
          for (size_t c = 0; c < d; ++c) score += q[p][h * d + c] * k[j][h / group * d + c];
          sum += weights[j] = std::exp(score / std::sqrt(static_cast<double>(d)));
        }
        for (size_t j = 0; j <= p; ++j)
          for (size_t c = 0; c < d; ++c) y[p][h * d + c] += weights[j] / sum * v[j][h / group * d + c];
      }
    return y;
  }
  static Rows sum(Rows x, const Rows& a) {
    for (size_t p = 0; p < x.size(); ++p)
      for (size_t c = 0; c < x[p].size(); ++c) x[p][c] += a[p][c];
    return x;
  }
  Rows logits(std::span<const Token> tokens) const {
    const std::vector<double> table = values("embed.weight");
    const auto width = static_cast<size_t>(config_.width);
    Rows x;
    for (Token token : tokens) {
      const auto first = table.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(token) * width);
      x.emplace_back(first, first + static_cast<std::ptrdiff_t>(width));
    }
    for (int64_t i = 0; i < config_.layers; ++i) {
      Rows h = norm(x, toy_name(i, "norm1"));
      x = sum(x, linear(attention(rotated(linear(h, toy_name(i, "query"))), rotated(linear(h, toy_name(i, "key"))),
                                  linear(h, toy_name(i, "value"))),
                        toy_name(i, "out")));
      h = norm(x, toy_name(i, "norm2"));
      Rows wide = linear(h, toy_name(i, "gate"));
      const Rows up = linear(h, toy_name(i, "up"));
      for (size_t p = 0; p < wide.size(); ++p)
        for (size_t c = 0; c < wide[p].size(); ++c) wide[p][c] = wide[p][c] / (1 + std::exp(-wide[p][c])) * up[p][c];
      x = sum(x, linear(wide, toy_name(i, "down")));
    }
    return linear(norm(x, "norm.weight"), "embed.weight");
  }
  double loss(std::span<const Token> tokens) const {
    const Rows rows = logits(tokens.first(tokens.size() - 1));
    double loss = 0;
    for (size_t p = 0; p < rows.size(); ++p) {
      double sum = 0;
      for (double logit : rows[p]) sum += std::exp(logit);
      loss += std::log(sum) - rows[p][static_cast<size_t>(tokens[p + 1])];
    }
    return loss;
  }

  const ToyFamily family_;
  const ToyConfig config_{.vocab_size = 13,
                          .width = 16,
                          .layers = 2,
                          .mlp_width = 20,
                          .heads = 4,
                          .kv_heads = 2,
                          .rope_base = 100,
                          .norm_epsilon = 1e-5};
  const Json json_ = {
      {"architecture", "toy-decoder"}, {"heads", 4}, {"kv_heads", 2}, {"rope_base", 100}, {"norm_epsilon", 1e-5}};
  OwnedTensors tensors_;
  const std::vector<Token> tokens_ = random_tokens(kLength, 13, 5);
};

TEST_F(ToyDecoder, ScoresAreThoseOfThePlainPass) {
  const Spec found = spec();
  const std::unique_ptr<Scorer> scorer = make_cpu_scorer(weights_of(found, views_of(tensors_)), Numerics::kFp32, 16);
  Matrix rows(kLength, config_.vocab_size);
  scorer->log_probabilities(tokens_, rows);
  const Rows expected = logits(tokens_);
  for (size_t p = 0; p < expected.size(); ++p) {
    double total = 0;
    for (double logit : expected[p]) total += std::exp(logit);
    for (size_t v = 0; v < expected[p].size(); ++v)
      EXPECT_NEAR(rows(static_cast<int64_t>(p), static_cast<int64_t>(v)), expected[p][v] - std::log(total), 2e-5);
  }
}

TEST_F(ToyDecoder, AnArtifactsConfigIsReadAgain) {
  const Spec found = spec();
  EXPECT_EQ(found.config.at("width"), 16);
  const Spec again = family_.resolve(found.config, views_of(tensors_), {"artifact", "artifact"});
  EXPECT_EQ(canonical_json(again.config), canonical_json(found.config));
}

TEST_F(ToyDecoder, WhatDoesNotFitIsNamed) {
  OwnedTensors tensors = tensors_;
  tensors.erase(toy_name(1, "gate"));
  auto resolve = [&](const Json& config) {
    return family_.resolve(config, views_of(tensors), {"config.json", "toy.safetensors"});
  };
  expect_error<FormatError>([&] { resolve(json_); }, {"toy.safetensors", "'layers.1.gate.weight' is missing"});
  tensors = tensors_;
  Json config = json_;
  config["heads"] = 3;
  expect_error<FormatError>([&] { resolve(config); }, {"config.json", "'heads' is 3"});
}

TEST_F(ToyDecoder, WritesText) {
  const std::unique_ptr<Generator> generator =
      make_cpu_generator(weights_of(spec(), views_of(tensors_)), Numerics::kFp32, 16);
  SilentProgress progress;
  const TextScript script = uniform_script(config_.vocab_size, {3, 16, 0.8, 1});
  const TokenSequences text = generator->calibration(script, 0, 3, progress);
  for (Token token : text.tokens) EXPECT_LT(token, config_.vocab_size);
  EXPECT_EQ(text.tokens, generator->calibration(script, 0, 3, progress).tokens);
}

// Of every small tensor, against differences of the plain pass.
TEST_F(ToyDecoder, HasGradients) {
  struct NobodyLooks final : GradientObserver {
    void on_output_gradient(const std::string&, int64_t, ConstMatrixView, ConstMatrixView) override {}
    void on_lookup_gradient(const std::string&, std::span<const int32_t>, ConstMatrixView) override {}
  } observer;
  const std::shared_ptr<const Weights> weights = weights_of(spec(), views_of(tensors_));
  VectorGradients vectors;
  CpuGradients gradients(*weights, 16, /*for_gains=*/true);
  EXPECT_NEAR(gradients.run(tokens_, {}, observer, &vectors), loss(tokens_), 1e-4);
  for (const auto& [name, gradient] : stored_gradients(*weights->network, weights->small, vectors)) {
    const std::vector<float> before = to_float32(tensors_.at(name).view());
    for (size_t i = 0; i < gradient.size(); ++i) {
      auto loss_at = [&](float step) {
        std::vector<float> moved = before;
        moved[i] += step;
        tensors_.at(name).bytes = from_float32(DType::kF32, moved);
        return loss(tokens_);
      };
      const double expected = (loss_at(1e-3f) - loss_at(-1e-3f)) / 2e-3;
      EXPECT_NEAR(gradient[i], expected, 1e-3 * std::max(1.0, std::abs(expected))) << name << " [" << i << "]";
      tensors_.at(name).bytes = from_float32(DType::kF32, before);
    }
  }
}

}  // namespace
}  // namespace thimble::toy_decoder_test
