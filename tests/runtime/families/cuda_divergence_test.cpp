// cuda_divergence_test.cpp: divergences and their gradients on the device against the CPU's, in both families.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "runtime/cuda/cuda_student.cuh"
#include "tests/runtime/families/divergence_pair.h"
#include "tests/runtime/families/rows_left_out.h"

namespace thimble::cuda_divergence_test {
namespace {

constexpr int64_t kSequences = DivergencePair::kSequences;

void expect_near(const NamedGradients& found, const NamedGradients& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, values] : expected) {
    ASSERT_EQ(found.at(name).size(), values.size()) << name;
    double largest = 1;
    for (double value : values) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(found.at(name)[i], values[i], 2e-4 * largest) << name;
  }
}

void expect_near(const MatrixGradients& found, const MatrixGradients& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, gradient] : expected) {
    const std::span<const float> values = gradient.values(), others = found.at(name).values();
    ASSERT_EQ(others.size(), values.size()) << name;
    float largest = 1e-2f;
    for (float value : values) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(others[i], values[i], 5e-4f * largest) << name << ' ' << i;
  }
}

class CudaDivergence : public ::testing::TestWithParam<NetworkRecipe> {
 protected:
  void SetUp() override {
    if (cuda_device_names().empty()) GTEST_SKIP() << "no CUDA device";
  }
};
INSTANTIATE_TEST_SUITE_P(Samples, CudaDivergence, ::testing::ValuesIn(family_recipes()), recipe_name);

TEST_P(CudaDivergence, IsTheCpus) {
  DivergencePair pair(GetParam().make());
  std::unique_ptr<DivergencePass> cpu = pair.on_cpu(), cuda = pair.on_cuda();
  for (float head : {1.0f, 1.2f}) {
    pair.gains.head = head;
    cpu->set(pair.gains);
    cuda->set(pair.gains);
    const GainGradients expected = cpu->gradients(1, 2), found = cuda->gradients(1, 2);
    EXPECT_NEAR(found.divergence, expected.divergence, 1e-4 * expected.divergence + 1e-4);
    EXPECT_EQ(cuda->divergence(1, 2), found.divergence) << "the same forward pass";
    EXPECT_NEAR(found.head, expected.head, 1e-3 * std::max(1.0, std::abs(expected.head)));
    expect_near(found.rows, expected.rows);
    expect_near(found.small, expected.small);
    EXPECT_EQ(cuda->gradients(1, 2).rows, found.rows);
  }
}

TEST_P(CudaDivergence, GradientsOfMatricesAreTheCpus) {
  DivergencePair pair(GetParam().make());
  std::unique_ptr<DivergencePass> cpu = pair.on_cpu({.summed = pair.all_matrices()}),
                                  cuda = pair.on_cuda({0}, {.summed = pair.all_matrices()});
  for (DivergencePass* pass : {cpu.get(), cuda.get()}) pass->set(pair.gains);
  MatrixGradients expected, found, again;
  const GainGradients gains = cuda->gradients(0, kSequences, &found);
  cpu->gradients(0, kSequences, &expected);
  expect_near(found, expected);
  EXPECT_EQ(cuda->gradients(0, kSequences).rows, gains.rows);
  cuda->gradients(1, 1, &again);  // another's sums do not stay
  cuda->gradients(0, kSequences, &again);
  for (const auto& [name, gradient] : found)
    EXPECT_TRUE(std::ranges::equal(again.at(name).values(), gradient.values())) << name;
}

