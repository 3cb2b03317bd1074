// shared_models_test.cpp: one model on several devices and ranks: the same bits however a call is cut.
#include "runtime/device/models.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>

#include "runtime/cpu/cpu_models.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/families/divergence_samples.h"
#include "tests/runtime/families/family_models.h"
#include "tests/runtime/families/score_windows.h"
#include "tests/runtime/ops/changed_matrix.h"
#include "tests/support/thread_ranks.h"

namespace thimble::shared_models_test {
namespace {

constexpr int64_t kContext = 24;

// Counts what generation reports, from any thread.
struct SharedCounter final : Progress {
  void begin(std::string_view, int64_t, std::string_view) override {}
  void advance(int64_t units) override { advanced += units; }
  void end() override {}
  std::atomic<int64_t> advanced = 0;
};

class SharedModels : public ::testing::TestWithParam<FamilyCase> {
 protected:
  std::unique_ptr<Scorer> cpu_scorer() const { return make_cpu_scorer(model_.weights, Numerics::kFp32, kContext); }
  std::unique_ptr<Generator> cpu_generator() const {
    return make_cpu_generator(model_.weights, Numerics::kFp32, kContext);
  }

  std::unique_ptr<Scorer> shared_scorer(size_t count, Ranks& ranks) const {
    std::vector<std::unique_ptr<Scorer>> parts;
    for (size_t i = 0; i < count; ++i) parts.push_back(cpu_scorer());
    return make_shared_scorer(std::move(parts), ranks);
  }
  std::unique_ptr<Generator> shared_generator(size_t count, Ranks& ranks) const {
    std::vector<std::unique_ptr<Generator>> parts;
    for (size_t i = 0; i < count; ++i) parts.push_back(cpu_generator());
    return make_shared_generator(std::move(parts), ranks);
  }

