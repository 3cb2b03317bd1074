// small_network.cpp: see small_network.h.
#include "tests/runtime/cpu/small_network.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "runtime/base/random.h"
#include "tests/runtime/ops/changed_matrix.h"

namespace thimble {
namespace {

constexpr int64_t kGap = 3;  // odd, so that rows are not aligned

int64_t gap_of(Inputs how) { return how == Inputs::kViews ? kGap : 0; }

// (rows, gap + columns + gap), NaN where no input lies.
std::vector<float> table_of(const Matrix& input, int64_t gap) {
  Matrix table(input.rows(), input.cols() + 2 * gap);
  for (float& value : table.values()) value = std::numeric_limits<float>::quiet_NaN();
  for (int64_t r = 0; r < input.rows(); ++r) std::copy_n(input.row(r), input.cols(), table.row(r) + gap);
  return {table.values().begin(), table.values().end()};
}

Matrix copied(ConstMatrixView rows) {
  Matrix copy(rows.rows, rows.cols);
  for (int64_t r = 0; r < rows.rows; ++r) std::copy_n(rows.row(r), rows.cols, copy.row(r));
  return copy;
}

}  // namespace

Weights weights_of(const SmallNetwork& small, Inputs how, bool has_head) {
  const int64_t gap = gap_of(how), head_rows = has_head ? small.width : 1;
  std::vector<Parameter> parameters = {{"head", {head_rows, small.width}, Role::kHead}};
  FloatTensors values;
  values["head"].resize(static_cast<size_t>(head_rows * small.width));
  for (int64_t i = 0; has_head && i < small.width; ++i) values["head"][static_cast<size_t>(i * (small.width + 1))] = 1;
  for (size_t i = 0; i < small.inputs.size(); ++i) {
    const std::string name = "input" + std::to_string(i);
    const Matrix& input = small.inputs[i];
    parameters.push_back({name, {input.rows(), input.cols() + 2 * gap}, Role::kTable});
    values[name] = table_of(input, gap);
  }
  for (const auto& [name, tensor] : small.tensors) {
    parameters.push_back({name, tensor.shape, tensor.role});
    values[name] = tensor.values;
  }
  Ops ops(parameters);
  std::vector<Value> inputs;
  for (size_t i = 0; i < small.inputs.size(); ++i) {
    const Value all = ops.gather("input" + std::to_string(i));
    inputs.push_back(gap > 0 ? ops.columns(all, gap, small.inputs[i].cols()) : all);
  }
  const Value result = small.write(ops, inputs);
  return bind_weights(std::make_shared<const Network>(std::move(ops).head(result, "head")), std::move(values));
}

TokenBatch row_batch(const BatchShape& shape) {
  TokenBatch batch;
  batch.shape = shape;
  batch.tokens.resize(static_cast<size_t>(shape.rows()));
  std::iota(batch.tokens.begin(), batch.tokens.end(), 0);
  batch.previous.assign(batch.tokens.size(), TokenBatch::kNoToken);
  return batch;
}

Matrix run_small(const SmallNetwork& small, Inputs how, const BatchShape& shape) {
  Weights weights = weights_of(small, how);
  CpuPass pass(weights, shape.first_position + shape.positions);
  const std::vector<StoredMatrix> matrices = weights.matrices;
  for (size_t i = 0; i < matrices.size(); ++i)
    if (weights.network->matrices[i].name.starts_with("input"))
      scale_matrix(weights, static_cast<MatrixId>(i), std::numeric_limits<float>::quiet_NaN());
  pass.run(row_batch(shape));
  weights.matrices = matrices;
  return copied(pass.run(row_batch(shape)));
}

Matrix run_small(const SmallNetwork& small, Inputs how) {
  return run_small(small, how, {1, small.inputs[0].rows(), 0});
}

Matrix run_small(const BatchShape& shape, const Weights& weights, CpuCache& cache) {
  CpuPass pass(weights, shape.first_position + shape.positions);
  return copied(pass.run(row_batch(shape), &cache));
}

std::vector<float> random_vector(int64_t count, uint64_t seed, double low, double high) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<float>(low + (high - low) * uniform_at(seed, 99, static_cast<uint64_t>(i))));
  return values;
}

Matrix random_matrix(int64_t rows, int64_t columns, uint64_t seed, double scale) {
  return filled(rows, columns, [&](int64_t r, int64_t c) {
    return scale * (2 * uniform_at(seed, static_cast<uint64_t>(r), static_cast<uint64_t>(c)) - 1);
  });
}

Matrix filled(int64_t rows, int64_t columns, const std::function<double(int64_t, int64_t)>& value) {
  Matrix matrix(rows, columns);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) matrix(r, c) = static_cast<float>(value(r, c));
  return matrix;
}

bool same_bits(ConstMatrixView a, ConstMatrixView b) {
  if (a.rows != b.rows || a.cols != b.cols) return false;
  for (int64_t r = 0; r < a.rows; ++r)
    if (std::memcmp(a.row(r), b.row(r), static_cast<size_t>(a.cols) * sizeof(float)) != 0) return false;
  return true;
}

void expect_close(ConstMatrixView found, const std::function<double(int64_t, int64_t)>& expected,
                  const std::function<double(int64_t, int64_t)>& tolerance) {
  for (int64_t r = 0; r < found.rows; ++r)
    for (int64_t c = 0; c < found.cols; ++c) {
      const double want = expected(r, c), got = found.row(r)[c];
      ASSERT_LE(std::abs(got - want), tolerance(r, c)) << "row " << r << " column " << c << ": " << got << ", " << want;
    }
}

}  // namespace thimble
