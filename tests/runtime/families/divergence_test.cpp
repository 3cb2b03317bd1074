// divergence_test.cpp: gradients of the divergence by every kind of gain against central differences of the divergence
// itself, over every family and option.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/parallel.h"
#include "runtime/cpu/cpu_models.h"
#include "tests/runtime/families/divergence_samples.h"
#include "tests/runtime/families/rows_left_out.h"

namespace thimble::divergence_test {
namespace {

constexpr int64_t kSequences = DivergenceSample::kSequences;

class DivergenceOfCases : public ::testing::TestWithParam<FamilyCase> {
 protected:
  std::unique_ptr<DivergencePass> pass(const DivergenceOptions& options = {}) {
    return make_cpu_divergence_pass(sample_.teacher, *sample_.student, sample_.sequences, options);
  }

  std::set<std::string> all_matrices() const { return sample_.student->network->matrix_names(); }

  // The derivative of the divergence as `value` (of gains) moves. With `relative`, by its logarithm.
  double derivative(DivergencePass& pass, float& value, bool relative) {
    const float before = value, step = 1.0f / 128;
    auto at = [&](float moved) {
      value = moved;
      pass.set(sample_.gains);
      return pass.divergence(0, kSequences);
    };
    const float up = relative ? before * std::exp(step) : before + step;
    const float down = relative ? before * std::exp(-step) : before - step;
    const double slope = (at(up) - at(down)) / (relative ? 2.0 * double{step} : static_cast<double>(up - down));
    value = before;
    return slope;
  }

  void expect_slope(DivergencePass& pass, float& value, bool relative, double found, const std::string& what) {
    const double slope = derivative(pass, value, relative);
    EXPECT_NEAR(found, slope, 0.02 * std::abs(slope) + 2e-3) << what;
  }