// Of one matrix alone, bit for bit what it is among all.
TEST_P(CudaDivergence, GradientsOfSomeMatricesAreThoseOfAll) {
  DivergencePair pair(GetParam().make());
  std::unique_ptr<DivergencePass> all = pair.on_cuda({0}, {.summed = pair.all_matrices()});
  all->set(pair.gains);
  MatrixGradients expected;
  all->gradients(0, kSequences, &expected);
  for (const std::string& name : pair.all_matrices()) {
    std::unique_ptr<DivergencePass> some = pair.on_cuda({0}, {.summed = {name}});
    some->set(pair.gains);
    MatrixGradients found;
    some->gradients(0, kSequences, &found);
    ASSERT_EQ(found.size(), 1U) << name;
    EXPECT_TRUE(std::ranges::equal(found.at(name).values(), expected.at(name).values())) << name;
  }
}

// Without those by gains of rows, all others are what they are with them.
TEST_P(CudaDivergence, GradientsWithoutRowsAreThoseWithThem) {
  DivergencePair pair(GetParam().make());
  const std::set<std::string> names = pair.all_matrices();
  for (const Numerics numerics : {Numerics::kFp32, Numerics::kBf16}) {
    std::unique_ptr<DivergencePass> all = pair.on_cuda({0}, {.summed = names}, numerics),
                                    some = pair.on_cuda({0}, {.summed = names, .sums_rows = false}, numerics);
    expect_rows_left_out(*all, *some, pair.gains, kSequences);
  }
}

// Values and gradients are rounded to 8 bits: of gradients that nearly cancel, those of queries and keys, some percent
// are noise; and so the divergence, a sum over all positions, comes out a little larger.
TEST_P(CudaDivergence, GradientsInBf16AreNearTheCpus) {
  DivergencePair pair(GetParam().make());
  const DivergenceOptions options{.summed = pair.all_matrices()};
  std::unique_ptr<DivergencePass> cpu = pair.on_cpu(options), cuda = pair.on_cuda({0}, options, Numerics::kBf16);
  for (DivergencePass* pass : {cpu.get(), cuda.get()}) pass->set(pair.gains);
  MatrixGradients expected, found;
  const double divergence = cpu->gradients(0, kSequences, &expected).divergence;
  EXPECT_NEAR(cuda->gradients(0, kSequences, &found).divergence, divergence, 0.05 * divergence + 2e-2);
  for (const auto& [name, gradient] : expected) {
    double squares = 0, errors = 0;
    for (size_t i = 0; i < gradient.values().size(); ++i) {
      const double value = gradient.values()[i], error = found.at(name).values()[i] - value;
      squares += value * value;
      errors += error * error;
    }
    EXPECT_LT(std::sqrt(errors), 0.15 * std::sqrt(squares) + 1e-4) << name;
  }
}

// Bit for bit: as many sequences at a time as there are, and one, for want of memory.
TEST_P(CudaDivergence, GradientsOfMatricesAreThoseOfAnyBatch) {
  DivergencePair pair(GetParam().make());
  const DivergenceOptions options{.summed = pair.all_matrices()};
  const int64_t length = pair.sequences.length;
  // Of one sequence alone, with what the original's head reads in all: the least limit that is enough.
  const auto bytes = [&](int64_t sequences) {
    return plan_divergence(pair.student->network, Numerics::kFp32, length, sequences, kNoMemoryLimit, options).bytes();
  };
  uint64_t limit = bytes(kSequences);
  const uint64_t step = (bytes(2) - bytes(1)) / 8 + 1;
  while (plan_divergence(pair.student->network, Numerics::kFp32, length, kSequences, limit, options).batch > 1)
    limit -= step;
  std::unique_ptr<DivergencePass> whole = pair.on_cuda({0}, options), single = pair.on_cuda({0, limit}, options);
  MatrixGradients of_whole, of_single;
  for (DivergencePass* pass : {whole.get(), single.get()}) pass->set(pair.gains);
  whole->gradients(0, kSequences, &of_whole);
  single->gradients(0, kSequences, &of_single);
  for (const auto& [name, gradient] : of_whole)
    EXPECT_TRUE(std::ranges::equal(of_single.at(name).values(), gradient.values())) << name;
}

