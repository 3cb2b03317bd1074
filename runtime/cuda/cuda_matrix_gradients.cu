// cuda_matrix_gradients.cu: see cuda_matrix_gradients.cuh.
#include "runtime/cuda/cuda_matrix_gradients.cuh"

#include <algorithm>
#include <numeric>

#include "runtime/cuda/kernels/cuda_row_vectors.cuh"
#include "runtime/tensor/host_device.h"

namespace thimble {
namespace {

constexpr int64_t kFloatMultiple = 4;   // 16-byte rows
constexpr int64_t kPlaceMultiple = 64;  // matrices begin where memory of their own would
// Windows are multiplied at once until there are about so many tiles: enough for all multiprocessors.
constexpr int64_t kTilesAtOnce = 512;

int64_t padded_columns(const MatrixUse& use) { return round_up(use.columns, kFloatMultiple); }

int64_t windows_at_once(const MatrixUse& use, int64_t windows) {
  const int64_t tiles = int64_t{divide_up(use.rows, kCausalTile)} * divide_up(use.columns, kCausalTile);
  return std::clamp<int64_t>(kTilesAtOnce / tiles, 1, windows);
}

// Which positions look up which row, by row, and of one row by sequence: in order, as an array of int32_t that the
// device reads.
struct RowGroups {
  int64_t positions = 0, parts = 0, groups = 0;

  // Of so many positions.
  static int64_t most_elements(int64_t positions) { return 4 * positions + 2; }

  // `to` has room for most_elements(). looked_up[p]: the row of a table of `rows` that position p looks up; sequences
  // of `length` positions follow each other.
  RowGroups(std::span<const int32_t> looked_up, int64_t rows, int64_t length, int32_t* to) {
    positions = std::ssize(looked_up);
    std::vector<int32_t> next(static_cast<size_t>(rows) + 1);  // where the next position of a row goes
    for (int32_t row : looked_up) ++next[static_cast<size_t>(row) + 1];
    std::partial_sum(next.begin(), next.end(), next.begin());
    for (int64_t p = 0; p < positions; ++p)
      to[next[static_cast<size_t>(looked_up[static_cast<size_t>(p)])]++] = static_cast<int32_t>(p);
    std::vector<int32_t> part_firsts, group_firsts, group_rows;
    int32_t row = -1;
    int64_t sequence = -1;
    for (int64_t i = 0; i < positions; ++i) {
      const int32_t own_row = looked_up[static_cast<size_t>(to[i])];
      const int64_t own_sequence = to[i] / length;
      if (own_row == row && own_sequence == sequence) continue;
      if (own_row != row) {
        group_firsts.push_back(static_cast<int32_t>(part_firsts.size()));
        group_rows.push_back(own_row);
      }
      part_firsts.push_back(static_cast<int32_t>(i));
      row = own_row, sequence = own_sequence;
    }
    parts = std::ssize(part_firsts), groups = std::ssize(group_rows);
    part_firsts.push_back(static_cast<int32_t>(positions));
    group_firsts.push_back(static_cast<int32_t>(parts));
    to += positions;
    for (const std::vector<int32_t>* list : {&part_firsts, &group_firsts, &group_rows})
      to = std::ranges::copy(*list, to).out;
  }
  int64_t elements() const { return positions + parts + 1 + groups + 1 + groups; }
};

constexpr int kGroupWarps = 8;

// What the device reads of RowGroups.
struct GroupLists {
  const int32_t *positions, *part_firsts, *group_firsts, *group_rows;

