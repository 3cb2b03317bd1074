// cuda_operators_test.cu: the operators on a device against the host's, which sums in the same order; rows that packs
// may not be read from; the same bits every time; and the speed of a copy.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "eval/numerics/operator_cases.h"
#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/operators/cuda_operators.h"
#include "tests/runtime/cuda/kernels/cuda_device.h"

namespace thimble::cuda_operators_test {
namespace {

constexpr int64_t kMostElements = 300'000;
constexpr size_t kGuardBytes = 256;

std::vector<OperatorCase> small_cases() {
  std::vector<OperatorCase> cases = operator_cases();
  std::erase_if(cases, [](const OperatorCase& c) { return c.rows * c.cols > kMostElements; });
  using enum OperatorFill;
  for (int64_t cols : {2, 8, 511, 512, 513, 1024, 2048, 2049, 5000, 8192, 8200})
    cases.push_back({5, cols, kUniform, 10});
  return cases;
}

// Host memory on the device, `shift` bytes behind a boundary of packs, rubbish (NaN) on both sides.
class Shifted {
 public:
  Shifted(const void* host, size_t bytes, size_t shift) : bytes_(bytes), at_(kGuardBytes + shift) {
    std::vector<std::byte> all(bytes + 2 * kGuardBytes + shift, std::byte{0xff});
    if (host) std::copy_n(static_cast<const std::byte*>(host), bytes, all.begin() + static_cast<int64_t>(at_));
    data_ = DeviceArray<std::byte>(std::span<const std::byte>(all));
  }
  void* data() const { return data_.data() + at_; }
  ByteVector download() const {
    std::vector<std::byte> all(static_cast<size_t>(data_.count()));
    check_cuda(cudaMemcpy(all.data(), data_.data(), data_.bytes(), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < kGuardBytes; ++i) {
      EXPECT_EQ(all[at_ - 1 - i], std::byte{0xff}) << "written before the result";
      EXPECT_EQ(all[at_ + bytes_ + i], std::byte{0xff}) << "written behind the result";
    }
    return {all.begin() + static_cast<int64_t>(at_), all.begin() + static_cast<int64_t>(at_ + bytes_)};
  }

 private:
  size_t bytes_, at_;
  DeviceArray<std::byte> data_;
};

template <typename T>
DeviceArray<T> upload(const T* host, int64_t count) {
  return host ? DeviceArray<T>(std::span<const T>(host, static_cast<size_t>(count))) : DeviceArray<T>();
}

ByteVector run_on_device(OperatorCall call, size_t y_bytes, size_t shift) {
  Shifted x(call.x, static_cast<size_t>(call.rows * call.cols) * dtype_bytes(call.in), shift * dtype_bytes(call.in));
  Shifted y(nullptr, y_bytes, shift * dtype_bytes(call.out));
  DeviceArray<float> weight = upload(call.weight, call.cols), bias = upload(call.bias, call.cols),
                     scale = upload(call.scale, call.rows);
  DeviceArray<int32_t> targets = upload(call.targets, call.rows);
  call.x = x.data();
  call.y = y.data();
  call.weight = weight.data();
  call.bias = bias.data();
  call.scale = scale.data();
  call.targets = targets.data();
  launch_operator(call, nullptr);
  return y.download();
}

// Both round the same sums; functions differ by a few units of float32, which may turn a rounding to half.
void expect_close(DType out, Bytes found, Bytes expected) {
  std::vector<float> y = to_float32(out, found), host = to_float32(out, expected);
  double unit = out == DType::kF32 ? 1e-5 : out == DType::kF16 ? 0x1p-10 : 0x1p-7;
  double smallest = out == DType::kF16 ? 0x1p-24 : 0x1p-133;
  for (size_t i = 0; i < y.size(); ++i) {
    double allowed = unit * std::abs(host[i]) + smallest + 2e-6;  // what cancels is off by more than itself
    ASSERT_LE(std::abs(double{y[i]} - host[i]), allowed) << i << ": " << y[i] << ", " << host[i];
  }
}

class CudaOperators : public CudaTest, public ::testing::WithParamInterface<Operator> {
 protected:
  void SetUp() override { CudaTest::SetUp(); }
};

INSTANTIATE_TEST_SUITE_P(All, CudaOperators, ::testing::ValuesIn(kOperators),
                         [](const auto& op) { return std::string(operator_name(op.param)); });

TEST_P(CudaOperators, AgreesWithTheHostAlignedOrNot) {
  for (const OperatorCase& shape : small_cases()) {
    for (DType in : operator_inputs(GetParam())) {
      OperatorInput input(GetParam(), in, shape, 5);
      for (DType out : operator_outputs(GetParam(), in)) {
        SCOPED_TRACE(::testing::Message() << shape.shape_text() << " " << shape.fill_text() << " " << dtype_name(in)
                                          << " to " << dtype_name(out));
        ByteVector expected(static_cast<size_t>(input.call(out, nullptr).output_count()) * dtype_bytes(out));
        OperatorCall call = input.call(out, expected.data());
        run_operator(call);
        ByteVector aligned = run_on_device(call, expected.size(), 0);
        expect_close(out, aligned, expected);
        EXPECT_EQ(run_on_device(call, expected.size(), 0), aligned) << "another time, other bits";
        EXPECT_EQ(run_on_device(call, expected.size(), 1), aligned) << "shifted by an element, other bits";
      }
    }
  }
}

using CudaOperatorRows = CudaTest;

TEST_F(CudaOperatorRows, MaskedAndInvalidRowsOfSoftmax) {
  constexpr uint16_t kMinusInfinity = 0xfc00, kTwo = 0x4000, kNaN = 0x7e00;
  for (int64_t cols : {3, 700, 9000}) {
    OperatorCall call;
    std::vector<uint16_t> x(static_cast<size_t>(3 * cols), kMinusInfinity);
    x[static_cast<size_t>(2 * cols - 1)] = kTwo;
    x[static_cast<size_t>(2 * cols)] = kNaN;
    call.rows = 3;
    call.cols = cols;
    call.x = x.data();
    size_t bytes = x.size() * sizeof(float);
    std::vector<float> y = to_float32(DType::kF32, run_on_device(call, bytes, 0));
    for (int64_t c = 0; c < cols; ++c) {
      ASSERT_TRUE(std::isnan(y[static_cast<size_t>(c)]));
      ASSERT_EQ(y[static_cast<size_t>(cols + c)], c == cols - 1 ? 1.0f : 0.0f);
      ASSERT_TRUE(std::isnan(y[static_cast<size_t>(2 * cols + c)]));
    }
  }
}

TEST_F(CudaOperatorRows, RunsAndMeasures) {
  EXPECT_GT(cuda_copy_bandwidth(0), 1e9);
  OperatorInput input(Operator::kSoftmax, DType::kF16, {64, 1000, OperatorFill::kUniform, 10}, 1);
  std::vector<float> y(64'000, -1), host(64'000);
  EXPECT_GT(run_operator_on_cuda(0, input.call(DType::kF32, y.data())), 0);
  run_operator(input.call(DType::kF32, host.data()));
  expect_close(DType::kF32, std::as_bytes(std::span(y)), std::as_bytes(std::span(host)));
}

}  // namespace
}  // namespace thimble::cuda_operators_test