TEST_P(CudaDivergence, TemperaturesAreTheCpus) {
  DivergencePair pair(GetParam().make());
  const DivergenceOptions options{.temperature = 0.8};
  std::unique_ptr<DivergencePass> cpu = pair.on_cpu(options), cuda = pair.on_cuda({0}, options);
  for (DivergencePass* pass : {cpu.get(), cuda.get()}) pass->set(pair.gains);
  EXPECT_NEAR(cuda->divergence(1, 2), cpu->divergence(1, 2), 1e-4 * cpu->divergence(1, 2) + 1e-3);
  const TemperatureSlope expected = cpu->temperature_slope(0, kSequences, 0.9),
                         found = cuda->temperature_slope(0, kSequences, 0.9);
  EXPECT_NEAR(found.slope, expected.slope, 1e-3 * std::sqrt(expected.squares) + 1e-3);
  EXPECT_NEAR(found.curvature, expected.curvature, 1e-3 * expected.curvature);
  EXPECT_NEAR(found.squares, expected.squares, 1e-3 * expected.squares);
}

// What follows counts on the device as it does on the CPU.
TEST_P(CudaDivergence, DataCountsAsOnTheCpu) {
  DivergencePair pair(GetParam().make());
  const DivergenceOptions options{.summed = pair.all_matrices(), .data_share = 0.3};
  std::unique_ptr<DivergencePass> cpu = pair.on_cpu(options), cuda = pair.on_cuda({0}, options);
  for (DivergencePass* pass : {cpu.get(), cuda.get()}) pass->set(pair.gains);
  EXPECT_NEAR(cuda->divergence(1, 2), cpu->divergence(1, 2), 1e-4 * cpu->divergence(1, 2) + 1e-3);
  MatrixGradients expected, found;
  const GainGradients on_cpu = cpu->gradients(0, kSequences, &expected),
                      on_cuda = cuda->gradients(0, kSequences, &found);
  EXPECT_NEAR(on_cuda.divergence, on_cpu.divergence, 1e-4 * on_cpu.divergence + 1e-3);
  expect_near(found, expected);
}

// What the original's head reads is kept of some sequences, or of all.
TEST_P(CudaDivergence, OriginalsThatAreComputedAgainAreTheSame) {
  DivergencePair pair(GetParam().make());
  std::unique_ptr<DivergencePass> all = pair.on_cuda({0}, {.summed = pair.all_matrices()}),
                                  some = pair.on_cuda({0}, {.summed = pair.all_matrices(), .teacher_bytes = 1});
  MatrixGradients of_all, of_some;
  for (DivergencePass* pass : {all.get(), some.get()}) pass->set(pair.gains);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(some->divergence(kSequences - 1, 1), all->divergence(kSequences - 1, 1));
    EXPECT_EQ(some->gradients(1, 2, &of_some).rows, all->gradients(1, 2, &of_all).rows);
    EXPECT_EQ(some->gradients(0, kSequences, &of_some).rows, all->gradients(0, kSequences, &of_all).rows);
    for (const auto& [name, gradient] : of_all)
      EXPECT_TRUE(std::ranges::equal(of_some.at(name).values(), gradient.values())) << name;
  }
}

