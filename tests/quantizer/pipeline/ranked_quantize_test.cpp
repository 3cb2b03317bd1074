// ranked_quantize_test.cpp: calibration, Hessians and solutions are the same bits for any number of ranks, and rank 0's
// work folder serves all.
#include <gtest/gtest.h>

#include <numeric>

#include "quantizer/methods/layer_solver.h"
#include "quantizer/pipeline/calibration.h"
#include "runtime/base/hash.h"
#include "runtime/device/models.h"
#include "tests/runtime/base/temporary_folder.h"
#include "tests/runtime/families/golf/random_model.h"
#include "tests/support/thread_ranks.h"

namespace thimble {
namespace {

constexpr int64_t kLength = 10;
constexpr uint64_t kKey = 7;

// Whose generation would be an error: everything must come from the work folder.
class NeverGenerates final : public Generator {
 public:
  // In pieces of the size that another generator prefers.
  NeverGenerates(const Generator& other, const CalibrationOptions& options)
      : preferred_(other.preferred_sequences(options)) {}
  int64_t preferred_sequences(const CalibrationOptions&) const override { return preferred_; }
  TokenSequences calibration(const CalibrationOptions&, int64_t, int64_t, Progress&) override {
    ADD_FAILURE() << "generated again";
    return {};
  }
  void text(std::span<const Token>, const TextOptions&, const std::function<bool(Token)>&) override { FAIL(); }

 private:
  int64_t preferred_;
};

class RankedQuantize : public testing::Test {
 protected:
  TokenSequences sequences(int64_t count) const {
    return {count, kLength, random_tokens(count * kLength, config_.vocab_size, 3)};
  }
  HessianSet collect(int64_t count, Ranks& ranks) const {
    SilentProgress progress;
    return collect_statistics(weights_, Device{}, sequences(count), /*with_loss=*/false, ranks, progress).hessians;
  }
  HessianSet collect_alone(int64_t count) const { return collect(count, *make_single_rank()); }
  static void expect_equal(const HessianSet& found, const HessianSet& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [layer, hessian] : expected) {
      EXPECT_EQ(found.at(layer)->matrix, hessian->matrix) << layer;
      EXPECT_EQ(found.at(layer)->token_count, hessian->token_count);
      EXPECT_EQ(found.at(layer)->sequence_count, hessian->sequence_count);
    }
  }
  // Every matrix with a Hessian, at this precision.
  Plan plan(const HessianSet& hessians, int max_code) const {
    Plan plan;
    for (const auto& [name, tensor] : tensors_) {
      plan[name] = RawPrecision{};
      if (hessians.contains(name)) plan[name] = RowScaledPrecision{max_code, RowScaledPrecision::Rounding::kGptq};
    }
    return plan;
  }

  GolfConfig config_ = small_golf_config();
  OwnedTensors owned_ = random_golf_tensors(config_, 5);
  TensorMap tensors_ = views_of(owned_);
  std::shared_ptr<const Weights> weights_ = random_golf_weights(config_, 5);
  TemporaryFolder folder_;
};

// Fewer sequences than parts, as many, and more; fewer ranks than parts, and more.
TEST_F(RankedQuantize, HessiansDoNotDependOnTheRanks) {
  for (int64_t count : {1, 3, 8, 21}) {
    HessianSet expected = collect_alone(count);
    EXPECT_EQ(expected.begin()->second->token_count, count * (kLength - 1));
    EXPECT_EQ(expected.begin()->second->sequence_count, count);
    for (int size : {2, 3, 9}) {
      SCOPED_TRACE(std::to_string(count) + " sequences on " + std::to_string(size) + " ranks");
      run_as_ranks(size, [&](Ranks& ranks) { expect_equal(collect(count, ranks), expected); });
    }
  }
}

TEST_F(RankedQuantize, LossStatisticsDoNotDependOnTheRanks) {
  SilentProgress progress;
  for (int64_t count : {1, 3, 11}) {
    auto collect_all = [&](Ranks& ranks) {
      return collect_statistics(weights_, Device{}, sequences(count), /*with_loss=*/true, ranks, progress);
    };
    CalibrationStatistics expected = collect_all(*make_single_rank());
    expect_equal(expected.hessians, collect_alone(count));  // the same with and without
    for (const auto& [name, hessian] : expected.hessians) {
      EXPECT_EQ(expected.loss.output_fisher.at(name).token_count, count * (kLength - 1)) << name;
      EXPECT_GT(expected.loss.output_fisher.at(name).mean(), 0) << name;
    }
    const std::vector<int64_t>& seen = expected.loss.row_counts.at("tok_emb.weight");
    EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), int64_t{0}), count * (kLength - 1));
    ASSERT_TRUE(expected.loss.head.contains("tok_emb.weight"));
    for (int size : {2, 3, 9}) {
      SCOPED_TRACE(std::to_string(count) + " sequences on " + std::to_string(size) + " ranks");
      run_as_ranks(size, [&](Ranks& ranks) {
        CalibrationStatistics found = collect_all(ranks);
        expect_equal(found.hessians, expected.hessians);
        expect_equal(found.loss.head, expected.loss.head);
        EXPECT_EQ(found.loss.output_fisher, expected.loss.output_fisher);
        EXPECT_EQ(found.loss.lookup_fisher, expected.loss.lookup_fisher);
        EXPECT_EQ(found.loss.row_counts, expected.loss.row_counts);
      });
    }
  }
}

