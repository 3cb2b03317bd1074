// progress_bar_test.cpp: stages, lines and estimates, with a clock of the test's own.
#include "quantizer/console/progress_bar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

namespace thimble::progress_bar_test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

class ProgressBarTest : public ::testing::Test {
 protected:
  // A new bar, on a terminal or not.
  void start(bool is_terminal) {
    bar_ = std::make_unique<ProgressBar>(
        ProgressBar::Output{is_terminal, [this](std::string_view text) { written_ += text; }, [this] { return now_; }});
  }
  // A whole step that takes `seconds`.
  void step(const std::string& name, int64_t units, double seconds, const std::string& unit = "layers") {
    bar_->begin(name, units, unit);
    now_ += seconds;
    bar_->advance(units);
    bar_->end();
  }
  std::string written() { return std::exchange(written_, ""); }

  std::unique_ptr<ProgressBar> bar_;
  std::string written_;
  double now_ = 1000;
};

TEST_F(ProgressBarTest, ElsewhereAFinishedStageIsOneLine) {
  start(false);
  bar_->plan({{"calibrating", 1, {"generating"}, 1}, {"searching", 1, {"solving", "packing"}, 4}});
  step("generating", 32768, 12, "tokens");
  EXPECT_EQ(written(), "") << "still open: more of it may come";
  for (int i = 0; i < 3; ++i) {
    step("solving", 10, 2);
    step("packing", 1000, 1, "B");
  }
  EXPECT_EQ(written(), "calibrating              32,768 tokens in 12.0s\n");
  bar_->finish();
  EXPECT_EQ(written(), "searching                solving 3 times, packing 3 times in 9.0s\n");
  bar_.reset();
  EXPECT_EQ(written(), "");
}

TEST_F(ProgressBarTest, ShortStagesLeaveNoLine) {
  start(false);
  bar_->plan({{"calibrating", 1, {"generating"}, 1}});
  step("generating", 1, 0.4);
  step("other", 1, 0.4);
  bar_->finish();
  EXPECT_EQ(written(), "");
}

TEST_F(ProgressBarTest, RepeatedStepsAddUp) {
  start(false);
  bar_->plan({{"scoring", 1, {"evaluate"}, 2}});
  step("evaluate", 1, 1, "windows");
  bar_->finish();
  EXPECT_THAT(written(), HasSubstr(" 1 window in 1.0s"));
  step("evaluate", 300, 1, "windows");
  bar_->finish();
  EXPECT_THAT(written(), HasSubstr(" 301 windows in 2.0s"));
}

TEST_F(ProgressBarTest, AStepOfNoPlanIsAStage) {
  start(false);
  step("verifying", 40, 3, "sections");
  step("packing", 40, 3, "sections");
  bar_->finish();
  EXPECT_EQ(written(), "verifying                40 sections in 3.0s\npacking                  40 sections in 3.0s\n");
}

// What packs the lower bound and what packs results are two stages with one step.
TEST_F(ProgressBarTest, AStepBelongsToTheStageThatRunsElseToTheNext) {
  start(false);
  bar_->plan(
      {{"checking", 1, {"packing"}, 1}, {"reading", 1, {"reading"}, 1}, {"searching", 1, {"solving", "packing"}, 2}});
  step("packing", 1, 1);
  step("reading", 1, 1);
  step("packing", 1, 1);
  step("solving", 1, 1);
  step("packing", 1, 1);
  bar_->finish();
  EXPECT_EQ(written(),
            "checking                 1 layer in 1.0s\nreading                  1 layer in 1.0s\n"
            "searching                solving, packing 2 times in 3.0s\n");
}

TEST_F(ProgressBarTest, AnInterruptedStageSaysNothingElsewhere) {
  start(false);
  bar_->begin("verifying", 10, "sections");
  now_ += 100;
  bar_.reset();
  EXPECT_EQ(written(), "");
}

