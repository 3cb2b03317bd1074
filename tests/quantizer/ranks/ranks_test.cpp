// ranks_test.cpp: exchanges between ranks, and models that are split over them.
#include "runtime/device/ranks.h"

#include <gtest/gtest.h>

#include <mutex>

#include "tests/runtime/base/error_matcher.h"
#include "tests/support/thread_ranks.h"

namespace thimble::ranks_test {
namespace {

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

}  // namespace
}  // namespace thimble::ranks_test
