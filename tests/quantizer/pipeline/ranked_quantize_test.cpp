// ranked_quantize_test.cpp: calibration, Hessians and solutions are the same bits for any number of ranks, and rank 0's
// work folder serves all.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <numeric>
#include <stdexcept>

#include "gptq/statistics/hessian_groups.h"
#include "quantizer/methods/layer_solver.h"
#include "quantizer/pipeline/calibration.h"
#include "runtime/base/hash.h"
#include "runtime/device/models.h"
#include "tests/gptq/statistics/loaded_hessians.h"
#include "tests/runtime/base/temporary_folder.h"
#include "tests/runtime/families/golf/random_model.h"
#include "tests/support/thread_ranks.h"

namespace thimble::ranked_quantize_test {
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
  TokenSequences calibration(const TextScript&, int64_t, int64_t, Progress&) override {
    ADD_FAILURE() << "generated again";
    return {};
  }
  void text(std::span<const Token>, const TextOptions&, const std::function<bool(Token)>&) override { FAIL(); }

 private:
  int64_t preferred_;
};

class RankedQuantize : public ::testing::Test {
 protected:
  TokenSequences sequences(int64_t count) const {
    return {count, kLength, random_tokens(count * kLength, config_.vocab_size, 3)};
  }
  HessianSet collect(int64_t count, Ranks& ranks) const {
    SilentProgress progress;
    return load_all(
        collect_statistics(weights_, Device{}, sequences(count), /*with_loss=*/false, kKey, {nowhere_, ranks}, progress)
            .hessians);
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
      plan[name] = Precision{};
      if (hessians.contains(name)) plan[name] = Precision::row_scaled(max_code, RoundingMethod::kGptq);
    }
    return plan;
  }

  GolfConfig config_ = small_golf_config();
  OwnedTensors owned_ = random_golf_tensors(config_, 5);
  TensorMap tensors_ = views_of(owned_);
  std::shared_ptr<const Weights> weights_ = random_golf_weights(config_, 5);
  TemporaryFolder folder_;
  WorkFolder nowhere_{""};
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
      return collect_statistics(weights_, Device{}, sequences(count), /*with_loss=*/true, kKey, {nowhere_, ranks},
                                progress);
    };
    StoredStatistics expected = collect_all(*make_single_rank());
    expect_equal(load_all(expected.hessians), collect_alone(count));  // the same with and without
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
        StoredStatistics found = collect_all(ranks);
        expect_equal(load_all(found.hessians), load_all(expected.hessians));
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
  const StoredHessians stored = store_in_memory(hessians);
  SilentProgress progress;
  std::unique_ptr<Ranks> single = make_single_rank();
  const SharedWork work_alone(nowhere_, *single);
  LayerSolver alone(tensors_, stored, Device{}, work_alone, kKey, progress);
  std::vector<QuantizedTensor> low = alone.solve(plan(hessians, 15)), high = alone.solve(plan(hessians, 31));
  ASSERT_NE(low, high);
  for (int size : {2, 3, 40}) {
    SCOPED_TRACE(size);
    run_as_ranks(size, [&](Ranks& ranks) {
      const SharedWork work(nowhere_, ranks);
      LayerSolver solver(tensors_, stored, Device{}, work, kKey, progress);
      EXPECT_EQ(solver.solve(plan(hessians, 15)), low);
      EXPECT_EQ(solver.solve(plan(hessians, 31)), high);
      EXPECT_EQ(solver.solve(plan(hessians, 15)), low);
      for (const auto& [name, precision] : plan(hessians, 31)) {
        const GptqReport *found = solver.report(name, precision), *expected = alone.report(name, precision);
        ASSERT_EQ(found == nullptr, expected == nullptr) << name;
        if (!found) continue;
        EXPECT_EQ(found->weighted_loss, expected->weighted_loss) << name;
      }
    });
  }
}

TEST_F(RankedQuantize, SolutionsOfAllRanksAreKept) {
  HessianSet hessians = collect_alone(1);
  const StoredHessians stored = store_in_memory(hessians);
  SilentProgress progress;
  auto solve = [&](Ranks& ranks) {
    WorkFolder work(ranks.is_root() ? folder_.file("work") : "");
    const SharedWork shared(work, ranks);
    LayerSolver(tensors_, stored, Device{}, shared, kKey, progress).solve(plan(hessians, 15));
  };
  run_as_ranks(3, solve);
  WorkFolder work(folder_.file("work"));
  for (const auto& [name, hessian] : hessians) {
    uint64_t key = Hasher().add(kKey).add(name).add("int5 gptq").digest();
    EXPECT_TRUE(work.load({WorkKind::kSolution, key})) << name;
  }
  work.remove();
}

