// learn_codes_test.cpp: models with learned codes, as stored, are closer to the original than without, at the same
// bytes; the same for any number of threads, and after a stop.
#include "quantizer/methods/slope/learn_codes.h"

#include <gtest/gtest.h>

#include "runtime/base/parallel.h"
#include "tests/quantizer/methods/slope/slope_model.h"
#include "tests/runtime/base/temporary_folder.h"
#include "tests/support/thread_ranks.h"

namespace thimble::learn_codes_test {
namespace {

GolfConfig learning_config() { return two_layer_config(32, 2, 60, 8); }

class LearnCodesTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kLimit = 9'000;

  LearnCodesTest() {
    constexpr int64_t kSequences = 64;
    tokens_ = {kSequences, SlopeModel::kLength,
               random_tokens(kSequences * SlopeModel::kLength, model_.config.vocab_size, 4)};
  }

  // `steps`: of tuning gains afterwards.
  DistillInput input(int64_t steps = 0) const {
    return {model_.original, tokens_, model_.device, {steps, 8, 4e-3, 4e-3}, model_.work, 7, {64, 16, 0.05}};
  }
  SlopeOutcome search(const DistillInput& input) const {
    return model_.search(SlopeModel::limit_of(kLimit), encode_, &input);
  }
  LearnedCodes learn(const DistillInput& input, const QuantizedModel& before, const std::set<std::string>& block) {
    return learn_codes(input, before, held_out_divergence(this->input(), before, progress_), block, progress_);
  }
  std::set<std::string> all_matrices() const { return model_.original->network->matrix_names(); }
  static void expect_filled(const SlopeOutcome& outcome) {
    EXPECT_LE(outcome.artifact.size(), kLimit);
    EXPECT_GE(static_cast<double>(outcome.artifact.size()), kFill * static_cast<double>(kLimit));
  }

