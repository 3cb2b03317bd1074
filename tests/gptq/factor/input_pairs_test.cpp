// input_pairs_test.cpp: what a layer reads in two models, and the weights that make up for the difference.
#include "gptq/factor/input_pairs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "runtime/cpu/cpu_pass.h"
#include "runtime/families/golf/golf_layout.h"
#include "tests/gptq/factor/all_pairs.h"
#include "tests/gptq/factor/joint_hessian.h"
#include "tests/gptq/statistics/gptq_samples.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/families/golf/random_model.h"
#include "tests/runtime/ops/changed_matrix.h"
#include "tests/support/thread_ranks.h"

namespace thimble::input_pairs_test {
namespace {

// Keeps the inputs of one layer, sequence after sequence.
class Keeper final : public LinearObserver {
 public:
  explicit Keeper(std::string layer) : layer_(std::move(layer)) {}
  void on_linear_input(std::span<const std::string> layers, ConstMatrixView x) override {
    if (layers[0] != layer_) return;
    for (int64_t t = 0; t < x.rows; ++t) rows.emplace_back(x.row(t), x.row(t) + x.cols);
  }
  std::vector<std::vector<float>> rows;

 private:
  std::string layer_;
};

constexpr int64_t kSequences = 3, kLength = 17;

// One matrix on the CPU.
Matrix shifted(const Matrix& weights, const InputPair& pair, double damping, double strength,
               const std::string& layer = "layer") {
  const StoredMatrixView view = weights;
  return shift_weights({&view, 1}, store_in_memory(pair), damping, strength, layer, Device{}).front();
}

std::vector<std::vector<float>> inputs_of(const Weights& model, const TokenSequences& tokens,
                                          const std::string& layer) {
  CpuPass pass(model, kLength);
  Keeper keeper(layer);
  for (int64_t s = 0; s < kSequences; ++s)
    pass.run(window_batch(tokens.sequence(s).first(static_cast<size_t>(kLength - 1))), nullptr, 0, &keeper);
  return keeper.rows;
}

TokenSequences some_tokens(const Weights& model) {
  constexpr int64_t kCount = kSequences + 1;
  return {kCount, kLength, random_tokens(kCount * kLength, model.network->vocabulary(), 6)};
}

std::shared_ptr<const Weights> with_wider_first_layer(const Weights& model) {
  Weights wider = model;
  scale_matrix(wider, wider.network->id_of(LayerNames(0).up), 1.25F);
  return std::make_shared<const Weights>(std::move(wider));
}

LinearInput input_of(const Weights& model, const std::string& first_reader) {
  for (const LinearInput& input : inputs_of_layers(*model.network))
    if (model.network->matrix(input.readers[0]).name == first_reader) return input;
  ADD_FAILURE() << first_reader << " reads no input first";
  return {};
}

TEST(InputPairs, AreMeansOverWhatBothModelsRead) {
  const auto original = random_golf_weights(small_golf_config(), 3);
  const auto changed = with_wider_first_layer(*original);
  const TokenSequences tokens = some_tokens(*original);
  const LayerNames second(1);
  const InputPair pair = make_input_pairs(original, changed, Device{}, tokens, kSequences)
                             ->collect(input_of(*original, second.query))
                             .on_host();

  const auto x = inputs_of(*original, tokens, second.query), y = inputs_of(*changed, tokens, second.query);
  ASSERT_EQ(x.size(), kSequences * (kLength - 1));
  const auto columns = static_cast<int64_t>(x[0].size());
  ASSERT_EQ(pair.hessian.size(), columns);
  double largest = 0;
  for (int64_t i = 0; i < columns; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      const auto a = static_cast<size_t>(i), b = static_cast<size_t>(j);
      double second_moment = 0, drift = 0;
      for (size_t t = 0; t < x.size(); ++t) {
        second_moment += double{y[t][a]} * y[t][b] / static_cast<double>(x.size());
        drift += (double{x[t][a]} - y[t][a]) * y[t][b] / static_cast<double>(x.size());
      }
      EXPECT_NEAR(pair.hessian(i, j), second_moment, 1e-5);
      EXPECT_NEAR(pair.drift(i, j), drift, 1e-5);
      largest = std::max(largest, std::abs(drift));
    }
  EXPECT_GT(largest, 1e-3);  // there is something to see
}

TEST(InputPairs, OfEqualModelsHaveNoDrift) {
  const auto model = random_golf_weights(small_golf_config(), 3);
  const TokenSequences tokens = some_tokens(*model);
  const std::string layer = LayerNames(0).down;
  const InputPair pair =
      make_input_pairs(model, model, Device{}, tokens, kSequences)->collect(input_of(*model, layer)).on_host();
  for (double value : pair.drift.values()) EXPECT_EQ(value, 0);
  const Matrix weights = random_matrix(3, pair.hessian.size(), 1);
  EXPECT_EQ(shifted(weights, pair, 0.01, 1, layer).values()[0], weights.values()[0]);
}

TEST(InputPairs, SeeWhatWasReplaced) {
  const auto original = random_golf_weights(small_golf_config(), 3);
  const auto changed = with_wider_first_layer(*original);
  const TokenSequences tokens = some_tokens(*original);
  const LayerNames first(0);
  const std::unique_ptr<InputPairs> pairs = make_input_pairs(original, original, Device{}, tokens, kSequences);
  pairs->collect(input_of(*original, first.up));
  pairs->replace(first.up, changed->matrix(changed->network->id_of(first.up)));
  const LinearInput next = input_of(*original, first.down);
  const InputPair pair = pairs->collect(next).on_host();
  const InputPair expected = make_input_pairs(original, changed, Device{}, tokens, kSequences)->collect(next).on_host();
  EXPECT_EQ(pair.hessian, expected.hessian);
  EXPECT_TRUE(std::ranges::equal(pair.drift.values(), expected.drift.values()));
  EXPECT_TRUE(std::ranges::any_of(pair.drift.values(), [](double value) { return value != 0; }));
}

// Fewer sequences than parts, as many, and more; fewer ranks than parts, and more.
TEST(InputPairs, DoNotDependOnTheRanks) {
  const auto model = random_golf_weights(small_golf_config(), 3);
  for (const int64_t count : {1, 3, 8, 19}) {
    const TokenSequences tokens{count, kLength, random_tokens(count * kLength, model->network->vocabulary(), 6)};
    const std::vector<InputPair> expected = read_all_pairs(model, Device{}, tokens, tokens.count);
    for (const int size : {2, 3, 9}) {
      SCOPED_TRACE(::testing::Message() << count << " sequences on " << size << " ranks");
      run_as_ranks(size, [&](Ranks& ranks) {
        const std::vector<InputPair> found = read_all_pairs(model, Device{}, tokens, tokens.count, ranks);
        ASSERT_EQ(found.size(), expected.size());
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_EQ(found[i].hessian, expected[i].hessian) << i;
          EXPECT_TRUE(std::ranges::equal(found[i].drift.values(), expected[i].drift.values())) << i;
        }
      });
    }
  }
}

TEST(InputPairs, PartsAreDealtOutInTurn) {
  auto begins = [](const std::vector<Share>& parts) {
    std::vector<size_t> all;
    for (const Share& part : parts) all.push_back(part.begin);
    return all;
  };
  EXPECT_EQ(begins(parts_of_reader(16, 0, 1)), (std::vector<size_t>{0, 2, 4, 6, 8, 10, 12, 14}));
  EXPECT_EQ(begins(parts_of_reader(16, 1, 3)), (std::vector<size_t>{2, 8, 14}));
  EXPECT_EQ(begins(parts_of_reader(3, 2, 9)), std::vector<size_t>{2});
  EXPECT_TRUE(parts_of_reader(3, 3, 9).empty());
  EXPECT_EQ(begins(most_parts_of_reader(9, 8)), std::vector<size_t>{7});  // which has two
}

// Of the sequences that a rank reads: each names its own.
TEST(InputPairs, AValueThatIsNotFiniteIsNamed) {
  Weights damaged = *random_golf_weights(small_golf_config(), 3);
  const MatrixId table = damaged.network->id_of("tok_emb.weight");
  Matrix values = damaged.matrix(table).widened();
  const Token bad = 5;
  values(bad, 0) = std::numeric_limits<float>::quiet_NaN();
  damaged.matrices[static_cast<size_t>(table)] = values;
  const auto model = std::make_shared<const Weights>(std::move(damaged));
  constexpr int64_t kCount = 16;
  TokenSequences tokens{kCount, kLength, random_tokens(kCount * kLength, model->network->vocabulary(), 6)};
  std::ranges::replace(tokens.tokens, bad, bad + 1);
  for (const int64_t sequence : {int64_t{3}, int64_t{5}})  // of the second part and the third
    tokens.tokens[static_cast<size_t>(sequence * kLength + 2)] = bad;
  const LinearInput first = inputs_of_layers(*model->network)[0];
  const std::string reader = model->network->matrix(first.readers[0]).name;
  expect_error<Error>([&] { make_input_pairs(model, model, Device{}, tokens, kCount)->collect(first); },
                      {reader, "sequence 3, position 2"});
  tokens.tokens[static_cast<size_t>(1 * kLength + 4)] = bad;  // of the first part: both ranks meet one at once
  run_as_ranks(2, [&](Ranks& ranks) {
    const std::unique_ptr<InputPairs> pairs = make_input_pairs(model, model, Device{}, tokens, kCount, ranks);
    expect_error<Error>([&] { pairs->collect(first); },
                        {reader, ranks.is_root() ? "sequence 1, position 4" : "sequence 3, position 2"});
  });
}

// Joint second moments of x~ and x = A x~ + noise: without damping w' = w E[x x~^T] E[x~ x~^T]^-1.
TEST(ShiftedWeights, AreTheLeastSquaresOnes) {
  constexpr int64_t kColumns = 12, kRows = 5;
  const SymmetricMatrix joint = correlated_hessian(2 * kColumns, 7);
  const InputPair pair = split_joint_hessian(joint);
  const Matrix weights = random_matrix(kRows, kColumns, 8);
  for (const double strength : {1.0, 0.25}) {
    const Matrix moved = shifted(weights, pair, 0, strength);
    // (w' - w) E[x~ x~^T] = strength * w E[(x - x~) x~^T]
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t j = 0; j < kColumns; ++j) {
        double left = 0, right = 0;
        for (int64_t i = 0; i < kColumns; ++i) {
          left += (double{moved(r, i)} - weights(r, i)) * joint(i, j);
          right += strength * weights(r, i) * (joint(kColumns + i, j) - joint(i, j));
        }
        EXPECT_NEAR(left, right, 1e-4);
      }
  }
}

TEST(ShiftedWeights, DampingHoldsThemBack) {
  const InputPair pair = split_joint_hessian(correlated_hessian(8, 7));
  const Matrix weights = random_matrix(2, 4, 8);
  auto shift = [&](double damping) {
    const Matrix moved = shifted(weights, pair, damping, 1);
    double sum = 0;
    for (int64_t r = 0; r < 2; ++r)
      for (int64_t k = 0; k < 4; ++k) sum += std::pow(double{moved(r, k)} - weights(r, k), 2);
    return sum;
  };
  EXPECT_LT(shift(10), 0.1 * shift(0));
  EXPECT_LT(shift(1e6), 1e-6);
}

}  // namespace
}  // namespace thimble::input_pairs_test
