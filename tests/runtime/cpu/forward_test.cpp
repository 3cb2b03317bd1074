// forward_test.cpp: the forward pass against the naive one (naive_golf.h) over every option of the model, on windows,
// on parts of windows, and at the inputs of the linear layers.
#include "runtime/cpu/forward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "runtime/base/parallel.h"
#include "runtime/cpu/window_scores.h"
#include "tests/runtime/families/golf/golf_cases.h"
#include "tests/runtime/families/golf/naive_golf.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble {
namespace {

// Rows `first`... of `expected` are the rows of `found`.
void expect_rows(ConstMatrixView found, const NaiveRows& expected, int64_t first, double allowed) {
  ASSERT_EQ(found.rows, static_cast<int64_t>(expected.size()) - first);
  ASSERT_EQ(found.cols, static_cast<int64_t>(expected[0].size()));
  for (int64_t r = 0; r < found.rows; ++r)
    for (int64_t c = 0; c < found.cols; ++c)
      ASSERT_NEAR(found.row(r)[c], expected[static_cast<size_t>(first + r)][static_cast<size_t>(c)], allowed)
          << "row " << r << " column " << c;
}

class Forward : public testing::TestWithParam<GolfCase> {
 protected:
  void SetUp() override {
    GetParam().change(config_);
    tensors_ = random_golf_tensors(config_, 3);
    model_ = bind_model(config_, views_of(tensors_));
    tokens_ = random_tokens(GetParam().window, config_.vocab_size, 4);
    naive_ = naive_golf_forward(config_, views_of(tensors_), tokens_, GetParam().context);
  }
  double logit_tolerance() const { return tolerance(config_, GetParam().window, largest_value(naive_.logits)); }

  ModelConfig config_ = small_golf_config();
  OwnedTensors tensors_;
  Model model_;
  std::vector<uint16_t> tokens_;
  NaiveForward naive_;
  std::unique_ptr<Backend> backend_ = make_cpu_backend();
};
INSTANTIATE_TEST_SUITE_P(Options, Forward, testing::ValuesIn(kGolfCases),
                         [](const auto& test) { return test.param.name; });

TEST_P(Forward, LogitsMatchTheNaivePass) {
  WindowScorer scorer(model_, *backend_, GetParam().context);
  expect_rows(scorer.logits(tokens_, 0), naive_.logits, 0, logit_tolerance());
}

TEST_P(Forward, LogProbabilitiesAreNormalisedLogits) {
  NaiveRows expected = naive_.logits;
  for (NaiveRow& row : expected) {
    double sum = 0;
    for (double logit : row) sum += std::exp(logit);
    for (double& logit : row) logit -= std::log(sum);
  }
  WindowScorer scorer(model_, *backend_, GetParam().context);
  expect_rows(scorer.log_probabilities(tokens_, 0), expected, 0, 2 * logit_tolerance());
}

TEST_P(Forward, TheLastRowsAloneAreTheSame) {
  WindowScorer scorer(model_, *backend_, GetParam().context);
  for (int64_t first : {int64_t{1}, GetParam().window / 2, GetParam().window - 1})
    if (first < GetParam().window) expect_rows(scorer.logits(tokens_, first), naive_.logits, first, logit_tolerance());
}

// A window scored before, longer and of other tokens, leaves nothing behind.
TEST_P(Forward, WindowsDoNotInfluenceEachOther) {
  WindowScorer fresh(model_, *backend_, GetParam().context), used(model_, *backend_, GetParam().context);
  used.logits(random_tokens(GetParam().context, config_.vocab_size, 77), 0);
  ConstMatrixView expected = fresh.logits(tokens_, 0), found = used.logits(tokens_, 0);
  for (int64_t r = 0; r < expected.rows; ++r)
    for (int64_t c = 0; c < expected.cols; ++c) ASSERT_EQ(found.row(r)[c], expected.row(r)[c]);
}

// The inputs of linear layers, by the names of all matrices that share one.
struct Recorder final : LinearObserver {
  void on_linear_input(std::span<const std::string> weights, ConstMatrixView input) override {
    Matrix copy(input.rows, input.cols);
    for (int64_t r = 0; r < input.rows; ++r) std::copy(input.row(r), input.row(r) + input.cols, copy.row(r));
    for (const std::string& name : weights) EXPECT_TRUE(inputs.emplace(name, copy).second) << name << " came twice";
  }
  std::map<std::string, Matrix> inputs;
};

TEST_P(Forward, TheObserverSeesEachLinearInputOnce) {
  Recorder recorder;
  WindowScorer(model_, *backend_, GetParam().context).observe(tokens_, recorder);
  for (const auto& [name, expected] : naive_.linear_inputs) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(recorder.inputs.contains(name));
    ASSERT_EQ(recorder.inputs.at(name).cols(), tensors_.at(name).shape[1]);
    expect_rows(recorder.inputs.at(name), expected, 0, tolerance(config_, GetParam().window, largest_value(expected)));
  }
  EXPECT_EQ(recorder.inputs.size(), naive_.linear_inputs.size());
}