// A student whose matrices are changed where they lie is one whose matrices are replaced.
TEST_P(CudaDivergence, MatricesChangeWhereTheyLie) {
  DivergencePair pair(GetParam().make());
  std::unique_ptr<DivergencePass> replaced = pair.on_cuda({0}, {.summed = pair.all_matrices()}),
                                  changed = pair.on_cuda({0}, {.summed = pair.all_matrices()});
  for (DivergencePass* pass : {replaced.get(), changed.get()}) pass->set(pair.gains);
  const Network& network = *pair.teacher->network;
  for (const MatrixUse& use : network.matrices) {
    const StoredMatrix& matrix = pair.teacher->matrix(network.id_of(use.name));
    replaced->set_matrix(use.name, matrix);
    const Matrix values = matrix.widened();
    const CudaView to = changed->on_device()->matrix(use.name);
    ASSERT_EQ(cudaMemcpy2D(to.data, static_cast<size_t>(to.stride) * sizeof(float), values.data(),
                           static_cast<size_t>(to.columns) * sizeof(float), to.columns * sizeof(float), to.rows,
                           cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  for (DivergencePass* pass : {replaced.get(), changed.get()}) pass->set(pair.gains);
  MatrixGradients expected;
  EXPECT_EQ(changed->gradients(0, kSequences, true).rows, replaced->gradients(0, kSequences, &expected).rows);
  for (const auto& [name, gradient] : expected) {
    const ConstCudaView found = changed->on_device()->gradient(name);
    Matrix values(found.rows, found.columns);
    ASSERT_EQ(cudaMemcpy2D(values.data(), found.columns * sizeof(float), found.data, found.stride * sizeof(float),
                           found.columns * sizeof(float), found.rows, cudaMemcpyDeviceToHost),
              cudaSuccess);
    EXPECT_TRUE(std::ranges::equal(values.values(), gradient.values())) << name;
  }
}

// A student whose matrices are all replaced is one that had them at first, with gains and without.
TEST_P(CudaDivergence, ReplacedMatricesAreAsGoodAsTheFirst) {
  DivergencePair pair(GetParam().make());
  const auto student = pair.student;
  std::unique_ptr<DivergencePass> of_student = pair.on_cuda();
  pair.student = pair.teacher;
  std::unique_ptr<DivergencePass> replaced = pair.on_cuda();
  for (DivergencePass* pass : {of_student.get(), replaced.get()}) pass->set(pair.gains);
  for (const MatrixUse& use : student->network->matrices)
    replaced->set_matrix(use.name, student->matrix(student->network->id_of(use.name)));
  Gains none;
  none.small = pair.gains.small;
  of_student->set(none);
  replaced->set({.rows = {}, .head = 1, .small = pair.gains.small});
  EXPECT_EQ(replaced->divergence(0, kSequences), of_student->divergence(0, kSequences));
  for (DivergencePass* pass : {of_student.get(), replaced.get()}) pass->set(pair.gains);
  EXPECT_EQ(replaced->divergence(0, kSequences), of_student->divergence(0, kSequences));
  EXPECT_EQ(replaced->gradients(0, kSequences).rows, of_student->gradients(0, kSequences).rows);
}

// The model as its own teacher: no divergence. Gains that are absent are 1, whatever they were before.
TEST_P(CudaDivergence, IsNothingFromItself) {
  DivergencePair pair(GetParam().make());
  pair.student = pair.teacher;
  std::unique_ptr<DivergencePass> pass = pair.on_cuda();
  pass->set(pair.gains);
  pass->set({.rows = {}, .head = 1, .small = pair.teacher->small});
  EXPECT_NEAR(pass->divergence(0, kSequences), 0, 1e-3);
}

TEST(CudaDivergenceDevices, LeaveTheCallersDeviceAsItWas) {
  if (cuda_device_names().size() < 2) GTEST_SKIP() << "needs two CUDA devices";
  auto current = [] {
    int ordinal = -1;
    EXPECT_EQ(cudaGetDevice(&ordinal), cudaSuccess);
    return ordinal;
  };
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  DivergencePair pair(network_recipes()[0].make());
  std::unique_ptr<DivergencePass> second = pair.on_cuda({1}), first = pair.on_cuda({0});
  EXPECT_EQ(current(), 0);
  for (DivergencePass* pass : {second.get(), first.get()}) pass->set(pair.gains);
  EXPECT_EQ(second->divergence(0, 2), first->divergence(0, 2));
  EXPECT_EQ(current(), 0);
  second.reset();
  EXPECT_EQ(current(), 0);
}

}  // namespace
}  // namespace thimble::cuda_divergence_test
