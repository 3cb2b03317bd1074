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
      for (int step = 0; step < 3; ++step) {
        MatrixGradients gradients{{kName, gradient}};
        on_host.step(gradients, model, kOptions);
        mover->step(kOptions);
      }
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
