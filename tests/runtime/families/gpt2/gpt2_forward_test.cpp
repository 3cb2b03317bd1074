// gpt2_forward_test.cpp: the GPT-2 forward pass against the naive one (naive_gpt2.h) on windows, on parts of windows,
// piece by piece through a cache, and at the inputs of the linear layers; generation against whole windows.
#include "runtime/families/gpt2/gpt2_forward.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/base/parallel.h"
#include "runtime/base/random.h"
#include "runtime/cpu/backend_language_model.h"
#include "runtime/cpu/window_scores.h"
#include "tests/runtime/families/gpt2/naive_gpt2.h"
#include "tests/runtime/families/gpt2/random_gpt2.h"

namespace thimble {
namespace {

constexpr int64_t kWindow = 23;

// Rows `first`... of `expected` are the rows of `found`. Some 2^10 roundings lie between a token and a logit.
void expect_rows(ConstMatrixView found, const NaiveRows& expected, int64_t first) {
  ASSERT_EQ(found.rows, static_cast<int64_t>(expected.size()) - first);
  ASSERT_EQ(found.cols, static_cast<int64_t>(expected[0].size()));
  double largest = 0;
  for (const NaiveRow& row : expected)
    for (double value : row) largest = std::max(largest, std::abs(value));
  for (int64_t r = 0; r < found.rows; ++r)
    for (int64_t c = 0; c < found.cols; ++c)
      ASSERT_NEAR(found.row(r)[c], expected[static_cast<size_t>(first + r)][static_cast<size_t>(c)], largest * 0x1p-14)
          << "row " << r << " column " << c;
}

struct Gpt2Case {
  const char* name;
  bool tied;
  int64_t heads, layers;
};

class Gpt2ForwardTest : public testing::TestWithParam<Gpt2Case> {
 protected:
  static Gpt2Config config_of_case() {
    Gpt2Config config = small_gpt2_config();
    config.tie_embeddings = GetParam().tied;
    config.num_heads = GetParam().heads;
    config.num_layers = GetParam().layers;
    return config;
  }
  WindowScorer scorer() { return WindowScorer(std::make_unique<Gpt2Forward>(model_, *backend_, kWindow)); }

