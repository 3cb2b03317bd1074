// cuda_forward_test.cpp: the CUDA forward pass, scoring and sampling: against the naive forward pass over every option
// of the model, against the CPU over shapes that meet tile edges, and bit for bit against itself.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/cpu/backend.h"
#include "runtime/cpu/window_scores.h"
#include "runtime/cuda/cuda_language_model.h"
#include "runtime/cuda/kernels/cuda_devices.h"
#include "tests/runtime/base/golden_files.h"
#include "tests/runtime/families/golf/golf_cases.h"

namespace thimble {
namespace {

#define SKIP_WITHOUT_DEVICE() \
  if (cuda_device_names().empty()) GTEST_SKIP() << "no CUDA device is here"

// All log-probabilities of a window, from a fresh CUDA model.
Matrix cuda_rows(const Model& model, std::span<const uint16_t> tokens, int64_t context, int64_t rows,
                 Numerics numerics = Numerics::kFp32) {
  Matrix out(rows, model.config.vocab_size);
  std::ranges::fill(out.values(), NAN);
  make_cuda_language_model(model, 0, numerics, context)->log_probabilities(tokens, out);
  return out;
}

double largest_difference(ConstMatrixView a, ConstMatrixView b) {
  double largest = 0;
  for (int64_t r = 0; r < a.rows; ++r)
    for (int64_t c = 0; c < a.cols; ++c) {
      double difference = std::abs(static_cast<double>(a.row(r)[c]) - b.row(r)[c]);
      if (!(difference <= largest)) largest = difference;  // NaN stays
    }
  return largest;
}

class CudaForward : public testing::TestWithParam<GolfCase> {};

TEST_P(CudaForward, MatchesTheNaiveOne) {
  SKIP_WITHOUT_DEVICE();
  ModelConfig config = small_golf_config();
  GetParam().change(config);
  OwnedTensors tensors = random_golf_tensors(config, 3);
  Model model = bind_model(config, views_of(tensors));
  std::vector<uint16_t> tokens = random_tokens(GetParam().window, config.vocab_size, 4);
  NaiveForward naive = naive_golf_forward(config, views_of(tensors), tokens, GetParam().context);
  double allowed = 4 * tolerance(config, GetParam().window, largest_value(naive.logits));
  for (int64_t needed : {GetParam().window, int64_t{1}}) {
    Matrix found = cuda_rows(model, tokens, GetParam().context, needed);
    for (int64_t r = 0; r < needed; ++r) {
      const NaiveRow& logits = naive.logits[static_cast<size_t>(GetParam().window - needed + r)];
      double sum = 0;
      for (double logit : logits) sum += std::exp(logit);
      for (size_t v = 0; v < logits.size(); ++v)
        ASSERT_NEAR(found(r, static_cast<int64_t>(v)), logits[v] - std::log(sum), allowed) << "row " << r;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Options, CudaForward, testing::ValuesIn(kGolfCases),
                         [](const testing::TestParamInfo<GolfCase>& test) { return std::string(test.param.name); });

// Widths and windows around the edges of tiles: heads of every padded width, rows that are no multiple of anything.
struct Shape {
  int64_t head_dim, heads, kv_heads, window;
};

class CudaShapes : public testing::TestWithParam<Shape> {
 protected:
  static ModelConfig config() {
    ModelConfig c = small_golf_config();
    c.model_dim = GetParam().head_dim * GetParam().heads;
    c.num_heads = GetParam().heads;
    c.num_kv_heads = GetParam().kv_heads;
    c.vocab_size = 261;
    c.rope_dims = 4;
    return c;
  }
  Model model_ = bind_model(config(), views_of(random_golf_tensors(config(), 7)));
  std::vector<uint16_t> tokens_ = random_tokens(GetParam().window, 261, 8);
};

TEST_P(CudaShapes, Fp32MatchesTheCpu) {
  SKIP_WITHOUT_DEVICE();
  std::unique_ptr<Backend> backend = make_cpu_backend();
  WindowScorer scorer(model_, *backend, GetParam().window);
  ConstMatrixView expected = scorer.log_probabilities(tokens_, 0);
  Matrix found = cuda_rows(model_, tokens_, GetParam().window, GetParam().window);
  EXPECT_LE(largest_difference(found, expected), 2e-3);
}

TEST_P(CudaShapes, Bf16IsNearTheCpu) {
  SKIP_WITHOUT_DEVICE();
  std::unique_ptr<Backend> backend = make_cpu_backend();
  WindowScorer scorer(model_, *backend, GetParam().window);
  ConstMatrixView expected = scorer.log_probabilities(tokens_, 0);
  Matrix found = cuda_rows(model_, tokens_, GetParam().window, GetParam().window, Numerics::kBf16);
  double sum = 0;
  for (int64_t r = 0; r < expected.rows; ++r)
    for (int64_t v = 0; v < expected.cols; ++v) sum += std::abs(static_cast<double>(found(r, v)) - expected.row(r)[v]);
  // Five layers of rounding to 8 bits; mistakes are of the size of the logits themselves, about 1.
  EXPECT_LE(sum / static_cast<double>(expected.rows * expected.cols), 0.1);
}

INSTANTIATE_TEST_SUITE_P(TileEdges, CudaShapes,
                         testing::Values(Shape{16, 4, 2, 1}, Shape{16, 4, 4, 63}, Shape{32, 2, 1, 64},
                                         Shape{40, 3, 3, 65}, Shape{64, 4, 2, 127}, Shape{64, 8, 4, 200},
                                         Shape{96, 2, 1, 129}, Shape{128, 2, 2, 130}, Shape{128, 1, 1, 300}),
                         [](const testing::TestParamInfo<Shape>& test) {
                           return "Heads" + std::to_string(test.param.heads) + "x" +
                                  std::to_string(test.param.head_dim) + "Window" + std::to_string(test.param.window);
                         });

// Scores that a softmax without a running maximum could still hold, and ones that it could not.
TEST(CudaAttention, HoldsAnyGain) {
  SKIP_WITHOUT_DEVICE();
  for (float gain : {0.0f, 8.0f, -8.5f, 30.0f}) {
    ModelConfig config = small_golf_config();
    config.model_dim = 256;
    config.num_heads = 4;
    config.num_kv_heads = 2;
    Model model = bind_model(config, views_of(random_golf_tensors(config, 12)));
    for (LayerWeights& layer : model.layers) std::ranges::fill(layer.q_gain, gain);
    std::vector<uint16_t> tokens = random_tokens(200, config.vocab_size, 13);
    Matrix expected = cuda_rows(model, tokens, 200, 200), found = cuda_rows(model, tokens, 200, 200, Numerics::kBf16);
    double sum = 0;
    for (int64_t r = 0; r < 200; ++r)
      for (int64_t v = 0; v < config.vocab_size; ++v)
        sum += std::abs(static_cast<double>(found(r, v)) - expected(r, v));
    EXPECT_LE(sum / static_cast<double>(200 * config.vocab_size), 0.3) << "gain " << gain;
  }
}

class CudaScores : public testing::TestWithParam<Numerics> {
 protected:
  CudaScores() {
    config_.model_dim = 128;
    config_.vocab_size = 300;
    model_ = bind_model(config_, views_of(random_golf_tensors(config_, 9)));
    tokens_ = random_tokens(4096, 300, 10);
  }
  ScoreWindow window(size_t first, size_t length, size_t targets) const {
    std::span all(tokens_);
    return {all.subspan(first, length), all.subspan(first + length - targets + 1, targets)};
  }
  std::vector<float> scores(LanguageModel& model, const std::vector<ScoreWindow>& windows) const {
    size_t count = 0;
    for (const ScoreWindow& w : windows) count += w.targets.size();
    std::vector<float> nll(count, NAN);
    model.score(windows, nll);
    return nll;
  }

  ModelConfig config_ = small_golf_config();
  Model model_;
  std::vector<uint16_t> tokens_;
};

TEST_P(CudaScores, AreLogProbabilitiesOfTheTargets) {
  SKIP_WITHOUT_DEVICE();
  auto model = make_cuda_language_model(model_, 0, GetParam(), 256);
  std::vector<float> nll = scores(*model, {window(0, 256, 256), window(64, 256, 64), window(100, 90, 1)});
  Matrix rows(64, 300);
  model->log_probabilities(window(64, 256, 64).inputs, rows);
  for (int64_t r = 0; r < 64; ++r)
    ASSERT_EQ(nll[static_cast<size_t>(256 + r)], -rows(r, tokens_[static_cast<size_t>(64 + 256 - 64 + 1 + r)])) << r;
}

TEST_P(CudaScores, DoNotDependOnTheBatch) {
  SKIP_WITHOUT_DEVICE();
  auto model = make_cuda_language_model(model_, 0, GetParam(), 256);
  std::vector<ScoreWindow> windows = {window(0, 256, 256)};
  for (size_t i = 1; i < 40; ++i) windows.push_back(window(64 * i, 256, 64));
  windows.push_back(window(3000, 17, 5));
  std::vector<float> together = scores(*model, windows), alone;
  for (const ScoreWindow& w : windows) {
    std::vector<float> one = scores(*model, {w});
    alone.insert(alone.end(), one.begin(), one.end());
  }
  EXPECT_EQ(together, alone);
  EXPECT_EQ(together, scores(*make_cuda_language_model(model_, 0, GetParam(), 256), windows));
}

TEST_P(CudaScores, LaterTokensChangeNothing) {
  SKIP_WITHOUT_DEVICE();
  auto model = make_cuda_language_model(model_, 0, GetParam(), 256);
  std::vector<float> before = scores(*model, {window(0, 256, 256)});
  for (size_t i = 200; i < 257; ++i) tokens_[i] = static_cast<uint16_t>((tokens_[i] + 1) % 300);
  std::vector<float> after = scores(*model, {window(0, 256, 256)});
  for (size_t i = 0; i < 199; ++i) ASSERT_EQ(before[i], after[i]) << i;
  EXPECT_NE(before[199], after[199]);
}

TEST_P(CudaScores, GenerationFollowsTheModel) {
  SKIP_WITHOUT_DEVICE();
  auto model = make_cuda_language_model(model_, 0, GetParam(), 200);
  SilentProgress progress;
  CalibrationOptions greedy{5, 200, 0, 3};
  TokenSequences found = model->generate_calibration(greedy, 0, 5, progress);
  // Every greedy token is the likeliest by the window pass too, up to rounding.
  for (int64_t s = 0; s < 5; ++s) {
    Matrix rows(200, 300);
    model->log_probabilities(found.sequence(s), rows);
    for (int64_t p = 0; p + 1 < 200; ++p) {
      float likeliest = *std::max_element(rows.row(p), rows.row(p) + 300);
      ASSERT_LE(likeliest - rows(p, found.sequence(s)[static_cast<size_t>(p + 1)]),
                GetParam() == Numerics::kFp32 ? 1e-4 : 0.25)
          << "sequence " << s << " position " << p;
    }
  }
}

TEST_P(CudaScores, GenerationIsTheSameForAnyBatch) {
  SKIP_WITHOUT_DEVICE();
  auto model = make_cuda_language_model(model_, 0, GetParam(), 150);
  SilentProgress progress;
  CalibrationOptions options{7, 150, 0.8, 11};
  TokenSequences all = model->generate_calibration(options, 0, 7, progress);
  EXPECT_EQ(all.tokens, model->generate_calibration(options, 0, 7, progress).tokens);
  TokenSequences some = model->generate_calibration(options, 2, 3, progress);
  for (int64_t s = 0; s < 3; ++s) EXPECT_TRUE(std::ranges::equal(all.sequence(2 + s), some.sequence(s))) << s;
}

TEST_P(CudaScores, ContinuesAPrompt) {
  SKIP_WITHOUT_DEVICE();
  auto model = make_cuda_language_model(model_, 0, GetParam(), 150);
  std::vector<uint16_t> text(tokens_.begin(), tokens_.begin() + 100);
  model->generate_text(std::span(text).first(100), 50, 0, 1, [&](uint16_t token) {
    text.push_back(token);
    return true;
  });
  ASSERT_EQ(text.size(), 150u);
  Matrix rows(51, 300);
  model->log_probabilities(text, rows);
  for (int64_t i = 0; i < 50; ++i)
    EXPECT_LE(*std::max_element(rows.row(i), rows.row(i) + 300) - rows(i, text[static_cast<size_t>(100 + i)]),
              GetParam() == Numerics::kFp32 ? 1e-4 : 0.25)
        << i;
}

INSTANTIATE_TEST_SUITE_P(Numerics, CudaScores, testing::Values(Numerics::kFp32, Numerics::kBf16),
                         [](const testing::TestParamInfo<Numerics>& test) {
                           return test.param == Numerics::kFp32 ? "Fp32" : "Bf16";
                         });

TEST(CudaGolden, Golf30mLossesMatch) {
  SKIP_WITHOUT_DEVICE();
  if (!file_exists(shared_data("golf30m/golden.safetensors"))) GTEST_SKIP() << "golden checkpoints are not here";
  Model model = load_golden_model("golf30m");
  GoldenFile golden(shared_data("golf30m/golden.safetensors"));
  std::vector<uint16_t> tokens = golden.tokens("golden_tokens");
  for (auto [numerics, name, most, mean] :
       {std::tuple{Numerics::kFp32, "nll_fp32", 2e-4, 2e-5}, {Numerics::kBf16, "nll_fp32", 0.5, 0.02}}) {
    std::vector<float> expected = golden.floats(name);
    std::vector<ScoreWindow> windows;
    for (size_t w = 0; w < 8; ++w)
      windows.push_back({std::span(tokens).subspan(w * 2048, 2048), std::span(tokens).subspan(w * 2048 + 1, 2048)});
    std::vector<float> nll(8 * 2048, NAN);
    make_cuda_language_model(model, 0, numerics, 2048)->score(windows, nll);
    double largest = 0, sum = 0, bias = 0;
    for (size_t i = 0; i < nll.size(); ++i) {
      double difference = static_cast<double>(nll[i]) - expected[i];
      if (!(std::abs(difference) <= largest)) largest = std::abs(difference);
      sum += std::abs(difference);
      bias += difference;
    }
    auto count = static_cast<double>(nll.size());
    std::cout << "largest " << largest << ", mean " << sum / count << ", bias " << bias / count << "\n";
    EXPECT_LE(largest, most);
    EXPECT_LE(sum / count, mean);
  }
}

}  // namespace
}  // namespace thimble
