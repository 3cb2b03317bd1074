// cuda_matrix_gradients.cu: see cuda_matrix_gradients.cuh.
#include "runtime/cuda/cuda_matrix_gradients.cuh"

#include <algorithm>
#include <numeric>

#include "runtime/cuda/kernels/cuda_float_product.cuh"
#include "runtime/cuda/kernels/cuda_row_kernel.cuh"
#include "runtime/tensor/host_device.h"

namespace thimble {
namespace {

constexpr int64_t kFloatMultiple = 4;  // 16-byte rows

// The positions that look up one row, for each row that is looked up at all.
struct RowGroups {
  std::vector<int32_t> positions;  // (rows) those of a group together, ascending
  std::vector<int32_t> firsts;     // (groups + 1) where each begins
  std::vector<int32_t> rows;       // (groups)

  explicit RowGroups(std::span<const int32_t> looked_up) : positions(looked_up.size()) {
    std::iota(positions.begin(), positions.end(), 0);
    auto row_of = [&](int32_t position) { return looked_up[static_cast<size_t>(position)]; };
    std::ranges::stable_sort(positions, {}, row_of);
    for (size_t i = 0; i < positions.size(); ++i)
      if (rows.empty() || rows.back() != row_of(positions[i])) {
        rows.push_back(row_of(positions[i]));
        firsts.push_back(static_cast<int32_t>(i));
      }
    firsts.push_back(static_cast<int32_t>(positions.size()));
  }
};

// Adds a group to the row that it looks up, first position first. A warp for each group: no two write one row.
struct AddGroups {
  const int32_t *positions, *firsts, *rows;
  ConstCudaView gradient;
  CudaView sum;

  __device__ void operator()(int64_t group, int lane) const {
    float* to = sum.data + rows[group] * sum.stride;
    for (int64_t c = lane; c < sum.columns; c += 32) {
      float total = to[c];
      for (int32_t i = firsts[group]; i < firsts[group + 1]; ++i)
        total += gradient.data[positions[i] * gradient.stride + c];
      to[c] = total;
    }
  }
};

}  // namespace

CudaMatrixGradients::CudaMatrixGradients(std::shared_ptr<const Network> network, int64_t most_rows)
    : network_(std::move(network)), lookups_(3 * most_rows + 1) {
  for (const MatrixUse& use : network_->matrices)
    sums_.emplace_back(use.rows * round_up(use.columns, kFloatMultiple), "gradients of matrices");
}

CudaView CudaMatrixGradients::sum(MatrixId id) const {
  const MatrixUse& use = network_->matrix(id);
  return {sums_[static_cast<size_t>(id)].data(), use.rows, use.columns, round_up(use.columns, kFloatMultiple)};
}

void CudaMatrixGradients::set_zero(cudaStream_t stream) {
  for (DeviceArray<float>& values : sums_) values.fill_bytes(0, stream);
}

void CudaMatrixGradients::add_products(MatrixId id, ConstCudaView gradient, ConstCudaView input,
                                       const BatchShape& batch, cudaStream_t stream) {
  auto window = [&](ConstCudaView rows, int64_t s) {
    return ConstCudaView(rows.data + s * batch.positions * rows.stride, batch.positions, rows.columns, rows.stride);
  };
  for (int64_t s = 0; s < batch.sequences; ++s)
    launch_product(ProductForm::kTN, window(gradient, s), window(input, s), sum(id), /*add=*/true, {},
                   ProductPart::kWhole, stream);
}

void CudaMatrixGradients::add_lookups(MatrixId id, std::span<const int32_t> rows, ConstCudaView gradient,
                                      cudaStream_t stream) {
  const RowGroups groups(rows);
  std::vector<int32_t> all = groups.positions;
  all.insert(all.end(), groups.firsts.begin(), groups.firsts.end());
  all.insert(all.end(), groups.rows.begin(), groups.rows.end());
  check_cuda(
      cudaMemcpyAsync(lookups_.data(), all.data(), all.size() * sizeof(int32_t), cudaMemcpyHostToDevice, stream));
  check_cuda(cudaStreamSynchronize(stream));  // the list goes
  const int32_t* firsts = lookups_.data() + groups.positions.size();
  launch_rows(static_cast<int64_t>(groups.rows.size()),
              AddGroups{lookups_.data(), firsts, firsts + groups.firsts.size(), gradient, sum(id)}, stream);
}

void CudaMatrixGradients::read(MatrixGradients& to, cudaStream_t stream) const {
  for (size_t i = 0; i < sums_.size(); ++i) {
    const CudaView from = sum(static_cast<MatrixId>(i));
    Matrix& host = to[network_->matrices[i].name];
    host.resize(from.rows, from.columns);
    check_cuda(cudaMemcpy2DAsync(host.data(), static_cast<size_t>(from.columns) * sizeof(float), from.data,
                                 static_cast<size_t>(from.stride) * sizeof(float),
                                 static_cast<size_t>(from.columns) * sizeof(float), static_cast<size_t>(from.rows),
                                 cudaMemcpyDeviceToHost, stream));
  }
  check_cuda(cudaStreamSynchronize(stream));
}

}  // namespace thimble
