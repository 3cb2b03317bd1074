// divergence_test.cpp: gradients of the divergence by every kind of gain against central differences of the divergence
// itself, over every family and option.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/parallel.h"
#include "runtime/cpu/cpu_models.h"
#include "tests/runtime/families/divergence_samples.h"

namespace thimble {
namespace {

constexpr int64_t kSequences = DivergenceSample::kSequences;

class DivergenceOfCases : public testing::TestWithParam<FamilyCase> {
 protected:
  std::unique_ptr<DivergencePass> pass() {
    return make_cpu_divergence_pass(sample_.teacher, *sample_.student, sample_.sequences);
  }

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
INSTANTIATE_TEST_SUITE_P(Options, DivergenceOfCases, testing::ValuesIn(family_cases()),
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

// Of a sequence alone, then of all: sums are the same for any number of threads.
TEST_P(DivergenceOfCases, ThreadsDoNotChangeBits) {
  std::unique_ptr<DivergencePass> pass = this->pass();
  pass->set(sample_.gains);
  const GainGradients expected = pass->gradients(1, 2);
  for (int threads : {1, 3}) {
    ThreadLimit limit(threads);
    std::unique_ptr<DivergencePass> other = this->pass();
    other->set(sample_.gains);
    other->gradients(0, 1);
    const GainGradients found = other->gradients(1, 2);
    EXPECT_EQ(found.divergence, expected.divergence);
    EXPECT_EQ(found.rows, expected.rows);
    EXPECT_EQ(found.head, expected.head);
    EXPECT_EQ(found.small, expected.small);
  }
}

}  // namespace
}  // namespace thimble
