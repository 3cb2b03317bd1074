// cuda_sample_test.cu: tokens drawn on a device are those that sample_token() draws of the same logits, for
// vocabularies of one token to more than threads keep in registers; and what the next pass starts from is the same
// whether it is made after the draw or with it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/cuda/kernels/cuda_rows.cuh"
#include "runtime/ops/generator.h"
#include "tests/runtime/cuda/kernels/cuda_device.h"
#include "tests/runtime/cuda/kernels/device_copy.h"

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
  for (int vocabulary : {1, 2, 255, 256, 300, 1023, 1024, 1025, 8191, 8192, 8193, 50'257, 262'144})
    for (double temperature : {0.0, 0.5, 0.981, 3.0}) {
      make_logits(vocabulary);
      expect_the_cpus(temperature);
    }
}

TEST_F(CudaSample, NeverDrawsWhatItMustNot) {
  for (int vocabulary : {300, 1024, 8192, 8193}) {
    make_logits(vocabulary);
    for (int s = 0; s < kSequences; ++s) at(s)[7] = at(s)[vocabulary - 1] = 40;  // by far the likeliest
    expect_the_cpus(0.8, {7, vocabulary - 1});
  }
}

// Of equal ones the first, also where they belong to different threads.
TEST_F(CudaSample, OfEqualLogitsTheFirstIsTheLikeliest) {
  for (int vocabulary : {300, 2000, 9000}) {
    make_logits(vocabulary);
    for (int s = 0; s < kSequences; ++s) {
      const int first = s * 7 % vocabulary;
      for (int token : {first, first + 1, vocabulary - 1}) at(s)[token] = s % 2 == 0 ? 20.0f : 13.0f;
    }
    at(3)[1] = -0.0f;  // a zero that is no larger than the other
    for (int v = 0; v < vocabulary; ++v)
      if (v != 1) at(3)[v] = v > 5 ? 0.0f : -1.0f;
    expect_the_cpus(0);
  }
}

TEST_F(CudaSample, LogitsThatAreNotFiniteFail) {
  for (int vocabulary : {300, 2000, 9000})
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      make_logits(vocabulary);
      at(5)[123] = bad;
      draw(0.8);
      EXPECT_EQ(failed_, 1) << vocabulary;
    }
}

// Tokens, and rows of x0, u and the squares.
struct Embedded {
  std::vector<Token> tokens;
  std::vector<float> x0, u, squares;
};

template <typename Copy>
std::vector<float> downloaded(const Copy& copy) {
  const Matrix values = copy.download();
  return {values.values().begin(), values.values().end()};
}

template <typename T>
class DrawnAndEmbedded {
 public:
  static constexpr int kSequences = 21, kPosition = 3, kOffset = 1, kDrawn = kPosition + kOffset + 1, kBuckets = 50;

  DrawnAndEmbedded(int vocabulary, int width, bool smears, int given)
      : vocabulary_(vocabulary),
        width_(width),
        smears_(smears),
        given_(given),
        logits_(random_values(kSequences, vocabulary, 1, -6, 6)),
        tokens_(random_values(vocabulary, width, 2), kGuard),
        pairs_(random_values(kBuckets, width, 3), kGuard),
        vectors_(random_values(3, width, 4), kGuard) {}

  template <typename Run>
  Embedded run(const Run& run) const {
    const auto x0 = BasicDeviceCopy<T>::poisoned(kSequences, width_, kGuard);
    const auto u = BasicDeviceCopy<T>::poisoned(kSequences, width_, kGuard);
    const DeviceCopy squares = DeviceCopy::poisoned(kParts, kSequences);
    std::vector<Token> tokens(kSequences * kLength, kNone);
    for (int s = 0; s < kSequences; ++s)
      for (int p = 0; p < kDrawn; ++p) tokens[static_cast<size_t>(s * kLength + p)] = (31 * s + 17 * p) % vocabulary_;
    tokens[static_cast<size_t>(given_ * kLength + kDrawn)] = vocabulary_ - 1;
    const DeviceArray<Token> all{std::span<const Token>(tokens)};
    const int position = kPosition, zero = 0;
    const DeviceArray<int> at{std::span<const int>(&position, 1)}, failed{std::span<const int>(&zero, 1)};
    SampleRequest draw{logits_.data(), vocabulary_, vocabulary_, kSequences, 0.9,          7, 11, 0,
                       all.data(),     kLength,     at.data(),   kOffset,    failed.data()};
    const float* vectors = vectors_.data();
    run(draw, EmbedOperands<T>{tokens_.data(),
                               smears_ ? pairs_.data() : nullptr,
                               width_,
                               kBuckets,
                               1.0f / static_cast<float>(width_),
                               1e-5f,
                               smears_ ? vectors : nullptr,
                               vectors + width_,
                               vectors + 2 * width_,
                               x0.data(),
                               u.data(),
                               {squares.data(), kParts, kSequences}});
    Embedded made{tokens, downloaded(x0), downloaded(u), downloaded(squares)};
    check_cuda(cudaMemcpy(made.tokens.data(), all.data(), all.bytes(), cudaMemcpyDeviceToHost));
    return made;
  }

 private:
  static constexpr int kParts = 3;
  static constexpr int64_t kGuard = 8;  // rows are read and written in pairs
  int vocabulary_, width_;
  bool smears_;
  int given_;  // a sequence whose token is known
  DeviceCopy logits_;
  BasicDeviceCopy<T> tokens_, pairs_;
  DeviceCopy vectors_;
};

template <typename T>
void expect_one_kernel_to_make_both() {
  for (const int vocabulary : {300, 1024, 1025})
    for (const int width : {64, 512, 1032})  // a lane's columns and more
      for (const bool smears : {false, true}) {
        SCOPED_TRACE(std::to_string(vocabulary) + " tokens, " + std::to_string(width) + (smears ? " smeared" : ""));
        const DrawnAndEmbedded<T> check(vocabulary, width, smears, 2);
        const Embedded apart = check.run([](const SampleRequest& draw, const EmbedOperands<T>& embed) {
          launch_sample(draw, nullptr);
          launch_embed(embed, {draw.tokens, draw.token_stride}, {draw.position, draw.offset + 1, 1}, {}, draw.sequences,
                       nullptr);
        });
        const Embedded together = check.run([](const SampleRequest& draw, const EmbedOperands<T>& embed) {
          launch_sample_and_embed(draw, embed, nullptr);
        });
        EXPECT_EQ(together.tokens, apart.tokens);
        EXPECT_EQ(together.x0, apart.x0);
        EXPECT_EQ(together.u, apart.u);
        EXPECT_EQ(together.squares, apart.squares);
      }
}
TEST_F(CudaSample, AndEmbedsInFp32) { expect_one_kernel_to_make_both<float>(); }
TEST_F(CudaSample, AndEmbedsInBf16) { expect_one_kernel_to_make_both<__nv_bfloat16>(); }
TEST_F(CudaSample, AndEmbedsInFp16) { expect_one_kernel_to_make_both<__half>(); }

}  // namespace
}  // namespace thimble::cuda_sample_test
