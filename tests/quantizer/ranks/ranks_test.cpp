// ranks_test.cpp: exchanges between ranks, and models that are split over them.
#include "runtime/device/ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>

#include "quantizer/ranks/ranked_language_model.h"
#include "runtime/cpu/backend_language_model.h"
#include "tests/quantizer/ranks/thread_ranks.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble {
namespace {

constexpr int64_t kContext = 12;

ByteVector bytes_of(std::string_view text) { return {as_bytes_of(text).begin(), as_bytes_of(text).end()}; }

TEST(Ranks, OneRankIsAlone) {
  std::unique_ptr<Ranks> single = make_single_rank();
  EXPECT_TRUE(single->is_root());
  EXPECT_EQ(single->size(), 1);
  EXPECT_EQ(single->local_rank(), 0);
  EXPECT_EQ(single->all_gather(bytes_of("mine")), (std::vector<ByteVector>{bytes_of("mine")}));
  ByteVector bytes = bytes_of("kept");
  single->broadcast(bytes);
  EXPECT_EQ(bytes, bytes_of("kept"));
  single->require_equal("anything", "it");
  single->end_all(1);  // returns: there is nobody else
}

TEST(Ranks, AllGatherGivesEveryRankEverything) {
  std::vector<ByteVector> expected = {bytes_of(""), bytes_of("1"), bytes_of("11"), bytes_of("111")};
  run_as_ranks(
      4, [&](Ranks& ranks) { EXPECT_EQ(ranks.all_gather(expected[static_cast<size_t>(ranks.rank())]), expected); });
}

TEST(Ranks, RanksThatDifferFromRank0SaySo) {
  run_as_ranks(3, [](Ranks& ranks) {
    ranks.require_equal("avx2", "the arithmetic");
    auto differ = [&] { ranks.require_equal(ranks.rank() == 2 ? "avx512" : "avx2", "the arithmetic"); };
    if (ranks.rank() == 2) {
      expect_error<Error>(differ, {"the arithmetic is avx512", "rank 0 avx2"});
    } else {
      EXPECT_NO_THROW(differ());
    }
  });
}

class RankedLanguageModel : public testing::Test {
 protected:
  struct Advances final : Progress {
    void begin(std::string_view, int64_t, std::string_view) override {}
    void advance(int64_t units) override { sum += units; }
    void end() override {}
    std::atomic<int64_t> sum = 0;
  };

  Model model_ = random_golf_model(small_golf_config(), 6);
  std::vector<uint16_t> tokens_ = random_tokens(3 * kContext, model_.config.vocab_size);
};

TEST_F(RankedLanguageModel, OneRankNeedsNone) {
  std::unique_ptr<Ranks> single = make_single_rank();
  std::unique_ptr<LanguageModel> model = make_cpu_language_model(model_, kContext);
  LanguageModel* plain = model.get();
  EXPECT_EQ(make_ranked_language_model(std::move(model), *single).get(), plain);
}

TEST_F(RankedLanguageModel, EveryRankGetsAllScores) {
  std::vector<ScoreWindow> windows;
  std::span<const uint16_t> tokens(tokens_);
  size_t targets = 0;
  for (size_t length = 1; length <= 7; ++length) {
    windows.push_back({tokens.subspan(length, length), tokens.subspan(length + 1, length)});
    targets += length;
  }
  std::vector<float> expected(targets);
  make_cpu_language_model(model_, kContext)->score(windows, expected);
  for (int size : {2, 3, 9}) {
    run_as_ranks(size, [&](Ranks& ranks) {
      auto model = make_ranked_language_model(make_cpu_language_model(model_, kContext), ranks);
      std::vector<float> found(targets, -1);
      model->score(windows, found);
      EXPECT_EQ(found, expected) << "rank " << ranks.rank() << " of " << size;
      model->score({}, {});
    });
  }
}

TEST_F(RankedLanguageModel, EveryRankGetsAllSequences) {
  CalibrationOptions options{5, kContext, 0.8, 11};
  Advances progress;
  std::unique_ptr<LanguageModel> plain = make_cpu_language_model(model_, kContext);
  std::vector<uint16_t> expected = plain->generate_calibration(options, 1, 4, progress).tokens;
  for (int size : {2, 3, 6}) {
    run_as_ranks(size, [&](Ranks& ranks) {
      auto model = make_ranked_language_model(make_cpu_language_model(model_, kContext), ranks);
      Advances own;
      TokenSequences found = model->generate_calibration(options, 1, 4, own);
      EXPECT_EQ(found.count, 4);
      EXPECT_EQ(found.length, kContext);
      EXPECT_EQ(found.tokens, expected) << "rank " << ranks.rank() << " of " << size;
      EXPECT_EQ(own.sum, 4 * kContext);
    });
  }
}

}  // namespace
}  // namespace thimble
