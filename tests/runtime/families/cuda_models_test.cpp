// cuda_models_test.cpp: scoring and sampling on CUDA devices: every family and numeric mode against the CPU, shapes
// that meet tile edges, and bit for bit against itself.
#include "runtime/cuda/cuda_models.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/cpu/cpu_models.h"
#include "tests/runtime/cuda/kernels/cuda_device.h"
#include "tests/runtime/families/golf/naive_golf.h"
#include "tests/runtime/families/network_samples.h"

namespace thimble::cuda_models_test {
namespace {

using SharedWeights = std::shared_ptr<const Weights>;

#define SKIP_WITHOUT_DEVICE() \
  if (cuda_device_names().empty()) GTEST_SKIP() << "no CUDA device is here"

Matrix rows_of(Scorer& scorer, std::span<const Token> tokens, int64_t rows) {
  Matrix out(rows, scorer.vocabulary());
  std::ranges::fill(out.values(), NAN);
  scorer.log_probabilities(tokens, out);
  return out;
}

// Log-probabilities of a window's last rows, from a fresh model on the device, and on the CPU.
Matrix cuda_rows(const SharedWeights& weights, std::span<const Token> tokens, int64_t context, int64_t rows,
                 Numerics numerics = Numerics::kFp32) {
  return rows_of(*make_cuda_scorer(weights, 0, numerics, context), tokens, rows);
}
Matrix cpu_rows(const SharedWeights& weights, std::span<const Token> tokens, int64_t context, int64_t rows,
                Numerics numerics = Numerics::kFp32) {
  return rows_of(*make_cpu_scorer(weights, numerics, context), tokens, rows);
}

struct Differences {
  double largest = 0, mean = 0;
};
Differences differences(const Matrix& a, const Matrix& b) {
  Differences found;
  for (size_t i = 0; i < a.values().size(); ++i) {
    const double difference = std::abs(double{a.values()[i]} - b.values()[i]);
    if (!(difference <= found.largest)) found.largest = difference;  // NaN stays
    found.mean += difference / static_cast<double>(a.values().size());
  }
  return found;
}

class CudaModels : public ::testing::TestWithParam<NetworkRecipe> {
 protected:
  void SetUp() override { SKIP_WITHOUT_DEVICE(); }
};
INSTANTIATE_TEST_SUITE_P(Samples, CudaModels, ::testing::ValuesIn(network_recipes()), recipe_name);

TEST_P(CudaModels, MatchTheCpuInFp32) {
  const NetworkSample s = GetParam().make();
  const std::vector<Token> tokens = s.tokens(s.window);
  for (int64_t needed : {s.window, int64_t{1}, (s.window + 1) / 2}) {
    const Matrix expected = cpu_rows(s.weights, tokens, s.context, needed);
    EXPECT_LE(differences(cuda_rows(s.weights, tokens, s.context, needed), expected).largest, 1e-3) << needed;
  }
}

// Rounded values may fall to the other side where sums run in another order, and in bf16 and fp16 some are not stored
// at all; mistakes are of the size of the logits themselves, about 1.
TEST_P(CudaModels, AreNearTheCpuInEveryMode) {
  const NetworkSample s = GetParam().make();
  const std::vector<Token> tokens = s.tokens(s.window);
  const Matrix exact = cpu_rows(s.weights, tokens, s.context, s.window);
  for (Numerics numerics : kAllNumerics) {
    SCOPED_TRACE(numerics_name(numerics));
    const Matrix expected = cpu_rows(s.weights, tokens, s.context, s.window, numerics);
    const Matrix found = cuda_rows(s.weights, tokens, s.context, s.window, numerics);
    const double of_mode = differences(expected, exact).mean;
    EXPECT_LE(differences(found, expected).mean, 0.8 * of_mode + 0.02) << "the mode's own difference is " << of_mode;
  }
}

TEST(CudaGolf, MatchesTheNaivePass) {
  SKIP_WITHOUT_DEVICE();
  for (const GolfCase& golf : kGolfCases) {
    SCOPED_TRACE(golf.name);
    GolfConfig config = small_golf_config();
    golf.change(config);
    const OwnedTensors tensors = random_golf_tensors(config, 3);
    const std::vector<Token> tokens = random_tokens(golf.window, config.vocab_size, 4);
    const NaiveForward naive = naive_golf_forward(config, views_of(tensors), tokens, golf.context);
    const double allowed = 4 * tolerance(config, golf.window, largest_value(naive.logits));
    for (int64_t needed : {golf.window, int64_t{1}}) {
      const Matrix found = cuda_rows(golf_weights(config, tensors), tokens, golf.context, needed);
      for (int64_t r = 0; r < needed; ++r) {
        const NaiveRow& logits = naive.logits[static_cast<size_t>(golf.window - needed + r)];
        double sum = 0;
        for (double logit : logits) sum += std::exp(logit);
        for (size_t v = 0; v < logits.size(); ++v)
          ASSERT_NEAR(found(r, static_cast<int64_t>(v)), logits[v] - std::log(sum), allowed) << "row " << r;
      }
    }
  }
}

// Widths and windows around the edges of tiles: heads of every padded width, rows that are no multiple of anything.
struct Shape {
  int64_t head_dim, heads, kv_heads, window;
};

class CudaShapes : public ::testing::TestWithParam<Shape> {
 protected:
  static GolfConfig config() {
    GolfConfig c = small_golf_config();
    c.model_dim = GetParam().head_dim * GetParam().heads;
    c.num_heads = GetParam().heads;
    c.num_kv_heads = GetParam().kv_heads;
    c.vocab_size = 261;
    c.rope_dims = 4;
    return c;
  }
  SharedWeights weights_ = random_golf_weights(config(), 7);
  std::vector<Token> tokens_ = random_tokens(GetParam().window, 261, 8);
};

TEST_P(CudaShapes, Fp32MatchesTheCpu) {
  SKIP_WITHOUT_DEVICE();
  const int64_t window = GetParam().window;
  const Matrix expected = cpu_rows(weights_, tokens_, window, window);
  EXPECT_LE(differences(cuda_rows(weights_, tokens_, window, window), expected).largest, 2e-3);
}

TEST_P(CudaShapes, HalfPrecisionIsNearTheCpu) {
  SKIP_WITHOUT_DEVICE();
  const int64_t window = GetParam().window;
  const Matrix expected = cpu_rows(weights_, tokens_, window, window);
  // Five layers of rounding to 8 or 11 bits; mistakes are of the size of the logits themselves, about 1.
  for (auto [numerics, allowed] : {std::pair{Numerics::kBf16, 0.1}, {Numerics::kFp16, 0.02}})
    EXPECT_LE(differences(cuda_rows(weights_, tokens_, window, window, numerics), expected).mean, allowed)
        << numerics_name(numerics);
}

INSTANTIATE_TEST_SUITE_P(TileEdges, CudaShapes,
                         ::testing::Values(Shape{16, 4, 2, 1}, Shape{16, 4, 4, 63}, Shape{32, 2, 1, 64},
                                           Shape{40, 3, 3, 65}, Shape{64, 4, 2, 127}, Shape{64, 8, 4, 200},
                                           Shape{96, 2, 1, 129}, Shape{128, 2, 2, 130}, Shape{128, 1, 1, 300},
                                           Shape{136, 2, 1, 70}),
                         [](const ::testing::TestParamInfo<Shape>& test) {
                           return "Heads" + std::to_string(test.param.heads) + "x" +
                                  std::to_string(test.param.head_dim) + "Window" + std::to_string(test.param.window);
                         });

// Scores that a softmax without a running maximum could still hold, and ones that it could not.
TEST(CudaAttentionGains, HoldAny) {
  SKIP_WITHOUT_DEVICE();
  for (float gain : {0.0f, 8.0f, -8.5f, 30.0f}) {
    GolfConfig config = small_golf_config();
    config.model_dim = 256;
    config.num_heads = 4;
    config.num_kv_heads = 2;
    OwnedTensors tensors = random_golf_tensors(config, 12);
    for (auto& [name, tensor] : tensors)
      if (name.ends_with("q_gain"))
        tensor.bytes = from_float32(DType::kF32, std::vector<float>(static_cast<size_t>(config.num_heads), gain));
    const SharedWeights weights = golf_weights(config, tensors);
    const std::vector<Token> tokens = random_tokens(200, config.vocab_size, 13);
    const Matrix expected = cuda_rows(weights, tokens, 200, 200),
                 found = cuda_rows(weights, tokens, 200, 200, Numerics::kBf16);
    EXPECT_LE(differences(found, expected).mean, 0.3) << "gain " << gain;
  }
}

// Of both families, in every mode.
struct ModelCase {
  bool is_gpt2;
  Numerics numerics;
};

class CudaScores : public ::testing::TestWithParam<ModelCase> {
 protected:
  void SetUp() override { SKIP_WITHOUT_DEVICE(); }
  static SharedWeights weights_of(bool is_gpt2) {
    if (is_gpt2) {
      Gpt2Config config = small_gpt2_config();
      config.vocab_size = 300;
      config.num_positions = 256;
      config.model_dim = 64;
      return random_gpt2_weights(config, 9);
    }
    GolfConfig config = small_golf_config();
    config.model_dim = 128;
    config.vocab_size = 300;
    return random_golf_weights(config, 9);
  }
  // Most modes are slow, and the same whatever the length.
  bool is_fast() const { return GetParam().numerics == Numerics::kFp32 || GetParam().numerics == Numerics::kBf16; }
  // What greedy tokens may lie below the likeliest: other tiles, other sums.
  // How far a greedy token may be from the likeliest in another pass. Each of them; in NVFP4, where a value that is
  // staged moves by up to a quarter, their mean.
  void expect_likeliest(const std::vector<double>& distances) const {
    if (GetParam().numerics == Numerics::kNvfp4) {
      EXPECT_LE(std::accumulate(distances.begin(), distances.end(), 0.0) / static_cast<double>(distances.size()), 0.5);
      return;
    }
    for (size_t i = 0; i < distances.size(); ++i)
      ASSERT_LE(distances[i], GetParam().numerics == Numerics::kFp32 ? 1e-4 : 0.25) << i;
  }