TEST_P(Forward, ThreadsDoNotChangeBits) {
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2, 5}) {
    ThreadLimit limit(threads);
    WindowScorer scorer(model_, *backend_, GetParam().context);
    ConstMatrixView logits = scorer.logits(tokens_, 0);
    results.emplace_back(logits.data, logits.data + logits.rows * logits.cols);
  }
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

// Several sequences in pieces of several positions through one cache, as one window each.
TEST_P(Forward, CachedPiecesOfABatchEqualWindows) {
  constexpr int64_t kSequences = 3;
  std::vector<int64_t> pieces = {1, 2, 5, 1, 14};
  std::vector<std::vector<uint16_t>> tokens;
  for (uint64_t s = 0; s < kSequences; ++s)
    tokens.push_back(random_tokens(GetParam().window, config_.vocab_size, 20 + s));
  ForwardPass forward(model_, *backend_, GetParam().context);
  KeyValueCache cache(*backend_, cache_shape(config_), kSequences, GetParam().context, /*shared_layers=*/false);
  std::vector<NaiveForward> expected;
  for (const auto& sequence : tokens)
    expected.push_back(naive_golf_forward(config_, views_of(tensors_), sequence, GetParam().context));
  int64_t done = 0;
  for (int64_t piece : pieces) {
    int64_t positions = std::min(piece, GetParam().window - done);
    if (positions == 0) break;
    TokenBatch batch;
    batch.shape = {kSequences, positions, done};
    for (const auto& sequence : tokens)
      for (int64_t p = done; p < done + positions; ++p) {
        batch.tokens.push_back(sequence[static_cast<size_t>(p)]);
        batch.previous.push_back(p == 0 ? TokenBatch::kNoToken : sequence[static_cast<size_t>(p - 1)]);
      }
    Matrix logits(batch.shape.rows(), config_.vocab_size);
    forward.logits(forward.hidden_states(batch, cache, 0), logits);
    for (int64_t s = 0; s < kSequences; ++s) {
      const NaiveRows& all = expected[static_cast<size_t>(s)].logits;
      NaiveRows rows(all.begin() + done, all.begin() + done + positions);
      expect_rows(logits.view().block_rows(s * positions, positions), rows, 0, logit_tolerance());
    }
    done += positions;
  }
}

// The comparisons above can fail: with these weights every option that shapes do not prove moves the logits by far more
// than the tolerance.
TEST(ForwardOptions, AllMatterToTheLogits) {
  const ModelConfig config = small_golf_config();
  const OwnedTensors tensors = random_golf_tensors(config, 3);
  const std::vector<uint16_t> tokens = random_tokens(23, config.vocab_size, 4);
  const NaiveRows expected = naive_golf_forward(config, views_of(tensors), tokens, 23).logits;
  const std::pair<const char*, std::function<void(ModelConfig&)>> changes[] = {
      {"xsa_last_n", [](ModelConfig& c) { c.xsa_last_n = 1; }},
      {"ln_scale", [](ModelConfig& c) { c.ln_scale = false; }},
      {"rope_base", [](ModelConfig& c) { c.rope_base = 5000; }},
      {"rope_dims", [](ModelConfig& c) { c.rope_dims = 6; }},
      {"rope_train_seq_len", [](ModelConfig& c) { c.rope_train_seq_len = 16; }},
      {"logit_softcap", [](ModelConfig& c) { c.logit_softcap = 25; }},
      {"ve_layers",
       [](ModelConfig& c) {
         c.ve_layers = {4, 1};
       }},
      {"smear_gate", [](ModelConfig& c) { c.smear_gate = false; }},
      {"skip_gates", [](ModelConfig& c) { c.skip_gates = false; }},
  };
  for (const auto& [name, change] : changes) {
    ModelConfig other = config;
    change(other);
    const NaiveRows found = naive_golf_forward(other, views_of(tensors), tokens, 23).logits;
    double difference = 0;
    for (size_t p = 0; p < found.size(); ++p)
      for (size_t v = 0; v < found[p].size(); ++v)
        difference = std::max(difference, std::abs(found[p][v] - expected[p][v]));
    EXPECT_GT(difference, 10 * tolerance(config, 23, largest_value(expected))) << name;
  }
}