  const FamilyModel model_ = GetParam().make();
  DivergenceSample sample_{model_};
};
INSTANTIATE_TEST_SUITE_P(Options, DivergenceOfCases, ::testing::ValuesIn(family_cases()),
                         [](const auto& test) { return test.param.name; });

TEST_P(DivergenceOfCases, GradientsAreWhatDifferencesFind) {
  std::unique_ptr<DivergencePass> pass = this->pass();
  pass->set(sample_.gains);
  const GainGradients found = pass->gradients(0, kSequences);
  EXPECT_GT(found.divergence, 0);
  EXPECT_NEAR(found.divergence, pass->divergence(0, kSequences), 1e-5 * found.divergence + 1e-5);
  ASSERT_EQ(found.rows.size(), sample_.gains.rows.size());
  for (auto& [name, gains] : sample_.gains.rows) {
    ASSERT_EQ(found.rows.at(name).size(), gains.size()) << name;
    const size_t row = gains.size() / 3;
    expect_slope(*pass, gains[row], true, found.rows.at(name)[row], name);
  }
  expect_slope(*pass, sample_.gains.head, true, found.head, "head");
  ASSERT_EQ(found.small.size(), sample_.gains.small.size());
  for (auto& [name, values] : sample_.gains.small) {
    ASSERT_EQ(found.small.at(name).size(), values.size()) << name;
    for (size_t i : {size_t{0}, values.size() - 1})
      expect_slope(*pass, values[i], false, found.small.at(name)[i], name);
  }
}

TEST_P(DivergenceOfCases, GradientsWithoutRowsAreThoseWithThem) {
  std::unique_ptr<DivergencePass> all = pass({.summed = all_matrices()}),
                                  some = pass({.summed = all_matrices(), .sums_rows = false});
  expect_rows_left_out(*all, *some, sample_.gains, kSequences);
}

// Without gains: the student's matrices are what set_matrix() puts there.
TEST_P(DivergenceOfCases, GradientsOfMatricesAreWhatDifferencesFind) {
  std::unique_ptr<DivergencePass> pass = this->pass({.summed = all_matrices()});
  pass->set({.rows = {}, .head = 1, .small = sample_.gains.small});
  MatrixGradients found;
  const GainGradients gains = pass->gradients(0, kSequences, &found);
  EXPECT_EQ(gains.rows, pass->gradients(0, kSequences).rows);
  const Network& network = *sample_.student->network;
  ASSERT_EQ(found.size(), network.matrices.size());
  double total = 0;
  for (const MatrixUse& use : network.matrices) {
    const StoredMatrix& first = sample_.student->matrix(network.id_of(use.name));
    ASSERT_EQ(found.at(use.name).rows(), use.rows);
    ASSERT_EQ(found.at(use.name).cols(), use.columns);
    // A direction of all elements: along it the derivative is a sum of all gradients.
    double expected = 0, magnitude = 0;
    auto direction = [&](size_t i) { return static_cast<float>(uniform_at(8, use.name.size(), i) - 0.5); };
    for (size_t i = 0; i < found.at(use.name).values().size(); ++i) {
      const double part = double{found.at(use.name).values()[i]} * double{direction(i)};
      expected += part;
      magnitude += std::abs(part);
    }
    auto at = [&](float step) {
      Matrix moved = first.widened();
      for (size_t i = 0; i < moved.values().size(); ++i) moved.values()[i] += step * direction(i);
      pass->set_matrix(use.name, moved);
      return pass->divergence(0, kSequences);
    };
    // Richardson's extrapolation of two central differences.
    auto slope_over = [&](float step) { return (at(step) - at(-step)) / (2 * double{step}); };
    const double slope = (4 * slope_over(1.0f / 512) - slope_over(1.0f / 256)) / 3;
    pass->set_matrix(use.name, first);
    EXPECT_NEAR(expected, slope, 0.02 * std::abs(slope) + 1e-2 + 1e-4 * magnitude) << use.name;
    total += magnitude;
  }
  EXPECT_GT(total, 0);
}

// A student whose matrices are all replaced is one that had them at first, with gains and without.
TEST_P(DivergenceOfCases, ReplacedMatricesAreAsGoodAsTheFirst) {
  std::unique_ptr<DivergencePass> of_student = this->pass({.summed = all_matrices()});
  const auto student = sample_.student;
  sample_.student = sample_.teacher;
  std::unique_ptr<DivergencePass> replaced = this->pass({.summed = all_matrices()});
  for (DivergencePass* pass : {of_student.get(), replaced.get()}) pass->set(sample_.gains);
  const Network& network = *student->network;
  for (const MatrixUse& use : network.matrices)
    replaced->set_matrix(use.name, student->matrix(network.id_of(use.name)));
  Gains none;
  none.small = sample_.gains.small;
  of_student->set(none);
  EXPECT_EQ(replaced->divergence(0, kSequences), of_student->divergence(0, kSequences))
      << "no gain until the next set()";
  for (DivergencePass* pass : {of_student.get(), replaced.get()}) pass->set(sample_.gains);
  MatrixGradients expected, found;
  const GainGradients of_first = of_student->gradients(0, kSequences, &expected),
                      of_replaced = replaced->gradients(0, kSequences, &found);
  EXPECT_EQ(of_replaced.divergence, of_first.divergence);
  EXPECT_EQ(of_replaced.rows, of_first.rows);
  for (const auto& [name, gradient] : expected)
    EXPECT_TRUE(std::ranges::equal(found.at(name).values(), gradient.values())) << name;
}

// By the logarithm of a row's gain: the sum over the row of weight times gradient, weights with their gains.
TEST_P(DivergenceOfCases, GradientsOfMatricesAreOfWeightsWithTheirGains) {
  std::unique_ptr<DivergencePass> pass = this->pass({.summed = all_matrices()});
  pass->set(sample_.gains);
  MatrixGradients found;
  const GainGradients gains = pass->gradients(0, kSequences, &found);
  for (const auto& [name, rows] : gains.rows) {
    const Matrix weights = sample_.student->matrix(sample_.student->network->id_of(name)).widened();
    for (size_t r = 0; r < rows.size(); ++r) {
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < weights.cols(); ++k) {
        const auto row = static_cast<int64_t>(r);
        const double part =
            double{weights(row, k)} * double{sample_.gains.rows.at(name)[r]} * double{found.at(name)(row, k)};
        sum += part;
        magnitude += std::abs(part);
      }
      ASSERT_NEAR(sum, rows[r], 1e-5 + 1e-5 * magnitude) << name << ' ' << r;
    }
  }
}

TEST_P(DivergenceOfCases, OfTheTeacherItselfIsZero) {
  sample_.student = sample_.teacher;
  Gains none;
  none.small = sample_.gains.small;
  std::unique_ptr<DivergencePass> pass = this->pass();
  pass->set(none);
  const GainGradients found = pass->gradients(0, kSequences);
  EXPECT_NEAR(found.divergence, 0, 1e-4);
  for (const auto& [name, values] : found.rows)
    for (double value : values) EXPECT_NEAR(value, 0, 1e-3) << name;
}

// The student is its matrices as they were at first, times these gains; a gain that is not given is 1.
TEST_P(DivergenceOfCases, GainsDoNotLast) {
  Gains none;
  none.small = sample_.gains.small;
  std::unique_ptr<DivergencePass> fresh = this->pass(), used = this->pass();
  used->set(sample_.gains);
  const double with_gains = used->divergence(0, kSequences);
  for (auto* pass : {fresh.get(), used.get()}) pass->set(none);
  EXPECT_EQ(used->divergence(0, kSequences), fresh->divergence(0, kSequences));
  used->set(sample_.gains);
  EXPECT_EQ(used->divergence(0, kSequences), with_gains);
}

// A student of codes, which gains leave shared, is one of their values in float32.
TEST_P(DivergenceOfCases, OfAStudentOfCodesIsThatOfItsValues) {
  Weights coded = *sample_.student, plain = coded;
  for (size_t id = 0; id < coded.matrices.size(); ++id) {
    const Matrix values = coded.matrices[id].widened();
    std::vector<int8_t> codes;
    for (const float value : values.values())
      codes.push_back(static_cast<int8_t>(std::clamp(std::lround(value * 64), -127l, 127l)));
    coded.matrices[id] = StoredMatrix(codes, std::vector<float>(static_cast<size_t>(values.rows()), 0.0157f),
                                      std::vector<float>(static_cast<size_t>(values.cols()), 1.01f));
    plain.matrices[id] = coded.matrices[id].widened();
  }
  std::vector<GainGradients> found;
  for (const Weights& student : {coded, plain}) {
    const auto pass = make_cpu_divergence_pass(sample_.teacher, student, sample_.sequences);
    pass->set(sample_.gains);
    found.push_back(pass->gradients(0, kSequences));
  }
  EXPECT_EQ(found[0].divergence, found[1].divergence);
  EXPECT_EQ(found[0].rows, found[1].rows);
  EXPECT_EQ(found[0].head, found[1].head);
  EXPECT_EQ(found[0].small, found[1].small);
}

// A student that is its teacher is where the divergence is least, unless what follows counts too.
TEST_P(DivergenceOfCases, DataPullsAwayFromTheOriginal) {
  std::unique_ptr<DivergencePass> pure = pass({.summed = all_matrices()}),
                                  mixed = pass({.summed = all_matrices(), .data_share = 0.3});
  for (DivergencePass* pass : {pure.get(), mixed.get()}) pass->set(sample_.gains);
  MatrixGradients of_pure, of_mixed;
  EXPECT_GT(mixed->gradients(0, kSequences, &of_mixed).divergence, pure->gradients(0, kSequences, &of_pure).divergence);
  const std::string head = sample_.teacher->network->matrix(sample_.teacher->network->head.weight).name;
  EXPECT_FALSE(std::ranges::equal(of_mixed.at(head).values(), of_pure.at(head).values()));
}

// At a temperature the original's predictions are others, which its own slope tells from the loss of what follows.
TEST_P(DivergenceOfCases, TemperatureSlopesAreDerivatives) {
  constexpr double kStep = 1e-3;
  std::unique_ptr<DivergencePass> teacher = pass();
  for (double inverse : {1.0, 1.25}) {
    const TemperatureSlope at = teacher->temperature_slope(0, kSequences, 1 / inverse),
                           before = teacher->temperature_slope(0, kSequences, 1 / (inverse - kStep)),
                           after = teacher->temperature_slope(0, kSequences, 1 / (inverse + kStep));
    EXPECT_GT(at.curvature, 0);
    EXPECT_NEAR((after.slope - before.slope) / (2 * kStep), at.curvature, 1e-3 * at.curvature);
    EXPECT_GE(at.squares * static_cast<double>(kSequences * (sample_.sequences.length - 1)), at.slope * at.slope);
  }
  const TemperatureSlope all = teacher->temperature_slope(0, kSequences, 1);
  double sum = 0;
  for (int64_t s = 0; s < kSequences; ++s) sum += teacher->temperature_slope(s, 1, 1).slope;
  EXPECT_NEAR(sum, all.slope, 1e-9 * std::abs(all.slope) + 1e-9);
}

TEST_P(DivergenceOfCases, TemperatureChangesWhatIsToBePredicted) {
  std::unique_ptr<DivergencePass> plain = pass(), sharp = pass({.temperature = 0.8});
  for (DivergencePass* pass : {plain.get(), sharp.get()}) pass->set(sample_.gains);
  EXPECT_NE(sharp->divergence(0, kSequences), plain->divergence(0, kSequences));
  // The original itself is as far from its own predictions at 0.8 as half their variance says, to second order.
  auto of_original = [&](double temperature) {
    return make_cpu_divergence_pass(sample_.teacher, *sample_.teacher, sample_.sequences, {.temperature = temperature});
  };
  constexpr double kMoved = 1 / 0.99 - 1;
  const double curvature = of_original(1)->temperature_slope(0, kSequences, 1).curvature;
  EXPECT_LT(of_original(1)->divergence(0, kSequences), 1e-3 * curvature * kMoved * kMoved);
  EXPECT_NEAR(of_original(0.99)->divergence(0, kSequences), curvature * kMoved * kMoved / 2,
              0.1 * curvature * kMoved * kMoved);
}

// What the original's head reads is kept of some sequences, or of all.
TEST_P(DivergenceOfCases, OriginalsThatAreComputedAgainAreTheSame) {
  std::unique_ptr<DivergencePass> all = pass({.summed = all_matrices()}),
                                  some = pass({.summed = all_matrices(), .teacher_bytes = 1});
  MatrixGradients of_all, of_some;
  for (DivergencePass* pass : {all.get(), some.get()}) pass->set(sample_.gains);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(some->divergence(kSequences - 1, 1), all->divergence(kSequences - 1, 1));
    EXPECT_EQ(some->gradients(0, kSequences, &of_some).rows, all->gradients(0, kSequences, &of_all).rows);
    for (const auto& [name, gradient] : of_all)
      EXPECT_TRUE(std::ranges::equal(of_some.at(name).values(), gradient.values())) << name;
  }
}

// Of a sequence alone, then of all: sums are the same for any number of threads.
TEST_P(DivergenceOfCases, ThreadsDoNotChangeBits) {
  std::unique_ptr<DivergencePass> pass = this->pass({.summed = all_matrices()});
  pass->set(sample_.gains);
  MatrixGradients expected_matrices;
  const GainGradients expected = pass->gradients(1, 2, &expected_matrices);
  for (int threads : {1, 3}) {
    ThreadLimit limit(threads);
    std::unique_ptr<DivergencePass> other = this->pass({.summed = all_matrices()});
    other->set(sample_.gains);
    MatrixGradients found_matrices;
    other->gradients(0, 1, &found_matrices);
    const GainGradients found = other->gradients(1, 2, &found_matrices);
    for (const auto& [name, gradient] : expected_matrices)
      EXPECT_TRUE(std::ranges::equal(found_matrices.at(name).values(), gradient.values())) << name;
    EXPECT_EQ(found.divergence, expected.divergence);
    EXPECT_EQ(found.rows, expected.rows);
    EXPECT_EQ(found.head, expected.head);
    EXPECT_EQ(found.small, expected.small);
  }
}

}  // namespace
}  // namespace thimble::divergence_test
