// cuda_latent_mover_test.cpp: latents that move on the device are the host's, and so are the codes of their paths.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "gptq/slope/code_learner.h"
#include "gptq/slope/slope_solver.h"
#include "runtime/cuda/cuda_student.cuh"
#include "tests/runtime/cuda/kernels/cuda_device.h"
#include "tests/runtime/cuda/kernels/device_copy.h"

namespace thimble::cuda_latent_mover_test {
namespace {

const std::string kName = "matrix";

class OneMatrix final : public CudaStudent {
 public:
  OneMatrix(int64_t rows, int64_t columns, const Matrix& gradient)
      : weights_(DeviceCopy::poisoned(rows, columns)), gradient_(gradient) {}
  int ordinal() const override { return 0; }
  CudaView matrix(const std::string&) override { return weights_; }
  ConstCudaView gradient(const std::string&) const override { return gradient_; }
  Matrix weights() const { return weights_.download(); }

 private:
  DeviceCopy weights_, gradient_;
};

QuantizedModel random_model(int trellis_bits, int64_t rows, int64_t columns) {
  auto steps = [](int64_t count, uint64_t stream) {
    std::vector<int16_t> axis;
    for (int64_t i = 0; i < count; ++i)
      axis.push_back(static_cast<int16_t>(-100 + 100 * uniform_at(3, stream, static_cast<uint64_t>(i))));
    return axis;
  };
  const SlopeGrid grid{trellis_bits, 0, steps(rows, 1), steps(columns, 2)};
  QuantizedModel model;
  model.tensors = {
      {kName, {rows, columns}, solve_slope(random_values(rows, columns, 5), nullptr, grid, {}, kName).codes}};
  return model;
}

class CudaLatentMover : public CudaTest {};

TEST_F(CudaLatentMover, IsTheHosts) {
  constexpr CodeLearnerOptions kOptions{.steps = 8, .rate = 2, .bit_price = 0.3};
  for (int trellis_bits : {0, 2, 5, 8})
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>(1, 1), {3, 40}, {70, 24}, {513, 9}, {1100, 33}}) {
      SCOPED_TRACE(::testing::Message() << trellis_bits << " bits, " << rows << " x " << columns);
      QuantizedModel model = random_model(trellis_bits, rows, columns);
      CodeLearner on_host(model, {kName}), on_device = on_host;
      if (on_host.matrices().empty()) continue;  // all codes are 0
      const Matrix gradient = random_values(rows, columns, 8);
      OneMatrix student(rows, columns, gradient);
      const std::unique_ptr<LatentMover> mover = make_cuda_latent_mover(on_device, model, student);
      int meanwhile = 0;
      for (int step = 0; step < 3; ++step) {
        MatrixGradients gradients{{kName, gradient}};
        on_host.step(gradients, model, kOptions);
        mover->step(kOptions, [&] { ++meanwhile; });
      }
      EXPECT_EQ(meanwhile, 3);
      EXPECT_EQ(on_device.steps_done(), on_host.steps_done());
      mover->find_paths();
      mover->store();
      const CodeLearner::Latents &expected = on_host.latents().at(kName), &found = on_device.latents().at(kName);
      for (size_t i = 0; i < expected.levels.size(); ++i) {
        ASSERT_NEAR(found.levels[i], expected.levels[i], 1e-3 * (1 + std::abs(expected.levels[i])));
        ASSERT_NEAR(found.second[i], expected.second[i], 1e-3 * (1e-3f + expected.second[i]));
      }
      // The codes of the same latents.
      QuantizedTensor& tensor = model.tensors[0];
      on_device.find_path(0, tensor);
      const Matrix weights = stored_matrix(tensor).widened(), of_device = student.weights();
      int64_t different = 0;
      for (size_t i = 0; i < weights.values().size(); ++i) different += weights.values()[i] != of_device.values()[i];
      EXPECT_LE(different, std::ssize(weights.values()) / 100);  // ties, and what follows from them
    }
}

// Two matrices at once are what each is alone; what is kept stays while latents move on.
TEST_F(CudaLatentMover, KeepsLatentsOfSeveralMatrices) {
  constexpr CodeLearnerOptions kOptions{.steps = 8, .rate = 2, .bit_price = 0.3};
  const std::string names[] = {"first", "second"};
  const std::pair<int64_t, int64_t> shapes[] = {{600, 20}, {70, 24}};
  std::map<std::string, OneMatrix> students;
  std::map<std::string, CodeLearner> alone;
  QuantizedModel both;
  for (size_t i = 0; i < 2; ++i) {
    QuantizedModel model = random_model(3, shapes[i].first, shapes[i].second);
    model.tensors[0].name = names[i];
    both.tensors.push_back(model.tensors[0]);
    students.try_emplace(names[i], shapes[i].first, shapes[i].second,
                         random_values(shapes[i].first, shapes[i].second, 8 + i));
    CodeLearner& learner = alone[names[i]] = CodeLearner(model, {names[i]});
    const std::unique_ptr<LatentMover> mover = make_cuda_latent_mover(learner, model, students.at(names[i]));
    for (int step = 0; step < 2; ++step) mover->step(kOptions, [] {});
    mover->find_paths();
    mover->store();
  }
  class Both final : public CudaStudent {
   public:
    explicit Both(std::map<std::string, OneMatrix>& students) : students_(students) {}
    int ordinal() const override { return 0; }
    CudaView matrix(const std::string& name) override { return students_.at(name).matrix(name); }
    ConstCudaView gradient(const std::string& name) const override { return students_.at(name).gradient(name); }

   private:
    std::map<std::string, OneMatrix>& students_;
  } student(students);
  std::map<std::string, Matrix> expected;
  for (const std::string& name : names) expected[name] = students.at(name).weights();
  CodeLearner learner(both, {names[0], names[1]}), kept = learner.at_rest();
  const std::unique_ptr<LatentMover> mover = make_cuda_latent_mover(learner, both, student);
  for (int step = 0; step < 2; ++step) mover->step(kOptions, [] {});
  mover->store_kept(kept);  // there is nothing yet, nor do those of the learner move
  EXPECT_EQ(kept.latents().at(names[0]).levels, learner.latents().at(names[0]).levels);
  mover->keep();
  mover->find_paths();
  mover->step(kOptions, [] {});
  mover->store_kept(kept);
  mover->store();
  for (const std::string& name : names) {
    EXPECT_EQ(kept.latents().at(name).levels, alone.at(name).latents().at(name).levels) << name;
    EXPECT_NE(learner.latents().at(name).levels, kept.latents().at(name).levels) << name;
    EXPECT_TRUE(std::ranges::equal(students.at(name).weights().values(), expected.at(name).values())) << name;
  }
}

// Without steps, the weights are those of the codes.
TEST_F(CudaLatentMover, KeepsCodesThatNothingHasMoved) {
  for (int trellis_bits : {0, 2, 3, 4, 5, 6, 7, 8})
    for (int64_t rows : {37, 600, 1023}) {
      const QuantizedModel model = random_model(trellis_bits, rows, 20);
      CodeLearner learner(model, {kName});
      OneMatrix student(rows, 20, Matrix(rows, 20));
      make_cuda_latent_mover(learner, model, student)->find_paths();
      const Matrix expected = stored_matrix(model.tensors[0]).widened(), found = student.weights();
      EXPECT_TRUE(std::ranges::equal(found.values(), expected.values()))
          << trellis_bits << " bits, " << rows << " rows";
    }
}

}  // namespace
}  // namespace thimble::cuda_latent_mover_test