  Gpt2Config config_ = config_of_case();
  OwnedTensors tensors_ = random_gpt2_tensors(config_, 3);
  Gpt2Model model_ = random_gpt2_model(config_, 3);
  std::vector<uint16_t> tokens_ = random_tokens(kWindow, config_.vocab_size, 4);
  NaiveForward naive_ = naive_gpt2_forward(config_, views_of(tensors_), tokens_);
  std::unique_ptr<Backend> backend_ = make_cpu_backend();
};
INSTANTIATE_TEST_SUITE_P(Shapes, Gpt2ForwardTest,
                         testing::Values(Gpt2Case{"Tied", true, 4, 3}, Gpt2Case{"UntiedHead", false, 4, 3},
                                         Gpt2Case{"OneHead", true, 1, 2}, Gpt2Case{"OneLayer", true, 20, 1}),
                         [](const auto& test) { return test.param.name; });

TEST_P(Gpt2ForwardTest, LogitsMatchTheNaivePass) { expect_rows(scorer().logits(tokens_, 0), naive_.logits, 0); }

TEST_P(Gpt2ForwardTest, TheLastRowsAloneAreTheSame) {
  WindowScorer one = scorer();
  for (int64_t first : {int64_t{1}, kWindow / 2, kWindow - 1})
    expect_rows(one.logits(tokens_, first), naive_.logits, first);
}

struct Recorder final : LinearObserver {
  void on_linear_input(std::span<const std::string> weights, ConstMatrixView input) override {
    Matrix copy(input.rows, input.cols);
    for (int64_t r = 0; r < input.rows; ++r) std::copy(input.row(r), input.row(r) + input.cols, copy.row(r));
    for (const std::string& name : weights) EXPECT_TRUE(inputs.emplace(name, copy).second) << name << " came twice";
  }
  std::map<std::string, Matrix> inputs;
};

TEST_P(Gpt2ForwardTest, TheObserverSeesEachLinearInputOnce) {
  Recorder recorder;
  scorer().observe(tokens_, recorder);
  naive_.linear_inputs.erase(head_name(config_));
  for (const auto& [name, expected] : naive_.linear_inputs) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(recorder.inputs.contains(name));
    ASSERT_EQ(recorder.inputs.at(name).cols(), tensors_.at(name).shape[1]);
    expect_rows(recorder.inputs.at(name), expected, 0);
  }
  EXPECT_EQ(recorder.inputs.size(), naive_.linear_inputs.size());
}

TEST_P(Gpt2ForwardTest, TheHeadsInputIsSeenWithItsLogits) {
  Gpt2Forward forward(model_, *backend_, kWindow);
  KeyValueCache cache(*backend_, forward.cache_shape(), 1, kWindow, /*shared_layers=*/true);
  Recorder recorder;
  Matrix logits(kWindow, config_.vocab_size);
  forward.logits(forward.hidden_states(window_batch(tokens_), cache, 0), logits, &recorder);
  ASSERT_EQ(recorder.inputs.size(), 1u);
  expect_rows(recorder.inputs.at(head_name(config_)), naive_.linear_inputs.at(head_name(config_)), 0);
}

TEST_P(Gpt2ForwardTest, ThreadsDoNotChangeBits) {
  std::vector<std::vector<float>> results;
  for (int threads : {1, 3}) {
    ThreadLimit limit(threads);
    WindowScorer one = scorer();
    ConstMatrixView logits = one.logits(tokens_, 0);
    results.emplace_back(logits.data, logits.data + logits.rows * logits.cols);
  }
  EXPECT_EQ(results[1], results[0]);
}

// Several sequences in pieces of several positions through one cache, as one window each.
TEST_P(Gpt2ForwardTest, CachedPiecesOfABatchEqualWindows) {
  constexpr int64_t kSequences = 3;
  std::vector<std::vector<uint16_t>> tokens;
  std::vector<NaiveForward> expected;
  for (uint64_t s = 0; s < kSequences; ++s) {
    tokens.push_back(random_tokens(kWindow, config_.vocab_size, 20 + s));
    expected.push_back(naive_gpt2_forward(config_, views_of(tensors_), tokens.back()));
  }
  Gpt2Forward forward(model_, *backend_, kWindow);
  KeyValueCache cache(*backend_, forward.cache_shape(), kSequences, kWindow, /*shared_layers=*/false);
  int64_t done = 0;
  for (int64_t positions : {1, 2, 5, 1, 14}) {
    TokenBatch batch;
    batch.shape = {kSequences, positions, done};
    for (const auto& sequence : tokens)
      batch.tokens.insert(batch.tokens.end(), sequence.begin() + done, sequence.begin() + done + positions);
    batch.previous.resize(batch.tokens.size());  // not this family's
    Matrix logits(batch.shape.rows(), config_.vocab_size);
    forward.logits(forward.hidden_states(batch, cache, 0), logits);
    for (int64_t s = 0; s < kSequences; ++s) {
      const NaiveRows& all = expected[static_cast<size_t>(s)].logits;
      expect_rows(logits.view().block_rows(s * positions, positions),
                  NaiveRows(all.begin() + done, all.begin() + done + positions), 0);
    }
    done += positions;
  }
  EXPECT_EQ(done, kWindow);
}

// Replays generated text as one window: every token is the one that the window's logits give for its uniform number.
TEST_P(Gpt2ForwardTest, GeneratedTokensAreDrawnFromTheWindowsLogits) {
  std::unique_ptr<LanguageModel> model = make_cpu_language_model(model_, kWindow);
  EXPECT_EQ(model->vocab_size(), config_.vocab_size);
  EXPECT_EQ(model->context(), kWindow);
  SilentProgress silent;
  const TokenSequences all = model->generate_calibration({3, kWindow, 0.8, 11}, 0, 3, silent);
  std::vector<uint16_t> text = {4, 2};
  model->generate_text(text, kWindow - 2, 0.7, 9, [&, prompt = text](uint16_t token) {
    text.push_back(token);
    return true;
  });
  ASSERT_EQ(text.size(), static_cast<size_t>(kWindow));
  WindowScorer one = scorer();
  auto expect_drawn = [&](std::span<const uint16_t> tokens, int64_t first, double temperature,
                          const std::function<double(int64_t)>& uniform) {
    ConstMatrixView logits = one.logits(tokens, 0);
    for (int64_t p = first; p < kWindow; ++p)
      EXPECT_EQ(tokens[static_cast<size_t>(p)],
                sample_token({logits.row(p - 1), static_cast<size_t>(logits.cols)}, temperature, uniform(p)));
  };
  for (int64_t s = 0; s < 3; ++s)
    expect_drawn(all.sequence(s), 1, 0.8,
                 [&](int64_t p) { return uniform_at(11, static_cast<uint64_t>(s), static_cast<uint64_t>(p)); });
  expect_drawn(text, 2, 0.7, [&](int64_t p) { return uniform_at(9, 0, static_cast<uint64_t>(p - 2)); });
}

// The comparisons above can fail: each of these moves the logits by far more than the tolerance.
TEST(Gpt2Options, AllMatterToTheLogits) {
  const Gpt2Config config = small_gpt2_config();
  const OwnedTensors tensors = random_gpt2_tensors(config, 3);
  const std::vector<uint16_t> tokens = random_tokens(kWindow, config.vocab_size, 4);
  const NaiveRows expected = naive_gpt2_forward(config, views_of(tensors), tokens).logits;
  auto difference = [&](const Gpt2Config& other, const OwnedTensors& changed) {
    const NaiveRows found = naive_gpt2_forward(other, views_of(changed), tokens).logits;
    double largest = 0, change = 0;
    for (size_t p = 0; p < found.size(); ++p)
      for (size_t v = 0; v < found[p].size(); ++v) {
        largest = std::max(largest, std::abs(expected[p][v]));
        change = std::max(change, std::abs(found[p][v] - expected[p][v]));
      }
    return change / largest;
  };
  Gpt2Config heads = config, epsilon = config;
  heads.num_heads = 2;
  epsilon.norm_epsilon = 0.01;
  EXPECT_GT(difference(heads, tensors), 0x1p-10);
  EXPECT_GT(difference(epsilon, tensors), 0x1p-10);
  for (const auto& [name, tensor] : tensors) {
    OwnedTensors changed = tensors;
    std::vector<float> values = to_float32(tensor.view());
    for (float& value : values) value *= 1.25f;
    changed[name].bytes = from_float32(DType::kF32, values);
    EXPECT_GT(difference(config, changed), 0x1p-10) << name;
  }
}

}  // namespace
}  // namespace thimble
