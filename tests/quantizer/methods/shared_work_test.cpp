// shared_work_test.cpp: each piece is computed once, on one rank, kept as soon as it is there, and reaches all.
#include "quantizer/methods/shared_work.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <mutex>
#include <numeric>
#include <stdexcept>

#include "runtime/base/atomic_file.h"
#include "runtime/base/file.h"
#include "tests/runtime/base/temporary_folder.h"
#include "tests/support/thread_ranks.h"

namespace thimble::shared_work_test {
namespace {

std::string text_of(size_t piece) { return "piece " + std::to_string(piece); }

class SharedWorkTest : public ::testing::Test {
 protected:
  // Keys from `first_key` on, two pieces to a unit.
  static std::vector<SharedWork::Piece> pieces(uint64_t first_key, size_t count) {
    std::vector<SharedWork::Piece> pieces;
    for (size_t i = 0; i < count; ++i) pieces.push_back({first_key + i, i / 2});
    return pieces;
  }

  // What run() computed, by rank.
  std::vector<std::string> run(const SharedWork& work, uint64_t first_key, size_t count, size_t fail_after = SIZE_MAX) {
    return work.results<std::string>(WorkKind::kSolution, pieces(first_key, count),
                                     [&](std::span<const size_t> mine, const SharedWork::Give<std::string>& give) {
                                       {
                                         std::lock_guard lock(mutex_);
                                         ++calls_;
                                       }
                                       for (size_t piece : mine) {
                                         std::lock_guard lock(mutex_);
                                         if (computed_.size() == fail_after) throw std::runtime_error("killed");
                                         computed_.push_back(piece);
                                         give(piece, text_of(piece));
                                       }
                                     });
  }

  static void expect_texts(const std::vector<std::string>& results, size_t count) {
    ASSERT_EQ(results.size(), count);
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(results[i], text_of(i));
  }

  TemporaryFolder folder_;
  std::mutex mutex_;
  std::vector<size_t> computed_;
  int calls_ = 0;
};

TEST_F(SharedWorkTest, AloneComputesAllAndKeepsNothingWithoutAFolder) {
  const WorkFolder nowhere("");
  const std::unique_ptr<Ranks> single = make_single_rank();
  const SharedWork work(nowhere, *single);
  expect_texts(run(work, 1, 5), 5);
  expect_texts(run(work, 1, 5), 5);
  EXPECT_EQ(computed_.size(), 10U);
}

TEST_F(SharedWorkTest, WhatAKilledRunHadIsNotComputedAgain) {
  const std::unique_ptr<Ranks> single = make_single_rank();
  {
    const WorkFolder folder(folder_.file("work"));
    EXPECT_THROW(run(SharedWork(folder, *single), 1, 5, /*fail_after=*/3), std::runtime_error);
  }
  EXPECT_EQ(computed_, (std::vector<size_t>{0, 1, 2}));
  const WorkFolder folder(folder_.file("work"));
  const SharedWork work(folder, *single);
  expect_texts(run(work, 1, 5), 5);
  EXPECT_EQ(computed_, (std::vector<size_t>{0, 1, 2, 3, 4}));
  calls_ = 0;
  expect_texts(run(work, 1, 5), 5);
  EXPECT_EQ(calls_, 0);
  run(work, 100, 1);  // another key is another piece
  EXPECT_EQ(calls_, 1);
  folder.remove();
}

TEST_F(SharedWorkTest, ADamagedPieceIsComputedAgain) {
  const std::unique_ptr<Ranks> single = make_single_rank();
  const WorkFolder folder(folder_.file("work"));
  const SharedWork work(folder, *single);
  run(work, 1, 1);
  const std::string path = folder_.file("work") + "/solution-0000000000000001.safetensors";
  const MappedFile file(path);
  ByteVector bytes(file.bytes().begin(), file.bytes().end());
  bytes.back() ^= std::byte{1};
  write_file_atomically(path, bytes);
  expect_texts(run(work, 1, 1), 1);
  EXPECT_EQ(computed_.size(), 2U);
  folder.remove();
}

// Whole and with a good checksum, but of another name: renamed by hand, or of another version.
TEST_F(SharedWorkTest, AForeignPieceIsComputedAgain) {
  const std::unique_ptr<Ranks> single = make_single_rank();
  const WorkFolder folder(folder_.file("work"));
  const SharedWork work(folder, *single);
  run(work, 1, 2);
  const std::string path = folder_.file("work") + "/solution-";
  std::filesystem::rename(path + "0000000000000002.safetensors", path + "0000000000000001.safetensors");
  EXPECT_EQ(folder.note(), "");
  expect_texts(run(work, 1, 1), 1);
  EXPECT_EQ(computed_.size(), 3U);
  EXPECT_NE(folder.note().find("computed again"), std::string::npos);
  EXPECT_TRUE(folder.keeps());
  folder.remove();
}

// A piece that others went into takes their place; one that is not kept does not.
TEST_F(SharedWorkTest, WhatAResultWasMadeOfGoes) {
  const std::unique_ptr<Ranks> single = make_single_rank();
  const std::string path = folder_.file("work");
  auto files = [&] { return std::distance(std::filesystem::directory_iterator(path), {}); };
  const WorkFolder folder(path);
  const SharedWork work(folder, *single);
  run(work, 1, 2);
  auto whole = [&] {
    return work.result<uint64_t>({WorkKind::kSearch, 9}, [&] {
      EXPECT_EQ(run(work, 100, 3).size(), 3U);
      EXPECT_EQ(files(), 5);
      return 17;
    });
  };
  EXPECT_EQ(whole(), 17U);
  EXPECT_EQ(files(), 3) << "two from before, and the result";
  computed_.clear();
  EXPECT_EQ(whole(), 17U);
  EXPECT_TRUE(computed_.empty());
  folder.remove();
}

// The newest of one name is what is found, on every rank.
TEST_F(SharedWorkTest, ANewerPieceReplacesTheOlder) {
  run_as_ranks(3, [&](Ranks& ranks) {
    const WorkFolder folder(ranks.is_root() ? folder_.file("work") : "");
    const SharedWork work(folder, ranks);
    const PieceName name = {WorkKind::kLearning, 5};
    EXPECT_FALSE(work.find<std::string>(name));
    for (const char* text : {"first", "second"}) work.keep<std::string>(name, text);
    EXPECT_EQ(work.find<std::string>(name), "second");
    EXPECT_EQ(work.of_rank(ranks.rank(), 2), 2);
    if (ranks.is_root()) folder.remove();
  });
}

// Fewer units than ranks, as many, and more.
TEST_F(SharedWorkTest, EachPieceIsComputedOnOneRankAndReachesAll) {
  for (int size : {2, 3, 9}) {
    for (size_t count : {1U, 2U, 7U, 30U}) {
      SCOPED_TRACE(std::to_string(size) + " ranks, " + std::to_string(count) + " pieces");
      computed_.clear();
      calls_ = 0;
      run_as_ranks(size, [&](Ranks& ranks) {
        const WorkFolder folder(ranks.is_root() ? folder_.file("work") : "");
        const SharedWork work(folder, ranks);
        expect_texts(run(work, 1, count), count);
        expect_texts(run(work, 1, count), count);  // from rank 0's folder
        if (ranks.is_root()) folder.remove();
      });
      std::ranges::sort(computed_);
      std::vector<size_t> each(count);
      std::iota(each.begin(), each.end(), size_t{0});
      EXPECT_EQ(computed_, each);
      EXPECT_EQ(calls_, size);
    }
  }
}

}  // namespace
}  // namespace thimble::shared_work_test