  GroupLists(const RowGroups& groups, const int32_t* at)
      : positions(at),
        part_firsts(positions + groups.positions),
        group_firsts(part_firsts + groups.parts + 1),
        group_rows(group_firsts + groups.groups + 1) {}
};

// CTA (x, y): adds 32 * kWidth columns of a group's rows to the row that they look up. Of each part, warp w adds up
// positions w, w + 8, ...; then the warps' sums are added in order, and parts to the row in order.
template <typename T, int kWidth>
__global__ void __launch_bounds__(32 * kGroupWarps)
    add_groups_kernel(const GroupLists lists, const BasicCudaView<const T> gradient, const CudaView sum) {
  __shared__ float sums[2][kGroupWarps][kWidth][32];
  const auto warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * 32 + lane) * kWidth;
  const bool exists = column < sum.columns;
  float* to = sum.data + lists.group_rows[blockIdx.x] * sum.stride + column;
  Columns<kWidth> total = {};
  if (exists && warp == 0) total = columns_of<kWidth>([&](int j) { return to[j]; });
  const int32_t end = lists.group_firsts[blockIdx.x + 1];
  for (int32_t part = lists.group_firsts[blockIdx.x]; part < end; ++part) {
    Columns<kWidth> own = {};
    if (exists) {
#pragma unroll 4
      for (int32_t i = lists.part_firsts[part] + warp; i < lists.part_firsts[part + 1]; i += kGroupWarps) {
        const auto added = load_columns<kWidth>(gradient.data + lists.positions[i] * gradient.stride + column);
        own = columns_of<kWidth>([&](int j) { return own[j] + added[j]; });
      }
    }
    float(&of_part)[kGroupWarps][kWidth][32] = sums[part % 2];  // the other may still be read
#pragma unroll
    for (int j = 0; j < kWidth; ++j) of_part[warp][j][lane] = own[j];
    __syncthreads();
    if (warp > 0) continue;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      float all = 0;
      for (int w = 0; w < kGroupWarps; ++w) all += of_part[w][j][lane];
      total[j] += all;
    }
  }
  if (!exists || warp > 0) return;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) to[j] = total[j];
}

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
    : network_(std::move(network)), on_device_(RowGroups::most_elements(most.rows())) {
  using Adds = DivergenceOptions::Adds;
  int64_t parts = 0, largest = 0, all = 0, of_lookups = 0;
  auto place = [](int64_t elements, int64_t& count) {
    const int64_t first = count;
    count += round_up(elements, kPlaceMultiple);
    return first;
  };
  for (const MatrixUse& use : network_->matrices) {
    Places& places = places_.emplace_back();
    if (!names.contains(use.name)) continue;
    const int64_t elements = use.rows * padded_columns(use), windows = windows_at_once(use, most.sequences);
    places.sum = place(elements, all);
    if (is_looked_up_and_multiplied(*network_, use)) places.lookups = place(elements, of_lookups);
    largest = std::max(largest, elements);
    if (windows > 1) parts = std::max(parts, windows * elements);
  }
  for (const Node& node : network_->nodes) {
    const auto* gather = std::get_if<op::Gather>(&node.operation);
    if (gather && is_summed(gather->table)) lookups_.try_emplace(gather->table);
  }
  // Of what rows are padded with, which is added too.
  auto zeros = [](int64_t count) {
    DeviceArray<float> values(count, "gradients of matrices");
    values.fill_zero();
    return values;
  };
  sums_ = zeros(all);
  wholes_ = zeros(adds == Adds::kNothing ? 0 : all);
  lookup_sums_ = zeros(of_lookups);
  parts_ = zeros(parts);
  other_ = zeros(adds == Adds::kAllParts ? largest : 0);
}

CudaView CudaMatrixGradients::view(float* data, MatrixId id) const {
  const MatrixUse& use = network_->matrix(id);
  return {data, use.rows, use.columns, padded_columns(use)};
}

void CudaMatrixGradients::set_zero(cudaStream_t stream) {
  gives_whole_ = false;
  sums_.fill_bytes(0, stream);
  lookup_sums_.fill_bytes(0, stream);
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
                                      const BatchShape& batch, cudaStream_t stream) {
  if (!is_summed(id)) return;
  SentList& list = lookups_.at(id);
  const RowGroups groups(rows, network_->matrix(id).rows, batch.positions, list.reserve(on_device_.count()));
  list.send(groups.elements(), on_device_.data(), stream);
  const CudaView to = lookup_sum(id);
  with_row_width<T>(has_row_vectors(gradient), [&]<int kWidth>(Width<kWidth>) {
    const dim3 grid(static_cast<unsigned>(groups.groups), static_cast<unsigned>(divide_up(to.columns, 32 * kWidth)));
    launch_kernel(add_groups_kernel<T, kWidth>, {grid, 32 * kGroupWarps}, stream, GroupLists(groups, on_device_.data()),
                  gradient, to);
  });
}

#define THIMBLE_INSTANTIATE(T)                                                                               \
  template void CudaMatrixGradients::add_products(MatrixId, BasicCudaView<const T>, BasicCudaView<const T>,  \
                                                  const BatchShape&, cudaStream_t);                          \
  template void CudaMatrixGradients::add_lookups(MatrixId, std::span<const int32_t>, BasicCudaView<const T>, \
                                                 const BatchShape&, cudaStream_t);
THIMBLE_INSTANTIATE(float)
THIMBLE_INSTANTIATE(__nv_bfloat16)
#undef THIMBLE_INSTANTIATE

void CudaMatrixGradients::finish(cudaStream_t stream) {
  for (size_t i = 0; i < places_.size(); ++i) {
    const auto id = static_cast<MatrixId>(i);
    if (is_both(id)) launch_add_parts(lookup_sum(id).data, 1, sum(id), stream);
  }
}

void CudaMatrixGradients::add_part(bool begins, cudaStream_t stream) {
  gives_whole_ = true;
  if (begins) return std::swap(sums_, wholes_);
  launch_add_parts(sums_.data(), 1, {wholes_.data(), 1, wholes_.count(), wholes_.count()}, stream);
  check_cuda(cudaStreamSynchronize(stream));
}

void CudaMatrixGradients::add_part_of(const CudaMatrixGradients& other, int other_ordinal, int ordinal, bool begins,
                                      cudaStream_t stream) {
  gives_whole_ = true;
  for (size_t i = 0; i < places_.size(); ++i) {
    const auto id = static_cast<MatrixId>(i);
    if (!is_summed(id)) continue;
    float* to = place_of(id, begins);
    const CudaView from = other.sum(id);
    copy_between_devices(to, ordinal, from.data, other_ordinal,
                         static_cast<size_t>(from.rows * from.stride) * sizeof(float), stream);
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
  for (size_t i = 0; i < places_.size(); ++i) {
    const auto id = static_cast<MatrixId>(i);
    if (is_summed(id)) read(gradient(id), to[network_->matrices[i].name], stream);
  }
}

}  // namespace thimble