  SilentProgress progress_;
  const SlopeModel model_{learning_config(), {}};
  TokenSequences tokens_;
  EncodeOptions encode_ = encode_options_from("rans");
};

TEST_F(LearnCodesTest, ComesCloserAtTheSameBytes) {
  const DistillInput learning = input();
  const SlopeOutcome learned = search(learning);
  const SlopeOutcome plain = model_.search(SlopeModel::limit_of(kLimit), encode_);
  expect_filled(learned);
  ASSERT_TRUE(learned.learning);
  EXPECT_TRUE(learned.learning->is_kept);
  EXPECT_FALSE(learned.distill);
  EXPECT_EQ(learned.learning->steps, 64);
  EXPECT_EQ(learned.learning->held_out, 4);
  EXPECT_EQ(learned.learning->sequences, 60);
  EXPECT_GT(learned.learning->changed_codes, 0.002);
  EXPECT_LT(learned.learning->changed_codes, 0.5);
  EXPECT_LE(learned.learning->rate_weight, 0.04);
  EXPECT_LT(learned.learning->divergence_after, 0.9 * learned.learning->divergence_before);
  EXPECT_LT(held_out_divergence(learning, learned.model, progress_),
            0.9 * held_out_divergence(learning, plain.model, progress_));
}

// What is reported is the model as it is stored: read from its artifact it is as far from the original. Whose codes are
// learned is not distilled too.
TEST_F(LearnCodesTest, ReportsTheModelAsItIsStored) {
  const DistillInput learning = input(/*steps=*/12);
  const SlopeOutcome outcome = search(learning);
  expect_filled(outcome);
  EXPECT_FALSE(outcome.distill);
  const QuantizedModel stored = decode_artifact(outcome.artifact, "artifact");
  const double reported = outcome.learning->divergence_after;
  // By a pass of its own, over sequences that nothing else reads.
  const DistillSplit split = split_sequences(learning, 0, 0);
  const TokenSequences held_out = chosen_sequences(tokens_, split);
  const auto pass = make_student_pass(learning, stored, held_out, progress_);
  EXPECT_NEAR(held_out_divergence(*pass, split, held_out.length, progress_), reported, 1e-5 * reported);
}

TEST_F(LearnCodesTest, StepsStayAsTheyAre) {
  const QuantizedModel before = model_.search(SlopeModel::limit_of(kLimit), encode_).model;
  const DistillInput learning = input();
  const LearnedCodes learned = learn(learning, before, all_matrices());
  const QuantizedModel after = learned.codes_in(before, 0);
  int64_t changed = 0;
  for (size_t i = 0; i < before.tensors.size(); ++i) {
    const auto* old_codes = std::get_if<SteppedCodes>(&before.tensors[i].data);
    const auto* new_codes = std::get_if<SteppedCodes>(&after.tensors[i].data);
    if (!old_codes) {
      EXPECT_EQ(after.tensors[i], before.tensors[i]);
      continue;
    }
    EXPECT_EQ(new_codes->row_steps, old_codes->row_steps);
    EXPECT_EQ(new_codes->column_steps, old_codes->column_steps);
    changed += new_codes->codes != old_codes->codes ? 1 : 0;
  }
  EXPECT_GT(changed, 4);
  EXPECT_GT(learned.changed_share(before, after), 0);
  EXPECT_EQ(learned.changed_share(before, before), 0);
}

// Gains of rows learn with the codes where they are to: those of the block's matrices, in their row steps.
TEST_F(LearnCodesTest, RowsLearnToo) {
  const QuantizedModel before = model_.search(SlopeModel::limit_of(kLimit), encode_).model;
  DistillInput learning = input();
  learning.learns_rows = true;
  const std::set<std::string> block = learned_blocks(*model_.original->network, 5'000)[1];
  const LearnedCodes learned = learn(learning, before, block);
  EXPECT_FALSE(learned.gains.rows.empty());
  const QuantizedModel after = with_gains(before, learned.gains, learned.head);
  for (size_t i = 0; i < before.tensors.size(); ++i) {
    const auto* old_codes = std::get_if<SteppedCodes>(&before.tensors[i].data);
    const auto* new_codes = std::get_if<SteppedCodes>(&after.tensors[i].data);
    if (!old_codes) continue;
    const std::string& name = before.tensors[i].name;
    EXPECT_EQ(new_codes->row_steps != old_codes->row_steps, learned.gains.rows.contains(name)) << name;
    EXPECT_TRUE(block.contains(name) || !learned.gains.rows.contains(name)) << name;
  }
  const SlopeOutcome tuned = search(learning);
  expect_filled(tuned);
  ASSERT_TRUE(tuned.learning);
  EXPECT_TRUE(tuned.learning->is_kept);
  EXPECT_NEAR(held_out_divergence(learning, tuned.model, progress_), tuned.learning->divergence_after,
              1e-5 * tuned.learning->divergence_after);
}

// The further the model is from the original, the more a bit is worth, and the fewer there are.
TEST_F(LearnCodesTest, BitsHaveAPrice) {
  const QuantizedModel before = model_.search(SlopeModel::limit_of(kLimit), encode_).model;
  const double divergence = held_out_divergence(input(), before, progress_);
  DistillInput once = input();
  once.codes.steps = 16;  // one look, and what is told is so far that anything is nearer
  once.codes.rate = 0.2;
  auto bytes_at = [&](double told) {
    const LearnedCodes learned = learn_codes(once, before, told, all_matrices(), progress_);
    EXPECT_GT(learned.changed_share(before, learned.codes_in(before, 0)), 0);
    SectionCache cache;
    return encode_artifact(learned.codes_in(before, 0), encode_, cache, progress_).size();
  };
  EXPECT_LT(bytes_at(500 * divergence), bytes_at(5 * divergence));
  EXPECT_EQ(bit_price(before, 2 * divergence), 2 * bit_price(before, divergence));
}

// That the original is to be another, or the data counts too, makes no bit dearer.
TEST_F(LearnCodesTest, BitsCostWhatCodesAreToBlameFor) {
  const QuantizedModel before = model_.search(SlopeModel::limit_of(kLimit), encode_).model;
  const double divergence = held_out_divergence(input(), before, progress_);
  EXPECT_EQ(divergence_of_codes(input(), before, 5, progress_), 5);
  DistillInput warm = input(), taught = input();
  warm.temperature = 0.5;
  taught.data_share = 0.5;
  for (const DistillInput* other : {&warm, &taught}) {
    const double told = held_out_divergence(*other, before, progress_);
    EXPECT_GT(told, 1.1 * divergence);
    EXPECT_EQ(divergence_of_codes(*other, before, told, progress_), divergence);
  }
  // So learning pays the same, whatever it is told of the other.
  warm.codes.steps = 16;
  warm.codes.rate = 0.2;
  auto codes_at = [&](double told) {
    return learn_codes(warm, before, told, all_matrices(), progress_).codes_in(before, 0);
  };
  EXPECT_EQ(codes_at(500 * divergence).tensors, codes_at(5 * divergence).tensors);
}

TEST_F(LearnCodesTest, BlocksHaveAllMatricesOnce) {
  const Network& network = *model_.original->network;
  const auto weights_of = [&](const std::set<std::string>& block) {
    return static_cast<int64_t>(code_learning_bytes(network, block) / kLearnedWeightBytes);
  };
  for (const int64_t most : {int64_t{1}, int64_t{5'000}, kLearnedBlock}) {
    SCOPED_TRACE(most);
    const std::vector<std::set<std::string>> blocks = learned_blocks(network, most);
    std::set<std::string> names;
    size_t count = 0;
    for (const std::set<std::string>& block : blocks) {
      ASSERT_FALSE(block.empty());
      EXPECT_TRUE(weights_of(block) <= most || block.size() == 1);
      names.insert(block.begin(), block.end());
      count += block.size();
    }
    EXPECT_EQ(names, all_matrices());
    EXPECT_EQ(count, names.size());
  }
  EXPECT_EQ(learned_blocks(network, 1).size(), all_matrices().size());
  EXPECT_EQ(learned_blocks(network, kLearnedBlock).size(), 1U);
}

// Nothing but the codes of a block's matrices changes, and small tensors.
TEST_F(LearnCodesTest, OtherBlocksStayAsTheyAre) {
  const QuantizedModel before = model_.search(SlopeModel::limit_of(kLimit), encode_).model;
  const Network& network = *model_.original->network;
  // A block for which something nearer is found.
  const std::set<std::string> block = learned_blocks(network, 5'000).at(2);
  const LearnedCodes learned = learn(input(), before, block);
  const std::vector<std::string> matrices = learned.learner.matrices();
  EXPECT_TRUE(std::ranges::all_of(matrices, [&](const std::string& name) { return block.contains(name); }));
  const QuantizedModel after = learned.codes_in(before, 0);
  for (size_t i = 0; i < before.tensors.size(); ++i) {
    if (!block.contains(before.tensors[i].name)) {
      EXPECT_EQ(after.tensors[i], before.tensors[i]);
    }
  }
  EXPECT_GT(learned.changed_share(before, after), 0);
}

// Block by block: closer too, at the same bytes, for as many steps each.
TEST_F(LearnCodesTest, LearnsBlockByBlock) {
  DistillInput learning = input();
  learning.codes.block = 5'000;
  const auto blocks = std::ssize(learned_blocks(*model_.original->network, learning.codes.block));
  ASSERT_GT(blocks, 2);
  const SlopeOutcome learned = search(learning);
  expect_filled(learned);
  ASSERT_TRUE(learned.learning);
  EXPECT_TRUE(learned.learning->is_kept);
  EXPECT_EQ(learned.learning->steps, 64 * blocks);
  EXPECT_GT(learned.learning->changed_codes, 0.002);
  EXPECT_LT(learned.learning->divergence_after, 0.9 * learned.learning->divergence_before);
  EXPECT_NEAR(held_out_divergence(learning, learned.model, progress_), learned.learning->divergence_after,
              1e-5 * learned.learning->divergence_after);
}

// Calibration text that nothing can be learned from: the model stays what it would be without.
TEST_F(LearnCodesTest, WhatDoesNotHelpIsNotKept) {
  DistillInput destroying = input();
  destroying.codes.rate = 1;
  const SlopeOutcome outcome = search(destroying);
  expect_filled(outcome);
  ASSERT_TRUE(outcome.learning);
  EXPECT_FALSE(outcome.learning->is_kept);
  EXPECT_GE(outcome.learning->divergence_after, 0.99 * outcome.learning->divergence_before);
  EXPECT_LE(held_out_divergence(destroying, outcome.model, progress_), 1.01 * outcome.learning->divergence_before);
  // It is distilled instead.
  destroying.options.steps = 12;
  EXPECT_TRUE(search(destroying).distill);
}

// Looks at the sequences held out end what only does harm, and nothing of it is left.
TEST_F(LearnCodesTest, EndsWhereAllIsLost) {
  const QuantizedModel before = model_.search(SlopeModel::limit_of(kLimit), encode_).model;
  DistillInput destroying = input();
  destroying.codes.rate = 2;
  destroying.codes.steps = 300;
  destroying.options.small_rate = 1;
  const LearnedCodes learned = learn(destroying, before, all_matrices());
  EXPECT_EQ(learned.steps, 8 * 16);
  EXPECT_EQ(learned.codes_in(before, 0), before);
  EXPECT_EQ(learned.gains.small, small_tensors(before, *model_.original->network));
}

TEST_F(LearnCodesTest, ThreadsDoNotChangeBytes) {
  const DistillInput learning = input(4);
  const ByteVector expected = search(learning).artifact;
  for (int threads : {1, 3}) {
    ThreadLimit limit(threads);
    EXPECT_EQ(search(learning).artifact, expected);
  }
}

TEST_F(LearnCodesTest, RanksDoNotChangeBytes) {
  const DistillInput alone = input();
  const QuantizedModel before = model_.search(SlopeModel::limit_of(kLimit), encode_).model;
  auto learned_by = [&](const SharedWork& work) {
    const DistillInput shared{alone.original, tokens_, alone.device, alone.options, work, 7, alone.codes};
    SilentProgress silent;
    const LearnedCodes learned =
        learn_codes(shared, before, held_out_divergence(shared, before, silent), all_matrices(), silent);
    return std::pair(learned.codes_in(before, 0.05), learned.gains.small);
  };
  const auto expected = learned_by(model_.work);
  EXPECT_NE(expected.first, before);
  const WorkFolder nowhere("");
  for (int size : {2, 3, 5}) {
    SCOPED_TRACE(size);
    run_as_ranks(size, [&](Ranks& ranks) { EXPECT_EQ(learned_by(SharedWork(nowhere, ranks)), expected); });
  }
}

// A run that ends after any piece of work goes on to the same bytes.
TEST_F(LearnCodesTest, GoesOnToTheSameBytes) {
  struct Stop {};
  const QuantizedModel before = model_.search(SlopeModel::limit_of(kLimit), encode_).model;
  auto learned_in = [&](const WorkFolder& folder) {
    const SharedWork work(folder, *model_.single);
    DistillInput learning = input();
    learning.codes.steps = 32;
    const DistillInput kept{learning.original, tokens_, learning.device, learning.options, work, 7, learning.codes};
    const LearnedCodes learned = learn(kept, before, all_matrices());
    return std::pair(learned.codes_in(before, 0.05), learned.gains.small);
  };
  const auto expected = learned_in(WorkFolder(""));
  const TemporaryFolder folder;
  const std::string path = folder.file("work");
  EXPECT_THROW(learned_in(WorkFolder(path,
                                     [](size_t count) {
                                       if (count == 1) throw Stop();
                                     })),
               Stop);
  size_t pieces = 0;
  const WorkFolder rest(path, [&](size_t count) { pieces = count; });
  EXPECT_EQ(learned_in(rest), expected);
  EXPECT_EQ(pieces, 1U) << "the second half alone";
  EXPECT_EQ(learned_in(rest), expected);
  EXPECT_EQ(pieces, 1U) << "nothing at all";
  rest.remove();
}

}  // namespace
}  // namespace thimble::learn_codes_test
