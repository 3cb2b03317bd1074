// hessian.cu: accumulation of Hessians on the device. Products of pieces of sequences first, all at once; then one
// thread per element adds them to its float64 sum, in order.
#include <algorithm>
#include <utility>

#include "gptq/statistics/gram_product.cuh"
#include "gptq/statistics/hessian.cuh"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/cuda/kernels/cuda_numeric.cuh"

namespace thimble {
namespace {

constexpr int kThreads = 256;
constexpr unsigned long long kNoneBad = ~0ULL;
// Bounded by the grid's second dimension.
constexpr int64_t kMostPieces = 65535;

// Adds products[piece][tile] to the packed lower triangle. A sum of squares is finite only if every value is, and it
// bounds the column's other products (Cauchy-Schwarz): looking at the diagonal is enough.
// blockIdx.x is the tile, blockIdx.y a group of kThreads of its elements.
__global__ void add_products_kernel(const float* products, int64_t piece_count, int64_t columns, double* sum,
                                    int64_t first_piece, int64_t pieces_per_sequence, int64_t first_sequence,
                                    unsigned long long* first_bad) {
  int element = blockIdx.y * kThreads + threadIdx.x;
  GramTile tile = gram_tile(blockIdx.x);
  int64_t row = tile.row + element / kGramTile, column = tile.column + element % kGramTile;
  if (row >= columns || column > row) return;
  double* at = sum + row * (row + 1) / 2 + column;
  double total = *at;
  const float* product = products + blockIdx.x * kGramTileElements + element;
  for (int64_t piece = 0; piece < piece_count; ++piece, product += gridDim.x * kGramTileElements) {
    total += *product;
    if (row == column && !isfinite(*product)) {
      int64_t sequence = first_sequence + (first_piece + piece) / pieces_per_sequence;
      atomicMin(first_bad, static_cast<unsigned long long>(sequence * columns + column));
    }
  }
  *at = total;
}

__global__ void divide_kernel(double* values, int64_t count, double divisor) {
  int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (i < count) values[i] /= divisor;
}

__global__ void add_sums_kernel(const double* added, const unsigned long long* added_bad, int64_t count, double* sum,
                                unsigned long long* first_bad) {
  int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (i < count) sum[i] += added[i];
  if (i == 0) *first_bad = min(*first_bad, *added_bad);
}

void divide(const DeviceArray<double>& sum, int64_t tokens, cudaStream_t stream) {
  divide_kernel<<<divide_up(sum.count(), kThreads), kThreads, 0, stream>>>(sum.data(), sum.count(),
                                                                           static_cast<double>(tokens));
  check_cuda(cudaGetLastError());
}

}  // namespace

CudaHessianCollector::CudaHessianCollector(size_t workspace_bytes, int64_t first_sequence)
    : workspace_bytes_(workspace_bytes), first_sequence_(first_sequence) {
  check_cuda(cudaGetDevice(&device_));
}

CudaHessianCollector::Input& CudaHessianCollector::input_of(std::span<const std::string> layers, int64_t columns,
                                                            cudaStream_t stream) {
  auto [found, is_new] = inputs_.try_emplace(layers[0]);
  Input& input = found->second;
  if (is_new) {
    input.layers.assign(layers.begin(), layers.end());
    input.columns = columns;
    input.sum = DeviceArray<double>(columns * (columns + 1) / 2);
    input.first_bad = DeviceArray<unsigned long long>(1);
    check_cuda(cudaMemsetAsync(input.sum.data(), 0, input.sum.bytes(), stream));
    check_cuda(cudaMemsetAsync(input.first_bad.data(), 0xff, input.first_bad.bytes(), stream));
  }
  if (!std::ranges::equal(input.layers, layers))
    throw Error(ExitCode::kInternal, "layer '" + layers[0] + "': the layers that share its input changed");
  if (input.columns != columns)
    throw Error(ExitCode::kInternal, "layer '" + layers[0] + "': input of " + std::to_string(columns) +
                                         " columns, expected " + std::to_string(input.columns));
  return input;
}

template <typename T>
void CudaHessianCollector::add_products(std::span<const std::string> layers, const T* x, int64_t stride,
                                        int64_t sequences, int64_t tokens, int64_t columns, cudaStream_t stream) {
  DeviceScope device(device_);
  Input& input = input_of(layers, columns, stream);
  GramInput<T> gram{x, stride, tokens, columns};
  int64_t pieces = sequences * gram.pieces(), tiles = gram_tiles(columns);
  auto affordable = static_cast<int64_t>(workspace_bytes_ / sizeof(float)) / (tiles * kGramTileElements);
  int64_t at_once = std::clamp<int64_t>(affordable, 1, kMostPieces);
  workspace_.reserve(std::min(at_once, pieces) * tiles * kGramTileElements);
  for (int64_t first = 0; first < pieces; first += at_once) {
    int64_t count = std::min(at_once, pieces - first);
    multiply_gram(gram, first, count, workspace_.data(), stream);
    dim3 grid(static_cast<unsigned>(tiles), kGramTileElements / kThreads);
    add_products_kernel<<<grid, kThreads, 0, stream>>>(workspace_.data(), count, columns, input.sum.data(), first,
                                                       gram.pieces(), first_sequence_ + input.sequence_count,
                                                       input.first_bad.data());
    check_cuda(cudaGetLastError());
  }
  input.sequence_count += sequences;
  input.token_count += sequences * tokens;
}

void CudaHessianCollector::add(std::span<const std::string> layers, const __nv_bfloat16* x, int64_t stride,
                               int64_t sequences, int64_t tokens, int64_t columns, cudaStream_t stream) {
  add_products(layers, x, stride, sequences, tokens, columns, stream);
}

void CudaHessianCollector::add(std::span<const std::string> layers, const __half* x, int64_t stride, int64_t sequences,
                               int64_t tokens, int64_t columns, cudaStream_t stream) {
  add_products(layers, x, stride, sequences, tokens, columns, stream);
}

void CudaHessianCollector::add(std::span<const std::string> layers, const float* x, int64_t stride, int64_t sequences,
                               int64_t tokens, int64_t columns, cudaStream_t stream) {
  add_products(layers, x, stride, sequences, tokens, columns, stream);
}

void CudaHessianCollector::require_finite(const Input& input) {
  if (input.token_count == 0)
    throw Error(ExitCode::kBadInput, "layer '" + input.layers[0] + "': no calibration tokens reached it");
  unsigned long long bad = kNoneBad;
  check_cuda(cudaMemcpy(&bad, input.first_bad.data(), sizeof(bad), cudaMemcpyDeviceToHost));
  if (bad != kNoneBad) {
    auto columns = static_cast<unsigned long long>(input.columns);
    throw Error(ExitCode::kBadInput, "layer '" + input.layers[0] + "': input column " + std::to_string(bad % columns) +
                                         " of sequence " + std::to_string(bad / columns) +
                                         ": a value is not finite, or the sum of squares overflows float32");
  }
}

Hessian CudaHessianCollector::finish_input(const Input& input, Result result) const {
  DeviceScope device(device_);
  require_finite(input);
  CudaStream stream;
  if (result == Result::kMean) divide(input.sum, input.token_count, stream);
  Hessian hessian{SymmetricMatrix(input.columns), input.token_count, input.sequence_count};
  check_cuda(cudaMemcpyAsync(hessian.matrix.values().data(), input.sum.data(), input.sum.bytes(),
                             cudaMemcpyDeviceToHost, stream));
  stream.wait();
  return hessian;
}

DeviceArray<double> CudaHessianCollector::take_mean() {
  DeviceScope device(device_);
  check_cuda(cudaDeviceSynchronize());
  if (inputs_.size() != 1) throw Error(ExitCode::kInternal, "the mean of one input, of a collector of several");
  Input input = std::move(inputs_.begin()->second);
  inputs_.clear();
  require_finite(input);
  CudaStream stream;
  divide(input.sum, input.token_count, stream);
  stream.wait();
  return std::move(input.sum);
}

std::vector<SharedHessian> CudaHessianCollector::finish_inputs(Result result) {
  {
    DeviceScope device(device_);
    check_cuda(cudaDeviceSynchronize());
  }
  std::vector<const Input*> inputs;
  for (const auto& [first_layer, input] : inputs_) inputs.push_back(&input);
  std::vector<SharedHessian> hessians(inputs.size());
  parallel_for(static_cast<int64_t>(inputs.size()), [&](int64_t index) {
    auto i = static_cast<size_t>(index);
    hessians[i] = {inputs[i]->layers, finish_input(*inputs[i], result)};
  });
  inputs_.clear();
  return hessians;
}

std::vector<SharedHessian> CudaHessianCollector::finish_sums() && { return finish_inputs(Result::kSum); }

HessianSet CudaHessianCollector::finish() && { return share_hessians(finish_inputs(Result::kMean)); }

void CudaHessianCollector::merge(CudaHessianCollector&& later) {
  DeviceScope device(device_);
  CudaStream stream;
  if (later.inputs_.size() != inputs_.size())
    throw Error(ExitCode::kInternal, "the parts of a calibration set have different layers");
  for (auto& [first_layer, input] : inputs_) {
    Input& added = later.inputs_.at(first_layer);
    if (added.layers != input.layers || added.columns != input.columns)
      throw Error(ExitCode::kInternal, "layer '" + first_layer + "': the parts of a Hessian have different inputs");
    add_sums_kernel<<<divide_up(input.sum.count(), kThreads), kThreads, 0, stream>>>(
        added.sum.data(), added.first_bad.data(), input.sum.count(), input.sum.data(), input.first_bad.data());
    check_cuda(cudaGetLastError());
    input.sequence_count += added.sequence_count;
    input.token_count += added.token_count;
  }
  stream.wait();
  later.inputs_.clear();
}

}  // namespace thimble