TEST_F(RankedQuantize, TokensOfRank0sFolderServeAll) {
  const CalibrationOptions options{5, kLength, 0.8, 1};
  const TextScript script = uniform_script(config_.vocab_size, options);
  SilentProgress progress;
  auto generate = [&](Generator& generator, Ranks& ranks) {
    WorkFolder work(ranks.is_root() ? folder_.file("work") : "");
    return self_generate(generator, script, kKey, {work, ranks}, progress).tokens;
  };
  std::vector<std::vector<Token>> first(3);
  run_as_ranks(3, [&](Ranks& ranks) {
    const auto generator = make_generator(weights_, Device{}, kLength, options.sequences, ranks);
    first[static_cast<size_t>(ranks.rank())] = generate(*generator, ranks);
  });
  EXPECT_EQ(first[0].size(), static_cast<size_t>(5 * kLength));
  EXPECT_EQ(first[0], make_generator(weights_, Device{}, kLength, 5)->calibration(script, 0, 5, progress).tokens);
  run_as_ranks(3, [&](Ranks& ranks) {
    NeverGenerates never(*make_generator(weights_, Device{}, kLength, options.sequences, ranks), options);
    EXPECT_EQ(generate(never, ranks), first[0]);
  });
  WorkFolder(folder_.file("work")).remove();
}

// With next to no memory every input has a pass and a file of its own: without a work folder one that has no name. The
// statistics are the same bits, also of ranks whose memory differs, and what a work folder keeps is not collected
// again.
TEST_F(RankedQuantize, GroupsOfHessiansDoNotChangeThem) {
  SilentProgress progress;
  Device scarce;
  scarce.host_memory_bytes = 1;
  const size_t inputs = group_hessians(*weights_->network, 0, 1).groups.size();
  EXPECT_GT(inputs, 5U);
  for (bool with_loss : {false, true}) {
    auto collect_all = [&](const Device& device, const SharedWork& work) {
      return collect_statistics(weights_, device, sequences(11), with_loss, kKey, work, progress);
    };
    std::unique_ptr<Ranks> alone = make_single_rank();
    const StoredStatistics expected = collect_all({}, {nowhere_, *alone});
    auto expect_all = [&](const StoredStatistics& found) {
      expect_equal(load_all(found.hessians), load_all(expected.hessians));
      EXPECT_EQ(found.hessians.at("blocks.0.attn.c_q.weight"), found.hessians.at("blocks.0.attn.c_k.weight"));
      expect_equal(found.loss.head, expected.loss.head);
      EXPECT_EQ(found.loss.output_fisher, expected.loss.output_fisher);
      EXPECT_EQ(found.loss.row_counts, expected.loss.row_counts);
    };
    expect_all(collect_all(scarce, {nowhere_, *alone, folder_.file("")}));
    EXPECT_TRUE(std::filesystem::is_empty(folder_.file("")));
    run_as_ranks(2, [&](Ranks& ranks) {
      const WorkFolder work(ranks.is_root() ? folder_.file("work") : "");
      expect_all(collect_all(ranks.is_root() ? scarce : Device{}, {work, ranks, folder_.file("")}));
    });
    size_t pieces = 0;
    {
      const WorkFolder work(folder_.file("work"), [&](size_t) { ++pieces; });
      expect_all(collect_all(scarce, {work, *alone, folder_.file("")}));
      EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.file("work")), {}),
                static_cast<std::ptrdiff_t>(inputs));
      work.remove();
    }
    EXPECT_EQ(pieces, 0U);
  }
}

// Neither the statistics nor, after some of the parts, their sum; whoever goes on, with however many ranks.
TEST_F(RankedQuantize, StatisticsOfRank0sFolderServeAll) {
  SilentProgress progress;
  auto collect_all = [&](const WorkFolder& work, Ranks& ranks) {
    return collect_statistics(weights_, Device{}, sequences(11), /*with_loss=*/true, kKey, {work, ranks}, progress);
  };
  const StoredStatistics expected = collect_all(nowhere_, *make_single_rank());
  for (size_t cut : {1, 3, 8, 9}) {  // eight parts, then the whole
    SCOPED_TRACE(cut);
    const WorkFolder cut_short(folder_.file("work"), [&](size_t pieces) {
      if (pieces == cut) throw std::runtime_error("killed");
    });
    EXPECT_THROW(collect_all(cut_short, *make_single_rank()), std::runtime_error);
    std::atomic<size_t> pieces = 0;
    run_as_ranks(2, [&](Ranks& ranks) {
      const WorkFolder work(ranks.is_root() ? folder_.file("work") : "", [&](size_t) { ++pieces; });
      const StoredStatistics found = collect_all(work, ranks);
      expect_equal(load_all(found.hessians), load_all(expected.hessians));
      EXPECT_EQ(found.loss.output_fisher, expected.loss.output_fisher);
      if (!ranks.is_root()) return;
      // Killed between keeping the whole and deleting their sum, a run leaves both.
      EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.file("work")), {}), cut > 8 ? 2 : 1);
      work.remove();
    });
    EXPECT_EQ(pieces, cut > 8 ? 0 : (8 - cut + 1) / 2 + 1) << "two parts at a time, and the whole";
  }
}

}  // namespace
}  // namespace thimble::ranked_quantize_test
