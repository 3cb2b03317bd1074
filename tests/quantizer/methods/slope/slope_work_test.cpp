// slope_work_test.cpp: what the method `slope` solves is shared among ranks and kept: the same artifact for any number
// of ranks, and from a folder that holds all pieces without solving anything.
#include <gtest/gtest.h>

#include <filesystem>

#include "quantizer/methods/slope/slope_search.h"
#include "tests/quantizer/methods/slope/slope_model.h"
#include "tests/runtime/base/temporary_folder.h"
#include "tests/support/thread_ranks.h"

namespace thimble::slope_work_test {
namespace {

GolfConfig work_config() {
  GolfConfig config = small_golf_config();
  config.vocab_size = 150;
  return config;
}

SlopeOptions crossing_options() {
  SlopeOptions options;
  options.cross_term = 1;
  return options;
}

SlopeOutcome search_with(const SharedWork& work, bool crosses) {
  const SlopeModel model(work_config(), crossing_options(), {}, false, &work);
  return model.search(SlopeModel::limit_of(model.smallest_bytes({CodecId::kRans}) * 3 / 2), {CodecId::kRans}, nullptr,
                      {}, crosses);
}

class SlopeWork : public ::testing::TestWithParam<bool> {
 protected:
  TemporaryFolder folder_;
};

TEST_P(SlopeWork, ArtifactsDoNotDependOnTheRanks) {
  const WorkFolder nowhere("");
  const std::unique_ptr<Ranks> single = make_single_rank();
  const ByteVector alone = search_with(SharedWork(nowhere, *single), GetParam()).artifact;
  for (int size : {2, 5}) {
    SCOPED_TRACE(size);
    run_as_ranks(size,
                 [&](Ranks& ranks) { EXPECT_EQ(search_with(SharedWork(nowhere, ranks), GetParam()).artifact, alone); });
  }
}

// A folder whose pieces are complete leaves nothing to solve; one that a killed run left gives the same artifact.
TEST_P(SlopeWork, KeptPiecesGiveTheSameArtifact) {
  const std::unique_ptr<Ranks> single = make_single_rank();
  const std::string path = folder_.file("work");
  ByteVector first;
  {
    const WorkFolder folder(path);
    first = search_with(SharedWork(folder, *single), GetParam()).artifact;
  }
  std::vector<std::filesystem::path> pieces;
  std::map<std::filesystem::path, std::filesystem::file_time_type> times;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    pieces.push_back(entry.path());
    times[entry.path()] = entry.last_write_time();
  }
  ASSERT_GT(pieces.size(), 10U);
  for (size_t every : {size_t{0}, size_t{2}, size_t{5}}) {  // none is lost, half of them, most of them
    std::ranges::sort(pieces);
    for (size_t i = 0; every > 0 && i < pieces.size(); ++i)
      if ((every == 2) == (i % every == 0)) std::filesystem::remove(pieces[i]);
    const WorkFolder folder(path);
    EXPECT_EQ(search_with(SharedWork(folder, *single), GetParam()).artifact, first);
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      ++count;
      if (every == 0) {
        EXPECT_EQ(entry.last_write_time(), times.at(entry.path()));
      }
    }
    EXPECT_LE(count, pieces.size());  // what a result was made of is not asked for again
    if (every == 0) {
      EXPECT_EQ(count, pieces.size());
    }
  }
  WorkFolder(path).remove();
}

INSTANTIATE_TEST_SUITE_P(CrossTerms, SlopeWork, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "layer_by_layer" : "at_once"; });

}  // namespace
}  // namespace thimble::slope_work_test
