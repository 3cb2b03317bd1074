// operator_cases.cpp: inputs from counter-based random numbers (random.h), filled in parallel.
#include "eval/numerics/operator_cases.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "runtime/base/parallel.h"
#include "runtime/base/random.h"

namespace thimble {
namespace {

constexpr int64_t kDrawnPerTask = 1 << 15;
constexpr float kEpsilon = 1e-5f, kCap = 30;

// Random streams of one case.
enum Stream : uint64_t { kValues, kOutlierColumns, kWeights, kBiases, kTargets };

bool is_code(DType dtype) { return dtype == DType::kI8 || dtype == DType::kI16; }

double smallest_normal(DType dtype) { return dtype == DType::kF16 ? 0x1p-14 : 0x1p-126; }

double symmetric(uint64_t seed, uint64_t stream, int64_t index) {
  return 2 * uniform_at(seed, stream, static_cast<uint64_t>(index)) - 1;
}

// Element (r, c) before it is stored, or of codes, as a share of the largest code.
double element(const OperatorCase& shape, DType in, uint64_t seed, int64_t r, int64_t c) {
  double uniform = symmetric(seed, kValues, r * shape.cols + c), range = is_code(in) ? 1 : shape.range;
  switch (shape.fill) {
    case OperatorFill::kUniform: return range * uniform;
    case OperatorFill::kSubnormal: return is_code(in) ? uniform : smallest_normal(in) * uniform;
    case OperatorFill::kOffset: return is_code(in) ? 0.9 + 0.1 * uniform : range + uniform;
    case OperatorFill::kOutlier: {
      auto column = static_cast<int64_t>(uniform_at(seed, kOutlierColumns, static_cast<uint64_t>(r)) *
                                         static_cast<double>(shape.cols));
      return c == column ? range : 0.01 * uniform;
    }
    case OperatorFill::kConstant: return range;
  }
  return 0;
}

template <typename Stored, typename Convert>
void fill(ByteVector& bytes, const OperatorCase& shape, const Convert& convert) {
  parallel_chunks(shape.rows * shape.cols, kDrawnPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      auto stored = static_cast<Stored>(convert(i / shape.cols, i % shape.cols));
      std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof(Stored), &stored, sizeof(Stored));
    }
  });
}

}  // namespace

std::string OperatorCase::shape_text() const { return fmt::format("{} x {}", rows, cols); }

std::string OperatorCase::fill_text() const {
  switch (fill) {
    case OperatorFill::kUniform: return fmt::format("+-{}", range);
    case OperatorFill::kSubnormal: return "subnormal";
    case OperatorFill::kOffset: return fmt::format("{} +-1", range);
    case OperatorFill::kOutlier: return fmt::format("outlier {}", range);
    case OperatorFill::kConstant: return fmt::format("all {}", range);
  }
  return "";
}

std::vector<OperatorCase> operator_cases() {
  using enum OperatorFill;
  return {{4096, 4096, kUniform, 10}, {1024, 4096, kUniform, 80}, {1, 131072, kUniform, 10}, {1, 131072, kUniform, 80},
          {64, 50257, kUniform, 10},  {257, 1021, kUniform, 10},  {257, 1021, kUniform, 80}, {33, 7, kUniform, 80},
          {1000, 1, kUniform, 10},    {64, 4096, kSubnormal, 0},  {64, 4097, kOffset, 80},   {64, 4096, kOutlier, 80},
          {16, 768, kConstant, 10},   {3, 8193, kUniform, 80}};
}

std::vector<DType> operator_inputs(Operator op) {
  if (op == Operator::kDequantizeSoftmax) return {DType::kI8, DType::kI16};
  return {DType::kF16, DType::kBF16};
}

std::vector<DType> operator_outputs(Operator op, DType in) {
  if (op == Operator::kDequantizeSoftmax) return {DType::kF32, DType::kF16, DType::kBF16};
  return {DType::kF32, in};
}

OperatorInput::OperatorInput(Operator op, DType in, const OperatorCase& shape, uint64_t seed)
    : op_(op),
      in_(in),
      rows_(shape.rows),
      cols_(shape.cols),
      x_(static_cast<size_t>(shape.rows * shape.cols) * dtype_bytes(in)) {
  auto value = [&](int64_t r, int64_t c) { return static_cast<float>(element(shape, in, seed, r, c)); };
  if (in == DType::kF16) fill<uint16_t>(x_, shape, [&](int64_t r, int64_t c) { return fp16_from_float(value(r, c)); });
  if (in == DType::kBF16) fill<uint16_t>(x_, shape, [&](int64_t r, int64_t c) { return bf16_from_float(value(r, c)); });
  if (is_code(in)) {
    const float largest = in == DType::kI8 ? 127 : 32767;
    auto code = [&](int64_t r, int64_t c) { return std::lround(largest * value(r, c)); };
    in == DType::kI8 ? fill<int8_t>(x_, shape, code) : fill<int16_t>(x_, shape, code);
    const double range = shape.fill == OperatorFill::kSubnormal ? 1e-38 : shape.range;
    scale_.assign(static_cast<size_t>(rows_), static_cast<float>(range / double{largest}));
  }
  if (op == Operator::kRmsNorm || op == Operator::kLayerNorm)
    for (int64_t c = 0; c < cols_; ++c) weight_.push_back(static_cast<float>(1 + 0.5 * symmetric(seed, kWeights, c)));
  if (op == Operator::kLayerNorm)
    for (int64_t c = 0; c < cols_; ++c) bias_.push_back(static_cast<float>(symmetric(seed, kBiases, c)));
  if (op == Operator::kCrossEntropy)
    for (int64_t r = 0; r < rows_; ++r)
      targets_.push_back(
          static_cast<int32_t>(uniform_at(seed, kTargets, static_cast<uint64_t>(r)) * static_cast<double>(cols_)));
}

OperatorCall OperatorInput::call(DType out, void* y) const {
  auto pointer = [](const auto& values) { return values.empty() ? nullptr : values.data(); };
  return {op_,
          in_,
          out,
          rows_,
          cols_,
          x_.data(),
          y,
          pointer(weight_),
          pointer(bias_),
          pointer(scale_),
          pointer(targets_),
          kEpsilon,
          kCap};
}

uint64_t operator_bytes(const OperatorCall& call) {
  auto rows = static_cast<uint64_t>(call.rows), cols = static_cast<uint64_t>(call.cols);
  uint64_t bytes = rows * cols * dtype_bytes(call.in);
  bytes += static_cast<uint64_t>(call.output_count()) * dtype_bytes(call.out);
  for (const float* per_column : {call.weight, call.bias}) bytes += per_column ? cols * sizeof(float) : 0;
  if (call.scale) bytes += rows * sizeof(float);
  if (call.targets) bytes += rows * sizeof(int32_t);
  return bytes;
}

}  // namespace thimble
