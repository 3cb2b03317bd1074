// cuda_sample_test.cu: tokens drawn on a device are those that sample_token() draws of the same logits, for
// vocabularies of one token to more than a CTA keeps in shared memory.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/cuda/kernels/cuda_rows.cuh"
#include "runtime/ops/generator.h"
#include "tests/runtime/cuda/kernels/cuda_device.h"

namespace thimble::cuda_sample_test {
namespace {

constexpr Token kNone = TextScript::kDrawn;
constexpr int64_t kLength = 9;  // of a sequence
constexpr int kGiven = 2;       // a sequence whose token is known

// Logits of some sequences, `padding` apart, and what is drawn of them at position *position + offset + 1.
class CudaSample : public CudaTest {
 protected:
  static constexpr int kSequences = 33, kPosition = 4, kOffset = 2, kDrawn = kPosition + kOffset + 1;
  static constexpr int kFirstPosition = 3, kPadding = 5;
  static constexpr uint64_t kSeed = 7, kFirstStream = 11;

  void make_logits(int vocabulary) {
    vocabulary_ = vocabulary;
    stride_ = vocabulary + kPadding;
    logits_.assign(static_cast<size_t>(kSequences * stride_), std::numeric_limits<float>::quiet_NaN());
    for (int s = 0; s < kSequences; ++s)
      for (int v = 0; v < vocabulary; ++v)
        at(s)[v] = static_cast<float>(12 * uniform_at(1, static_cast<uint64_t>(s), static_cast<uint64_t>(v)));
  }
  float* at(int sequence) { return logits_.data() + sequence * stride_; }

  // Of every sequence, the token at the drawn position.
  std::vector<Token> draw(double temperature, std::vector<Token> never_drawn = {}) {
    std::vector<Token> tokens(static_cast<size_t>(kSequences * kLength), kNone);
    tokens[kGiven * kLength + kDrawn] = 0;
    const int position = kPosition, zero = 0;
    const DeviceArray<float> logits{std::span<const float>(logits_)};
    const DeviceArray<Token> all{std::span<const Token>(tokens)}, never{std::span<const Token>(never_drawn)};
    const DeviceArray<int> at{std::span<const int>(&position, 1)}, failed{std::span<const int>(&zero, 1)};
    launch_sample(
        {logits.data(), stride_, vocabulary_, kSequences, temperature, kSeed, kFirstStream, kFirstPosition, all.data(),
         kLength, at.data(), kOffset, failed.data(), never.data(), static_cast<int>(never_drawn.size())},
        nullptr);
    launch_advance(at.data(), 3, nullptr);
    check_cuda(cudaDeviceSynchronize());
    check_cuda(cudaMemcpy(tokens.data(), all.data(), all.bytes(), cudaMemcpyDeviceToHost));
    check_cuda(cudaMemcpy(&failed_, failed.data(), sizeof failed_, cudaMemcpyDeviceToHost));
    int advanced = 0;
    check_cuda(cudaMemcpy(&advanced, at.data(), sizeof advanced, cudaMemcpyDeviceToHost));
    EXPECT_EQ(advanced, kPosition + 3);
    std::vector<Token> drawn;
    for (int s = 0; s < kSequences; ++s)
      for (int p = 0; p < kLength; ++p) {
        const Token token = tokens[static_cast<size_t>(s * kLength + p)];
        if (p == kDrawn)
          drawn.push_back(token);
        else
          EXPECT_EQ(token, kNone) << "sequence " << s << ", position " << p;
      }
    return drawn;
  }

  void expect_the_cpus(double temperature, const std::vector<Token>& never_drawn = {}) {
    const std::vector<Token> found = draw(temperature, never_drawn);
    EXPECT_EQ(failed_, 0);
    for (int s = 0; s < kSequences; ++s) {
      SCOPED_TRACE("vocabulary " + std::to_string(vocabulary_) + ", sequence " + std::to_string(s));
      for (Token token : never_drawn) at(s)[token] = -std::numeric_limits<float>::infinity();
      const double uniform = uniform_at(kSeed, kFirstStream + static_cast<uint64_t>(s), kDrawn - kFirstPosition);
      const Token expected =
          s == kGiven ? 0 : sample_token({at(s), static_cast<size_t>(vocabulary_)}, temperature, uniform);
      EXPECT_EQ(found[static_cast<size_t>(s)], expected);
    }
  }

  int vocabulary_ = 0, failed_ = 0;
  int64_t stride_ = 0;
  std::vector<float> logits_;
};

TEST_F(CudaSample, IsTheCpus) {
  for (int vocabulary : {1, 2, 255, 256, 300, 1024, 8191, 8192, 8193, 50'257, 262'144})
    for (double temperature : {0.0, 0.5, 0.981, 3.0}) {
      make_logits(vocabulary);
      expect_the_cpus(temperature);
    }
}

TEST_F(CudaSample, NeverDrawsWhatItMustNot) {
  for (int vocabulary : {300, 8192, 8193}) {
    make_logits(vocabulary);
    for (int s = 0; s < kSequences; ++s) at(s)[7] = at(s)[vocabulary - 1] = 40;  // by far the likeliest
    expect_the_cpus(0.8, {7, vocabulary - 1});
  }
}

TEST_F(CudaSample, LogitsThatAreNotFiniteFail) {
  for (int vocabulary : {300, 9000})
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      make_logits(vocabulary);
      at(5)[123] = bad;
      draw(0.8);
      EXPECT_EQ(failed_, 1) << vocabulary;
    }
}

}  // namespace
}  // namespace thimble::cuda_sample_test