  std::unique_ptr<Scorer> scorer(int64_t context) const {
    return make_cuda_scorer(weights_, 0, GetParam().numerics, context);
  }
  std::unique_ptr<Generator> generator(int64_t context) const {
    return make_cuda_generator(weights_, 0, GetParam().numerics, context, 8);
  }
  ScoreWindow window(size_t first, size_t length, size_t targets) const {
    std::span<const Token> all(tokens_);
    return {all.subspan(first, length), all.subspan(first + length - targets + 1, targets)};
  }
  static std::vector<float> scores(Scorer& model, const std::vector<ScoreWindow>& windows) {
    size_t count = 0;
    for (const ScoreWindow& w : windows) count += w.targets.size();
    std::vector<float> nll(count, NAN);
    model.score(windows, nll);
    return nll;
  }

  SharedWeights weights_ = weights_of(GetParam().is_gpt2);
  std::vector<Token> tokens_ = random_tokens(4096, 300, 10);
};

TEST_P(CudaScores, AreLogProbabilitiesOfTheTargets) {
  auto model = scorer(256);
  std::vector<float> nll = scores(*model, {window(0, 256, 256), window(64, 256, 64), window(100, 90, 1)});
  Matrix rows(64, 300);
  model->log_probabilities(window(64, 256, 64).inputs, rows);
  for (int64_t r = 0; r < 64; ++r)
    ASSERT_EQ(nll[static_cast<size_t>(256 + r)], -rows(r, tokens_[static_cast<size_t>(64 + 256 - 64 + 1 + r)])) << r;
}

TEST_P(CudaScores, DoNotDependOnTheBatch) {
  auto model = scorer(256);
  std::vector<ScoreWindow> windows = {window(0, 256, 256)};
  for (size_t i = 1; i < 40; ++i) windows.push_back(window(64 * i, 256, 64));
  windows.push_back(window(3000, 17, 5));
  std::vector<float> together = scores(*model, windows), alone;
  for (const ScoreWindow& w : windows) {
    std::vector<float> one = scores(*model, {w});
    alone.insert(alone.end(), one.begin(), one.end());
  }
  EXPECT_EQ(together, alone);
  EXPECT_EQ(together, scores(*scorer(256), windows));
}

TEST_P(CudaScores, LaterTokensChangeNothing) {
  auto model = scorer(256);
  std::vector<float> before = scores(*model, {window(0, 256, 256)});
  for (size_t i = 200; i < 257; ++i) tokens_[i] = (tokens_[i] + 1) % 300;
  std::vector<float> after = scores(*model, {window(0, 256, 256)});
  for (size_t i = 0; i < 199; ++i) ASSERT_EQ(before[i], after[i]) << i;
  if (!is_sf16(GetParam().numerics)) {  // whose logits of both targets may be the largest that there are
    EXPECT_NE(before[199], after[199]);
  }
}

TEST_P(CudaScores, GenerationFollowsTheModel) {
  const int64_t length = is_fast() ? 200 : 40;
  SilentProgress progress;
  CalibrationOptions greedy{5, length, 0, 3};
  TokenSequences found = generator(length)->calibration(uniform_script(300, greedy), 0, 5, progress);
  // Every greedy token is the likeliest by the window pass too, up to rounding.
  auto model = scorer(length);
  for (int64_t s = 0; s < 5; ++s) {
    Matrix rows(length, 300);
    model->log_probabilities(found.sequence(s), rows);
    std::vector<double> distances;
    for (int64_t p = 0; p + 1 < length; ++p) {
      float likeliest = *std::max_element(rows.row(p), rows.row(p) + 300);
      distances.push_back(likeliest - rows(p, found.sequence(s)[static_cast<size_t>(p + 1)]));
    }
    SCOPED_TRACE("sequence " + std::to_string(s));
    expect_likeliest(distances);
  }
}

TEST_P(CudaScores, GenerationIsTheSameForAnyBatch) {
  const int64_t length = is_fast() ? 150 : 40;
  auto model = generator(length);
  SilentProgress progress;
  const TextScript script = uniform_script(300, {7, length, 0.8, 11});
  TokenSequences all = model->calibration(script, 0, 7, progress);
  EXPECT_EQ(all.tokens, model->calibration(script, 0, 7, progress).tokens);
  TokenSequences some = model->calibration(script, 2, 3, progress);
  for (int64_t s = 0; s < 3; ++s) EXPECT_TRUE(std::ranges::equal(all.sequence(2 + s), some.sequence(s))) << s;
}

TEST_P(CudaScores, GenerationKeepsToItsScript) {
  const int64_t length = 40;
  auto model = generator(length);
  SilentProgress progress;
  TextScript script = uniform_script(300, {3, length, 0.8, 11});
  const TokenSequences free = model->calibration(script, 0, 3, progress);
  for (size_t p : {5, 6, 30}) script.given[static_cast<size_t>(length) + p] = static_cast<Token>(p);
  for (Token token = 0; token < 290; ++token) script.never_drawn.push_back(token);
  const TokenSequences found = model->calibration(script, 0, 3, progress);
  for (size_t i = 0; i < found.tokens.size(); ++i) {
    const bool is_drawn = script.given[i] == TextScript::kDrawn;
    EXPECT_TRUE(is_drawn ? found.tokens[i] >= 290 : found.tokens[i] == script.given[i]) << i;
  }
  EXPECT_NE(found.tokens, free.tokens);
}

TEST_P(CudaScores, ContinuesAPrompt) {
  std::vector<Token> text(tokens_.begin(), tokens_.begin() + 100);
  generator(150)->text(std::span(text).first(100), {50, 0, 1}, [&](Token token) {
    text.push_back(token);
    return true;
  });
  ASSERT_EQ(text.size(), 150u);
  Matrix rows(51, 300);
  scorer(150)->log_probabilities(text, rows);
  std::vector<double> distances;
  for (int64_t i = 0; i < 50; ++i)
    distances.push_back(*std::max_element(rows.row(i), rows.row(i) + 300) -
                        rows(i, text[static_cast<size_t>(100 + i)]));
  expect_likeliest(distances);
}

std::vector<ModelCase> model_cases() {
  std::vector<ModelCase> cases;
  for (bool is_gpt2 : {false, true})
    for (Numerics numerics : kAllNumerics) cases.push_back({is_gpt2, numerics});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Modes, CudaScores, ::testing::ValuesIn(model_cases()),
                         [](const ::testing::TestParamInfo<ModelCase>& test) {
                           std::string name = test.param.is_gpt2 ? "Gpt2" : "Golf";
                           for (char c : numerics_name(test.param.numerics)) name += c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace thimble::cuda_models_test