TEST_F(ProgressBarTest, OnATerminalALineIsRedrawn) {
  start(true);
  bar_->plan({{"calibrating", 1, {"generating"}, 1}, {"searching", 3, {"solving"}, 1}});
  bar_->begin("generating", 100, "tokens");
  EXPECT_EQ(written(), "\r\033[Kcalibrating            [                    ]   0%") << "nothing is known yet";
  now_ += 5;
  bar_->advance(50);
  // Half of a quarter took 5 seconds.
  EXPECT_EQ(written(), "\r\033[Kcalibrating            [==========          ]  50%  whole run  12%, 35.0s left");
  bar_->advance(1);
  EXPECT_EQ(written(), "") << "not more often than ten times a second";
  now_ += 5;
  bar_->advance(49);
  bar_->end();
  written();
  bar_->begin("solving", 2, "layers");
  EXPECT_THAT(written(), HasSubstr("\r\033[Kcalibrating              100 tokens in 10.0s\n\r\033[Ksearching "));
  now_ += 5;
  bar_->advance(1);
  // Faster than planned: what is left follows its own pace.
  EXPECT_THAT(written(), EndsWith("]  50%  whole run  75%, 5.0s left"));
  bar_->advance(1);
  bar_->end();
  bar_->finish();
  EXPECT_THAT(written(), EndsWith("\r\033[Ksearching                2 layers in 5.0s\n"));
}

// Costs in seconds say what is left before anything is measured.
TEST_F(ProgressBarTest, ExpectedSecondsAreSaidFirst) {
  start(true);
  bar_->plan({{"calibrating", 10, {"generating"}, 1}, {"searching", 30, {"solving"}, 1}}, /*costs_are_seconds=*/true);
  bar_->begin("generating", 1000, "tokens");
  EXPECT_THAT(written(), EndsWith("]   0%  whole run   0%, 40.0s left"));
  now_ += 2;
  bar_->advance(1);
  EXPECT_THAT(written(), EndsWith("]   0%  whole run   5%, 38.0s left")) << "too little to go by";
  now_ += 2;
  bar_->advance(199);
  // Twice as slow as expected.
  EXPECT_THAT(written(), EndsWith("]  20%  whole run   5%, 76.0s left"));
}

TEST_F(ProgressBarTest, StagesThatWereSkippedAreNotWaitedFor) {
  start(true);
  bar_->plan(
      {{"calibrating", 100, {"generating"}, 1}, {"searching", 1, {"solving"}, 1}, {"scoring", 1, {"evaluate"}, 1}});
  bar_->begin("solving", 2, "layers");
  now_ += 5;
  bar_->advance(1);
  EXPECT_THAT(written(), EndsWith("whole run  25%, 15.0s left"));
}

TEST_F(ProgressBarTest, NotesStandBetweenBars) {
  start(true);
  bar_->begin("solving", 2, "layers");
  written();
  bar_->note("the disk is full");
  EXPECT_THAT(written(), ::testing::StartsWith("\r\033[Kthe disk is full\n\r\033[Ksolving"));
  start(false);
  written();
  bar_->note("the disk is full");
  EXPECT_EQ(written(), "the disk is full\n");
}

TEST_F(ProgressBarTest, AnInterruptedBarIsLeftBeforeTheMessage) {
  start(true);
  bar_->begin("solving", 2, "layers");
  now_ += 5;
  bar_.reset();
  EXPECT_THAT(written(), EndsWith("\n"));
}

TEST_F(ProgressBarTest, MoreStepsThanPlannedStayBelowTheWhole) {
  start(true);
  bar_->plan({{"searching", 1, {"solving"}, 1}});
  for (int i = 0; i < 3; ++i) step("solving", 2, 1);
  written();
  bar_->begin("solving", 2, "layers");
  EXPECT_THAT(written(), HasSubstr("]  75%"));
}

}  // namespace
}  // namespace thimble::progress_bar_test
