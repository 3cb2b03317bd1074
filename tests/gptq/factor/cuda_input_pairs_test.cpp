// cuda_input_pairs_test.cpp: inputs of two models on a CUDA device against the CPU's; the same bits whatever memory
// there is.
#include <gtest/gtest.h>

#include <algorithm>

#include "gptq/factor/input_pairs.h"
#include "tests/gptq/factor/all_pairs.h"
#include "tests/runtime/cuda/kernels/cuda_device.h"
#include "tests/runtime/families/golf/random_model.h"
#include "tests/runtime/families/gpt2/random_gpt2.h"
#include "tests/support/thread_ranks.h"

namespace thimble::cuda_input_pairs_test {
namespace {

constexpr int64_t kSequences = 19, kLength = 33;

class CudaInputPairs : public CudaTest {
 protected:
  std::vector<InputPair> read_all(const Device& device) const { return read_all(original_, device); }
  std::vector<InputPair> read_all(const std::shared_ptr<const Weights>& model, const Device& device,
                                  Ranks& ranks = no_other_ranks()) const {
    return read_all_pairs(model, device, tokens_, kSequences, ranks);
  }
  static void expect_equal(const std::vector<InputPair>& found, const std::vector<InputPair>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t input = 0; input < expected.size(); ++input) {
      EXPECT_EQ(found[input].hessian, expected[input].hessian) << input;
      EXPECT_TRUE(std::ranges::equal(found[input].drift.values(), expected[input].drift.values())) << input;
    }
  }
  static void expect_near(const std::vector<InputPair>& cuda, const std::vector<InputPair>& cpu, double tolerance) {
    ASSERT_EQ(cuda.size(), cpu.size());
    for (size_t input = 0; input < cpu.size(); ++input) {
      SCOPED_TRACE(input);
      const InputPair &a = cuda[input], &b = cpu[input];
      ASSERT_EQ(a.hessian.size(), b.hessian.size());
      double scale = 0;
      for (int64_t i = 0; i < b.hessian.size(); ++i) scale = std::max(scale, b.hessian(i, i));
      for (int64_t i = 0; i < b.hessian.size(); ++i)
        for (int64_t j = 0; j < b.hessian.size(); ++j) {
          ASSERT_NEAR(a.hessian(i, j), b.hessian(i, j), tolerance * scale) << i << " " << j;
          ASSERT_NEAR(a.drift(i, j), b.drift(i, j), tolerance * scale) << i << " " << j;
        }
    }
  }

