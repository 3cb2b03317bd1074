// cuda_matrix_gradients.cu: see cuda_matrix_gradients.cuh.
#include "runtime/cuda/cuda_matrix_gradients.cuh"

#include <algorithm>
#include <numeric>

#include "runtime/cuda/kernels/cuda_row_kernel.cuh"
#include "runtime/tensor/host_device.h"

namespace thimble {
namespace {

constexpr int64_t kFloatMultiple = 4;  // 16-byte rows
// Windows are multiplied at once until there are about so many tiles: enough for all multiprocessors.
constexpr int64_t kTilesAtOnce = 512;

int64_t padded_columns(const MatrixUse& use) { return round_up(use.columns, kFloatMultiple); }

int64_t windows_at_once(const MatrixUse& use, int64_t windows) {
  const int64_t tiles = int64_t{divide_up(use.rows, kCausalTile)} * divide_up(use.columns, kCausalTile);
  return std::clamp<int64_t>(kTilesAtOnce / tiles, 1, windows);
}

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
template <typename T>
struct AddGroups {
  const int32_t *positions, *firsts, *rows;
  BasicCudaView<const T> gradient;
  CudaView sum;

  __device__ void operator()(int64_t group, int lane) const {
    float* to = sum.data + rows[group] * sum.stride;
    for (int64_t c = lane; c < sum.columns; c += 32) {
      float total = to[c];
      for (int32_t i = firsts[group]; i < firsts[group + 1]; ++i)
        total += to_float(gradient.data[positions[i] * gradient.stride + c]);
      to[c] = total;
    }
  }
};

bool is_looked_up_and_multiplied(const Network& network, const MatrixUse& use) {
  bool is_looked_up = false, is_multiplied = network.matrix(network.head.weight).name == use.name;
  for (const Node& node : network.nodes) {
    if (const auto* gather = std::get_if<op::Gather>(&node.operation))
      is_looked_up = is_looked_up || network.matrix(gather->table).name == use.name;
    if (const auto* linear = std::get_if<op::Linear>(&node.operation))
      is_multiplied = is_multiplied || network.matrix(linear->weight).name == use.name;
  }
  return is_looked_up && is_multiplied;
}

// Adds parts to sums, first part first, four elements a lane.
struct AddParts {
  static constexpr int64_t kElements = 128;  // of a warp
  const float* parts;
  int64_t count, elements;  // elements of a part: a multiple of 4
  float* sum;