TEST_F(RankedQuantize, SolutionsDoNotDependOnTheRanks) {
  HessianSet hessians = collect_alone(3);
  SilentProgress progress;
  WorkFolder nowhere("");
  std::unique_ptr<Ranks> single = make_single_rank();
  LayerSolver alone(tensors_, hessians, Device{}, nowhere, kKey, *single, progress);
  std::vector<QuantizedTensor> low = alone.solve(plan(hessians, 15)), high = alone.solve(plan(hessians, 31));
  ASSERT_NE(low, high);
  for (int size : {2, 3, 40}) {
    SCOPED_TRACE(size);
    run_as_ranks(size, [&](Ranks& ranks) {
      LayerSolver solver(tensors_, hessians, Device{}, nowhere, kKey, ranks, progress);
      if (!ranks.is_root()) return solver.serve();
      EXPECT_EQ(solver.solve(plan(hessians, 15)), low);
      EXPECT_EQ(solver.solve(plan(hessians, 31)), high);
      EXPECT_EQ(solver.solve(plan(hessians, 15)), low);
      for (const auto& [name, precision] : plan(hessians, 31)) {
        const GptqReport *found = solver.report(name, precision), *expected = alone.report(name, precision);
        ASSERT_EQ(found == nullptr, expected == nullptr) << name;
        if (!found) continue;
        EXPECT_EQ(found->weighted_loss, expected->weighted_loss) << name;
      }
      solver.dismiss();
    });
  }
}

TEST_F(RankedQuantize, SolutionsOfAllRanksAreKept) {
  HessianSet hessians = collect_alone(1);
  SilentProgress progress;
  auto solve = [&](Ranks& ranks) {
    WorkFolder work(ranks.is_root() ? folder_.file("work") : "");
    LayerSolver solver(tensors_, hessians, Device{}, work, kKey, ranks, progress);
    if (!ranks.is_root()) return solver.serve();
    solver.solve(plan(hessians, 15));
    solver.dismiss();
  };
  run_as_ranks(3, solve);
  WorkFolder work(folder_.file("work"));
  for (const auto& [name, hessian] : hessians) {
    uint64_t key = Hasher().add(kKey).add(name).add("int5 gptq").digest();
    EXPECT_TRUE(work.load_solution(key, name, tensors_.at(name).shape)) << name;
  }
  work.remove();
}

TEST_F(RankedQuantize, TokensOfRank0sFolderServeAll) {
  CalibrationOptions options{5, kLength, 0.8, 1};
  SilentProgress progress;
  auto generate = [&](Generator& generator, Ranks& ranks) {
    WorkFolder work(ranks.is_root() ? folder_.file("work") : "");
    return self_generate(generator, options, kKey, work, ranks, progress).tokens;
  };
  std::vector<std::vector<Token>> first(3);
  run_as_ranks(3, [&](Ranks& ranks) {
    const auto generator = make_generator(weights_, Device{}, kLength, options.sequences, ranks);
    first[static_cast<size_t>(ranks.rank())] = generate(*generator, ranks);
  });
  EXPECT_EQ(first[0].size(), static_cast<size_t>(5 * kLength));
  EXPECT_EQ(first[0], make_generator(weights_, Device{}, kLength, 5)->calibration(options, 0, 5, progress).tokens);
  run_as_ranks(3, [&](Ranks& ranks) {
    NeverGenerates never(*make_generator(weights_, Device{}, kLength, options.sequences, ranks), options);
    EXPECT_EQ(generate(never, ranks), first[0]);
  });
  WorkFolder(folder_.file("work")).remove();
}

TEST_F(RankedQuantize, HessiansOfRank0sFolderServeAll) {
  HessianSet expected = collect_alone(2);
  run_as_ranks(2, [&](Ranks& ranks) {
    WorkFolder work(ranks.is_root() ? folder_.file("work") : "");
    EXPECT_FALSE(load_kept_statistics(work, kKey, ranks));
    work.save_statistics(kKey, {expected, {}});
    std::optional<CalibrationStatistics> kept = load_kept_statistics(work, kKey, ranks);
    ASSERT_TRUE(kept);
    expect_equal(kept->hessians, expected);
    work.remove();
  });
}

}  // namespace
}  // namespace thimble