  std::shared_ptr<const Weights> original_ = random_golf_weights(small_golf_config(), 3);
  TokenSequences tokens_{21, kLength, random_tokens(21 * kLength, original_->network->vocabulary(), 6)};
};

TEST_F(CudaInputPairs, AreTheCpus) {
  for (const std::shared_ptr<const Weights>& model : {original_, random_gpt2_weights(small_gpt2_config(), 3)}) {
    const std::vector<InputPair> cpu = read_all(model, Device{});
    for (auto [numerics, tolerance] : {std::pair(Numerics::kFp32, 1e-5), std::pair(Numerics::kBf16, 3e-2)})
      expect_near(read_all(model, {true, {0}, numerics}), cpu, tolerance);
  }
}

// Other modes: nothing falls over, and what they read is near what fp32 reads.
TEST_F(CudaInputPairs, AreThereInEveryMode) {
  const std::vector<InputPair> exact = read_all({true, {0}, Numerics::kFp32});
  expect_near(read_all({true, {0}, Numerics::kFp16}), exact, 1e-2);
  for (Numerics numerics : kAllNumerics) {
    const std::vector<InputPair> found = read_all({true, {0}, numerics});
    ASSERT_EQ(found.size(), exact.size());
    for (size_t input = 0; input < exact.size(); ++input)
      EXPECT_GT(found[input].hessian(0, 0), 0) << numerics_name(numerics) << " input " << input;
  }
}

TEST_F(CudaInputPairs, AreTheSameBitsInAnyMemory) {
  const std::vector<InputPair> expected = read_all({true, {0}, Numerics::kBf16});
  const std::vector<Share> parts = parts_of_reader(kSequences, 0, 1);
  const auto bytes = [&](int64_t most, bool keeps) {
    return plan_input_pairs(original_->network, Numerics::kBf16, kLength, parts, most, keeps, UINT64_MAX).bytes();
  };
  // All activations kept, in batches of 2; passes that begin anew, of 2 sequences and of 1.
  for (const uint64_t limit : {2 * bytes(2, true), bytes(2, false), bytes(1, false)}) {
    SCOPED_TRACE(limit);
    const std::vector<InputPair> read = read_all({true, {0}, Numerics::kBf16, limit});
    expect_equal(read, expected);
  }
}

// A pair that stays on the device does what the same does that was in the host's memory meanwhile.
TEST_F(CudaInputPairs, AreOfUseWhereTheyAre) {
  const Device device{true, {0}, Numerics::kBf16};
  const std::vector<LinearInput> inputs = inputs_of_layers(*original_->network);
  const std::unique_ptr<InputPairs> pairs = make_input_pairs(original_, original_, device, tokens_, kSequences);
  pairs->collect(inputs.at(0));
  Matrix changed = original_->matrix(inputs[0].readers[0]).widened();
  for (float& weight : changed.values()) weight *= 1.25F;
  pairs->replace(original_->network->matrix(inputs[0].readers[0]).name, changed);
  const LinearInput& input = inputs.at(1);
  const StoredPair here = pairs->collect(input);
  ASSERT_TRUE(std::holds_alternative<DeviceValues>(here.drift));
  InputPair moved = here.on_host();
  EXPECT_EQ(here.hessian->diagonal(), moved.hessian.diagonal());
  EXPECT_TRUE(std::ranges::any_of(moved.drift.values(), [](double value) { return value != 0; }));
  const StoredPair there = store_in_memory(std::move(moved));
  const StoredMatrixView weights = original_->matrix(input.readers[0]);
  const Matrix shifted = shift_weights_cuda({&weights, 1}, here, 0.1, 1, "layer", 0).front();
  EXPECT_TRUE(std::ranges::equal(shifted.values(),
                                 shift_weights_cuda({&weights, 1}, there, 0.1, 1, "layer", 0).front().values()));
  const FactorJob jobs[] = {{"here", here.hessian.get(), 0.1}, {"there", there.hessian.get(), 0.1}};
  const std::vector<std::vector<double>> diagonals = factor_diagonals_cuda(jobs, 0);
  EXPECT_EQ(diagonals[0], diagonals[1]);
}

TEST_F(CudaInputPairs, AreTheSameBitsOnAnyNumberOfDevices) {
  const int devices = cuda_device_count();
  if (devices < 2) GTEST_SKIP() << "one CUDA device";
  const std::vector<InputPair> expected = read_all({true, {0}, Numerics::kBf16});
  std::vector<int> ordinals = {0};
  for (int device = 1; device < devices; ++device) {
    SCOPED_TRACE(device + 1);
    ordinals.push_back(device);
    expect_equal(read_all({true, ordinals, Numerics::kBf16}), expected);
  }
}

// Of several readers on one device: what each has of a part waits there.
TEST_F(CudaInputPairs, AreTheSameBitsOnAnyNumberOfRanks) {
  const Device device{true, {0}, Numerics::kBf16};
  const std::vector<InputPair> expected = read_all(device);
  for (const int size : {2, 3}) {
    SCOPED_TRACE(size);
    run_as_ranks(size, [&](Ranks& ranks) { expect_equal(read_all(original_, device, ranks), expected); });
  }
}

}  // namespace
}  // namespace thimble::cuda_input_pairs_test
