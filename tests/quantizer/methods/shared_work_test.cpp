// shared_work_test.cpp: each piece is computed once, on one rank, kept as soon as it is there, and reaches all.
#include "quantizer/methods/shared_work.h"

#include <gtest/gtest.h>

#include <mutex>
#include <numeric>
#include <stdexcept>

#include "runtime/base/atomic_file.h"
#include "runtime/base/file.h"
#include "tests/runtime/base/temporary_folder.h"
#include "tests/support/thread_ranks.h"

namespace thimble {
namespace {

ByteVector pack_text(const std::string& text) { return {as_bytes_of(text).begin(), as_bytes_of(text).end()}; }
std::string unpack_text(Bytes bytes) { return std::string(as_text(bytes)); }
constexpr PieceFormat<std::string> kText = {&pack_text, &unpack_text};

std::string text_of(size_t piece) { return "piece " + std::to_string(piece); }

class SharedWorkTest : public testing::Test {
 protected:
  // Keys from `first_key` on, two pieces to a unit.
  static std::vector<SharedWork::Piece> pieces(uint64_t first_key, size_t count) {
    std::vector<SharedWork::Piece> pieces;
    for (size_t i = 0; i < count; ++i) pieces.push_back({first_key + i, i / 2});
    return pieces;
  }

  // What run() computed, by rank.
  std::vector<std::string> run(const SharedWork& work, uint64_t first_key, size_t count, size_t fail_after = SIZE_MAX) {
    return work.results<std::string>(pieces(first_key, count), kText,
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
  const std::string path = folder_.file("work") + "/piece-0000000000000001.safetensors";
  ByteVector bytes(MappedFile(path).bytes().begin(), MappedFile(path).bytes().end());
  bytes.back() ^= std::byte{1};
  write_file_atomically(path, bytes);
  expect_texts(run(work, 1, 1), 1);
  EXPECT_EQ(computed_.size(), 2U);
  folder.remove();
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
}  // namespace thimble