TEST(Bigram, BucketsOfKnownPairs) {
  EXPECT_EQ(bigram_bucket(5, TokenBatch::kNoToken, 3072), 3071);
  EXPECT_EQ(bigram_bucket(0, 0, 3072), 0);
  EXPECT_EQ(bigram_bucket(1, 2, 3072), (36313 ^ 54382) % 3071);
  // 36313 * 65535 = 2379772455 wraps to -1915194841, which stays negative under xor; the remainder is floored.
  EXPECT_EQ(bigram_bucket(65535, 0, 3072), 3071 - 1915194841 % 3071);
  // 27191 * 65535 = 1781962185 does not wrap.
  EXPECT_EQ(bigram_bucket(0, 65535, 3072), 1781962185 % 3071);
}

TEST(Bigram, BucketsStayBelowTheTable) {
  for (int64_t table : {2, 3, 53, 3072})
    for (int32_t token = 0; token < 65536; token += 97)
      for (int32_t previous = 0; previous < 65536; previous += 89) {
        int32_t bucket = bigram_bucket(token, previous, table);
        ASSERT_GE(bucket, 0);
        ASSERT_LT(bucket, table - 1);
      }
}

TEST(Rotary, TheBaseGrowsWithLongContexts) {
  ModelConfig config = small_golf_config();
  config.rope_dims = 16;
  config.rope_train_seq_len = 1024;
  EXPECT_EQ(config.rope_base_at(1), 10000);
  EXPECT_EQ(config.rope_base_at(1024), 10000);
  EXPECT_NEAR(config.rope_base_at(2048), 22081.79, 0.01);
}

TEST(Rotary, TablesHoldTheAnglesOfEachPosition) {
  ModelConfig config = small_golf_config();
  RotaryTable table = make_rotary_table(config, 64);
  ASSERT_EQ(table.cosine.rows(), 64);
  ASSERT_EQ(table.cosine.cols(), 2);
  for (int64_t p : {0, 1, 63}) {
    auto position = static_cast<double>(p);
    EXPECT_EQ(table.cosine(p, 0), static_cast<float>(std::cos(position)));
    EXPECT_EQ(table.sine(p, 0), static_cast<float>(std::sin(position)));
    EXPECT_EQ(table.cosine(p, 1), static_cast<float>(std::cos(position * 0.01)));
    EXPECT_EQ(table.sine(p, 1), static_cast<float>(std::sin(position * 0.01)));
  }
}

TEST(TokenBatchOfAWindow, KnowsThePreviousTokens) {
  TokenBatch batch = window_batch(std::vector<uint16_t>{7, 3, 9});
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{7, 3, 9}));
  EXPECT_EQ(batch.previous, (std::vector<int32_t>{TokenBatch::kNoToken, 7, 3}));
  EXPECT_EQ(batch.shape.sequences, 1);
  EXPECT_EQ(batch.shape.positions, 3);
  EXPECT_EQ(batch.shape.first_position, 0);
}

TEST(KeyValueCacheMemory, IsKeysAndValuesOfAllLayers) {
  const CacheShape shape = cache_shape(small_golf_config());
  EXPECT_EQ(KeyValueCache::bytes_per_sequence(shape, 100), 2u * 5 * 100 * 12 * sizeof(float));
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  KeyValueCache shared(*cpu, shape, 2, 10, true), separate(*cpu, shape, 2, 10, false);
  EXPECT_EQ(shared.layer(0).keys.data, shared.layer(4).keys.data);
  EXPECT_NE(separate.layer(0).keys.data, separate.layer(4).keys.data);
  EXPECT_NE(separate.layer(0).keys.data, separate.layer(0).values.data);
}

}  // namespace
}  // namespace thimble