  const FamilyModel model_ = GetParam().make();
  const std::vector<Token> tokens_ = random_tokens(3 * kContext, model_.vocabulary());
  const std::vector<ScoreWindow> windows_ = windows_of_every_length(tokens_, kContext);
  const CalibrationOptions calibration_{9, kContext, 0.8, 11};
  const TextScript script_ = uniform_script(model_.vocabulary(), calibration_);
  const std::unique_ptr<Ranks> alone_ = make_single_rank();
};
INSTANTIATE_TEST_SUITE_P(Families, SharedModels, ::testing::ValuesIn(undecided_cases()),
                         [](const auto& test) { return test.param.name; });

TEST_P(SharedModels, SplittingWindowsChangesNoBit) {
  const std::vector<float> expected = scores_of(*cpu_scorer(), windows_);
  for (size_t parts : {1, 2, 3, 7}) {
    std::unique_ptr<Scorer> scorer = shared_scorer(parts, *alone_);
    EXPECT_EQ(scores_of(*scorer, windows_), expected) << parts;
    EXPECT_EQ(scorer->preferred_windows(), static_cast<int64_t>(parts));
    // Fewer windows than devices, and none.
    const std::span<const ScoreWindow> one = std::span(windows_).first(1);
    EXPECT_EQ(scores_of(*scorer, one), scores_of(*cpu_scorer(), one));
    EXPECT_TRUE(scores_of(*scorer, {}).empty());
  }
}

TEST_P(SharedModels, SplittingSequencesChangesNoToken) {
  SharedCounter progress;
  const TokenSequences expected = cpu_generator()->calibration(script_, 0, 9, progress);
  EXPECT_EQ(progress.advanced, 9 * kContext);
  for (size_t parts : {2, 4, 12}) {
    SharedCounter split_progress;
    const TokenSequences found = shared_generator(parts, *alone_)->calibration(script_, 0, 9, split_progress);
    EXPECT_EQ(found.count, 9);
    EXPECT_EQ(found.length, kContext);
    EXPECT_EQ(found.tokens, expected.tokens) << parts;
    EXPECT_EQ(split_progress.advanced, 9 * kContext);
    const TokenSequences later = shared_generator(parts, *alone_)->calibration(script_, 5, 3, split_progress);
    EXPECT_TRUE(std::ranges::equal(later.tokens, std::span(expected.tokens).subspan(5 * kContext, 3 * kContext)));
  }
}

std::vector<Token> text_of(Generator& generator, std::span<const Token> prompt) {
  std::vector<Token> tokens;
  generator.text(prompt, {.most_new_tokens = 7, .temperature = 0.9, .seed = 3}, [&](Token token) {
    tokens.push_back(token);
    return true;
  });
  return tokens;
}

TEST_P(SharedModels, AnswerTheRestAsOneDoes) {
  std::unique_ptr<Scorer> one = cpu_scorer(), three = shared_scorer(3, *alone_);
  EXPECT_EQ(three->context(), kContext);
  EXPECT_EQ(three->vocabulary(), model_.vocabulary());
  const std::span<const Token> inputs = std::span(tokens_).first(10);
  Matrix a(4, model_.vocabulary()), b(4, model_.vocabulary());
  one->log_probabilities(inputs, a);
  three->log_probabilities(inputs, b);
  EXPECT_TRUE(std::ranges::equal(a.values(), b.values()));
  EXPECT_FALSE(three->find_non_finite_input(inputs));

  std::unique_ptr<Generator> single = cpu_generator(), triple = shared_generator(3, *alone_);
  EXPECT_EQ(triple->preferred_sequences(calibration_), 3 * single->preferred_sequences(calibration_));
  EXPECT_EQ(text_of(*single, inputs).size(), 7u);
  EXPECT_EQ(text_of(*single, inputs), text_of(*triple, inputs));
}

TEST_P(SharedModels, AModelThatIsAloneIsItself) {
  std::unique_ptr<Scorer> scorer = cpu_scorer();
  const Scorer* address = scorer.get();
  std::vector<std::unique_ptr<Scorer>> parts;
  parts.push_back(std::move(scorer));
  EXPECT_EQ(make_shared_scorer(std::move(parts), *alone_).get(), address);
}

// Every rank gets all results, with one device each or several.
TEST_P(SharedModels, RanksChangeNoBit) {
  const std::vector<float> expected = scores_of(*cpu_scorer(), windows_);
  SilentProgress silent;
  const TokenSequences sequences = cpu_generator()->calibration(script_, 0, 9, silent);
  const int64_t preferred = cpu_generator()->preferred_sequences(calibration_);
  for (int size : {1, 2, 3, 5})
    for (size_t parts : {1, 2}) {
      SCOPED_TRACE(::testing::Message() << size << " ranks with " << parts);
      run_as_ranks(size, [&](Ranks& ranks) {
        std::unique_ptr<Scorer> scorer = shared_scorer(parts, ranks);
        EXPECT_EQ(scorer->vocabulary(), model_.vocabulary());
        EXPECT_GE(scorer->preferred_windows(), static_cast<int64_t>(parts) * size);
        EXPECT_EQ(scores_of(*scorer, windows_), expected);
        const std::span<const ScoreWindow> few = std::span(windows_).first(2);  // not one for each
        EXPECT_EQ(scores_of(*scorer, few), std::vector<float>(expected.begin(), expected.begin() + 2));
        EXPECT_TRUE(scores_of(*scorer, {}).empty());

        std::unique_ptr<Generator> generator = shared_generator(parts, ranks);
        EXPECT_EQ(generator->preferred_sequences(calibration_), static_cast<int64_t>(parts) * size * preferred);
        SharedCounter progress;
        const TokenSequences found = generator->calibration(script_, 0, 9, progress);
        EXPECT_EQ(found.tokens, sequences.tokens);
        EXPECT_EQ(progress.advanced, 9 * kContext);
        const TokenSequences later = generator->calibration(script_, 5, 3, progress);
        EXPECT_TRUE(std::ranges::equal(later.tokens, std::span(sequences.tokens).subspan(5 * kContext, 3 * kContext)));
        EXPECT_EQ(text_of(*generator, std::span(tokens_).first(10)).size(), 7u);
      });
    }
}

// How far a student is from its teacher, and gradients by its gains: cut into the same parts whoever computes them.
TEST_P(SharedModels, SplittingGradientsChangesNoBit) {
  const DivergenceSample sample(model_);
  constexpr int64_t kSequences = 7;
  const TokenSequences sequences{kSequences, kContext, random_tokens(kSequences * kContext, model_.vocabulary(), 4)};
  auto plain = [&] { return make_cpu_divergence_pass(sample.teacher, *sample.student, sequences); };
  auto shared = [&](size_t count, Ranks& ranks) {
    std::vector<std::unique_ptr<DevicePass>> parts;
    for (size_t i = 0; i < count; ++i) parts.push_back(plain());
    auto pass = make_shared_divergence_pass(std::move(parts), *sample.teacher, ranks);
    pass->set(sample.gains);
    return pass;
  };
  const std::unique_ptr<DivergencePass> one = plain(), by_parts = shared(1, *alone_);
  one->set(sample.gains);
  for (const int64_t count : {int64_t{1}, int64_t{3}, kSequences}) {
    const int64_t first = kSequences - count;
    const GainGradients expected = by_parts->gradients(first, count), whole = one->gradients(first, count);
    EXPECT_NEAR(expected.divergence, whole.divergence, 1e-12 * whole.divergence);
    EXPECT_NEAR(expected.head, whole.head, 1e-9 * (std::abs(whole.head) + 1));
    for (const auto& [of_parts, of_whole] :
         {std::pair(&expected.rows, &whole.rows), std::pair(&expected.small, &whole.small)}) {
      ASSERT_EQ(of_parts->size(), of_whole->size());
      for (const auto& [name, values] : *of_whole)
        for (size_t i = 0; i < values.size(); ++i)
          EXPECT_NEAR(of_parts->at(name).at(i), values[i], 1e-9 * (std::abs(values[i]) + 1)) << name;
    }
    const std::vector<double> divergences = one->divergences(first, count);
    const double divergence = one->divergence(first, count);
    for (int size : {1, 2, 3, 5})
      for (size_t parts : {1, 2}) {
        SCOPED_TRACE(::testing::Message() << count << " sequences, " << size << " ranks with " << parts);
        run_as_ranks(size, [&](Ranks& ranks) {
          const std::unique_ptr<DivergencePass> pass = shared(parts, ranks);
          EXPECT_EQ(pass->preferred_sequences(), static_cast<int64_t>(parts) * size);
          const GainGradients found = pass->gradients(first, count);
          EXPECT_EQ(found.divergence, expected.divergence);
          EXPECT_EQ(found.head, expected.head);
          EXPECT_EQ(found.rows, expected.rows);
          EXPECT_EQ(found.small, expected.small);
          EXPECT_EQ(pass->divergences(first, count), divergences);
          EXPECT_EQ(pass->divergence(first, count), divergence);
        });
      }
  }
}

// And gradients by its matrices, with matrices that are replaced on the way.
TEST_P(SharedModels, SplittingGradientsOfMatricesChangesNoBit) {
  const DivergenceSample sample(model_);
  constexpr int64_t kSequences = 7;
  const TokenSequences sequences{kSequences, kContext, random_tokens(kSequences * kContext, model_.vocabulary(), 4)};
  const DivergenceOptions options{.summed = model_.weights->network->matrix_names()};
  auto plain = [&] { return make_cpu_divergence_pass(sample.teacher, *sample.student, sequences, options); };
  auto shared = [&](size_t count, Ranks& ranks) {
    std::vector<std::unique_ptr<DevicePass>> parts;
    for (size_t i = 0; i < count; ++i) parts.push_back(plain());
    return make_shared_divergence_pass(std::move(parts), *sample.teacher, ranks, options);
  };
  // Of one sequence, of some and of all; then of some of another student.
  auto learn = [&](DivergencePass& pass) {
    std::vector<MatrixGradients> found(4);
    pass.set(sample.gains);
    const std::array<int64_t, 4> counts = {1, 3, kSequences, 6};
    for (size_t i = 0; i < counts.size(); ++i) {
      if (i == 3) {
        const std::string& name = *options.summed.begin();
        pass.set_matrix(name, sample.teacher->matrix(sample.teacher->network->id_of(name)));
        pass.set(sample.gains);
      }
      pass.gradients(kSequences - counts[i], counts[i], &found[i]);
    }
    return found;
  };
  const std::vector<MatrixGradients> expected = learn(*shared(1, *alone_)), whole = learn(*plain());
  for (size_t i = 0; i < expected.size(); ++i)
    for (const std::string& name : options.summed) {
      const std::span<const float> of_parts = expected[i].at(name).values(), of_whole = whole[i].at(name).values();
      float largest = 0;
      for (float value : of_whole) largest = std::max(largest, std::abs(value));
      for (size_t k = 0; k < of_whole.size(); ++k) ASSERT_NEAR(of_parts[k], of_whole[k], 1e-5F * largest) << name;
    }
  for (int size : {1, 2, 3, 5})
    for (size_t parts : {1, 2}) {
      SCOPED_TRACE(::testing::Message() << size << " ranks with " << parts);
      run_as_ranks(size, [&](Ranks& ranks) {
        const std::vector<MatrixGradients> found = learn(*shared(parts, ranks));
        for (size_t i = 0; i < expected.size(); ++i)
          for (const auto& [name, gradient] : expected[i])
            EXPECT_TRUE(std::ranges::equal(found[i].at(name).values(), gradient.values())) << i << ' ' << name;
      });
    }
}

// Of several errors the first device's is reported; logits that are not finite make one here.
TEST_P(SharedModels, AnErrorOnOneDeviceIsTheCallsError) {
  Weights damaged = *model_.weights;
  change_matrix(damaged, damaged.network->head.weight,
                [](Matrix& head) { head(0, 0) = std::numeric_limits<float>::quiet_NaN(); });
  std::vector<std::unique_ptr<Generator>> parts;
  parts.push_back(cpu_generator());
  parts.push_back(make_cpu_generator(std::make_shared<const Weights>(damaged), Numerics::kFp32, kContext));
  parts.push_back(cpu_generator());
  std::unique_ptr<Generator> generator = make_shared_generator(std::move(parts), *alone_);
  SilentProgress silent;
  expect_error<Error>([&] { generator->calibration(script_, 0, 9, silent); }, {"logits are not finite"});
}

}  // namespace
}  // namespace thimble::shared_models_test