  __device__ void operator()(int64_t warp, int lane) const {
    const int64_t at = warp * kElements + lane * 4;
    if (at >= elements) return;
    float4 total = *reinterpret_cast<const float4*>(sum + at);
#pragma unroll 4
    for (int64_t part = 0; part < count; ++part) {
      const float4 added = *reinterpret_cast<const float4*>(parts + part * elements + at);
      total.x += added.x, total.y += added.y, total.z += added.z, total.w += added.w;
    }
    *reinterpret_cast<float4*>(sum + at) = total;
  }
};

void launch_add_parts(const float* parts, int64_t count, CudaView sum, cudaStream_t stream) {
  const int64_t elements = sum.rows * sum.stride;
  launch_rows(divide_up(elements, AddParts::kElements), AddParts{parts, count, elements, sum.data}, stream);
}

}  // namespace

CudaMatrixGradients::CudaMatrixGradients(std::shared_ptr<const Network> network, const std::set<std::string>& names,
                                         const BatchShape& most, DivergenceOptions::Adds adds)
    : network_(std::move(network)), lookups_(3 * most.rows() + 1) {
  using Adds = DivergenceOptions::Adds;
  int64_t parts = 0, largest = 0;
  for (const MatrixUse& use : network_->matrices) {
    const int64_t elements = names.contains(use.name) ? use.rows * padded_columns(use) : 0;
    const int64_t windows = windows_at_once(use, most.sequences);
    sums_.emplace_back(elements, "gradients of matrices");
    wholes_.emplace_back(adds == Adds::kNothing ? 0 : elements, "gradients of matrices");
    largest = std::max(largest, elements);
    lookup_sums_.emplace_back(is_looked_up_and_multiplied(*network_, use) ? elements : 0, "gradients of matrices");
    if (windows > 1) parts = std::max(parts, windows * elements);
  }
  parts_ = DeviceArray<float>(parts, "gradients of matrices");
  other_ = DeviceArray<float>(adds == Adds::kAllParts ? largest : 0, "gradients of matrices");
}

CudaView CudaMatrixGradients::view(const std::vector<DeviceArray<float>>& sums, MatrixId id) const {
  const MatrixUse& use = network_->matrix(id);
  return {sums[static_cast<size_t>(id)].data(), use.rows, use.columns, padded_columns(use)};
}

void CudaMatrixGradients::set_zero(cudaStream_t stream) {
  gives_whole_ = false;
  for (std::vector<DeviceArray<float>>* sums : {&sums_, &lookup_sums_})
    for (DeviceArray<float>& values : *sums)
      if (values.count() > 0) values.fill_bytes(0, stream);
}

template <typename T>
void CudaMatrixGradients::add_products(MatrixId id, BasicCudaView<const T> gradient, BasicCudaView<const T> input,
                                       const BatchShape& batch, cudaStream_t stream) {
  if (!is_summed(id)) return;
  const int64_t positions = batch.positions, at_once = windows_at_once(network_->matrix(id), batch.sequences);
  const CudaView to = sum(id);
  const int64_t elements = to.rows * to.stride;
  for (int64_t s = 0; s < batch.sequences; s += at_once) {
    const int64_t windows = std::min(at_once, batch.sequences - s);
    auto of_windows = [&](BasicCudaView<const T> rows) {
      return BasicProductInput<T>(rows.data + s * positions * rows.stride, positions, rows.columns, rows.stride,
                                  {.outer = positions * rows.stride});
    };
    const bool is_alone = at_once == 1;
    const ProductOutput out(is_alone ? to.data : parts_.data(), to.rows, to.columns, to.stride, {.outer = elements});
    launch_gradient_product(ProductForm::kTN, of_windows(gradient), of_windows(input), out, /*add=*/is_alone, windows,
                            stream);
    if (!is_alone) launch_add_parts(parts_.data(), windows, to, stream);
  }
}

template <typename T>
void CudaMatrixGradients::add_lookups(MatrixId id, std::span<const int32_t> rows, BasicCudaView<const T> gradient,
                                      cudaStream_t stream) {
  if (!is_summed(id)) return;
  const RowGroups groups(rows);
  std::vector<int32_t> all = groups.positions;
  all.insert(all.end(), groups.firsts.begin(), groups.firsts.end());
  all.insert(all.end(), groups.rows.begin(), groups.rows.end());
  check_cuda(
      cudaMemcpyAsync(lookups_.data(), all.data(), all.size() * sizeof(int32_t), cudaMemcpyHostToDevice, stream));
  check_cuda(cudaStreamSynchronize(stream));  // the list goes
  const int32_t* firsts = lookups_.data() + groups.positions.size();
  launch_rows(static_cast<int64_t>(groups.rows.size()),
              AddGroups<T>{lookups_.data(), firsts, firsts + groups.firsts.size(), gradient, lookup_sum(id)}, stream);
}

#define THIMBLE_INSTANTIATE(T)                                                                               \
  template void CudaMatrixGradients::add_products(MatrixId, BasicCudaView<const T>, BasicCudaView<const T>,  \
                                                  const BatchShape&, cudaStream_t);                          \
  template void CudaMatrixGradients::add_lookups(MatrixId, std::span<const int32_t>, BasicCudaView<const T>, \
                                                 cudaStream_t);
THIMBLE_INSTANTIATE(float)
THIMBLE_INSTANTIATE(__nv_bfloat16)
#undef THIMBLE_INSTANTIATE

void CudaMatrixGradients::finish(cudaStream_t stream) {
  for (size_t i = 0; i < sums_.size(); ++i) {
    const auto id = static_cast<MatrixId>(i);
    if (!is_both(id)) continue;
    launch_add_parts(lookup_sum(id).data, 1, sum(id), stream);
  }
}

void CudaMatrixGradients::add_part(bool begins, cudaStream_t stream) {
  gives_whole_ = true;
  if (begins) return std::swap(sums_, wholes_);
  for (size_t i = 0; i < sums_.size(); ++i) {
    const auto id = static_cast<MatrixId>(i);
    if (is_summed(id)) launch_add_parts(sum(id).data, 1, whole(id), stream);
  }
  check_cuda(cudaStreamSynchronize(stream));
}

void CudaMatrixGradients::add_part_of(const CudaMatrixGradients& other, int other_ordinal, int ordinal, bool begins,
                                      cudaStream_t stream) {
  gives_whole_ = true;
  for (size_t i = 0; i < sums_.size(); ++i) {
    const auto id = static_cast<MatrixId>(i);
    if (!is_summed(id)) continue;
    float* to = place_of(id, begins);
    check_cuda(cudaMemcpyPeerAsync(to, ordinal, other.sum(id).data, other_ordinal, sums_[i].bytes(), stream));
    if (!begins) launch_add_parts(to, 1, whole(id), stream);
  }
  check_cuda(cudaStreamSynchronize(stream));
}

void CudaMatrixGradients::add_matrix(MatrixId id, ConstMatrixView values, bool begins, cudaStream_t stream) {
  gives_whole_ = true;
  float* to = place_of(id, begins);
  const auto width = static_cast<size_t>(values.cols) * sizeof(float);
  check_cuda(cudaMemcpy2DAsync(to, static_cast<size_t>(whole(id).stride) * sizeof(float), values.data, width, width,
                               static_cast<size_t>(values.rows), cudaMemcpyHostToDevice, stream));
  if (!begins) launch_add_parts(to, 1, whole(id), stream);
  check_cuda(cudaStreamSynchronize(stream));
}

void CudaMatrixGradients::read(ConstCudaView from, Matrix& to, cudaStream_t stream) {
  to.resize(from.rows, from.columns);
  const auto width = static_cast<size_t>(from.columns) * sizeof(float);
  check_cuda(cudaMemcpy2DAsync(to.data(), width, from.data, static_cast<size_t>(from.stride) * sizeof(float), width,
                               static_cast<size_t>(from.rows), cudaMemcpyDeviceToHost, stream));
  check_cuda(cudaStreamSynchronize(stream));
}

void CudaMatrixGradients::read(MatrixGradients& to, cudaStream_t stream) const {
  for (size_t i = 0; i < sums_.size(); ++i) {
    const auto id = static_cast<MatrixId>(i);
    if (is_summed(id)) read(gradient(id), to[network_->matrices[i].name], stream);
  }
}

}  // namespace thimble
