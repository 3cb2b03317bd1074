// hessian.cu: accumulation of Hessians on the device. Products of pieces of sequences first, all at once: X^T X in
// tiles of the lower triangle, one CTA of 256 threads per tile and piece. Tokens pass through shared memory in chunks
// of 8 KiB per operand, four chunks deep (cp.async); both operands are rows of X as they lie in memory. Then one thread
// per element adds them to its float64 sum, in order.
#include "gptq/statistics/hessian.cuh"

#include <cuda_pipeline.h>

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/cuda/kernels/cuda_gemm.cuh"

namespace thimble {
namespace {

using gemm_detail::load_matrices_transposed;
using gemm_detail::multiply_add;

constexpr int kThreads = 256;
constexpr int kStages = 4;
constexpr unsigned long long kNoneBad = ~0ULL;
// Bounded by the grid's second dimension.
constexpr int64_t kMostPieces = 65535;

constexpr int kGramTile = 128;
constexpr int64_t kGramTileElements = kGramTile * kGramTile;

// Tiles (i, j) with j <= i of a matrix of `columns` columns, in the order (0, 0), (1, 0), (1, 1), (2, 0), ...
constexpr int64_t gram_tiles(int64_t columns) {
  int64_t side = (columns + kGramTile - 1) / kGramTile;
  return side * (side + 1) / 2;
}
struct GramTile {
  int64_t row, column;  // of the tile's first element
};
__device__ GramTile gram_tile(int64_t index) {
  int64_t i = 0;
  while (index > i) index -= ++i;
  return {i * kGramTile, index * kGramTile};
}

constexpr int64_t kPieceTokens = 2048;

// x (sequences * T, K), each sequence cut into pieces of at most kPieceTokens tokens.
template <typename T>
struct GramInput {
  const T* x = nullptr;
  int64_t stride = 0;  // elements between rows
  int64_t tokens = 0;  // T
  int64_t columns = 0;

  __host__ __device__ int64_t pieces() const { return divide_up(tokens, kPieceTokens); }  // per sequence
};

__device__ uint32_t shared_address(const void* at) { return static_cast<uint32_t>(__cvta_generic_to_shared(at)); }

// A chunk of tokens of kGramTile columns in shared memory.
template <typename T>
struct Chunk {
  static constexpr int kVector = 16 / sizeof(T);
  static constexpr int kTokens = 64 / sizeof(T);
  static constexpr int kStride = kGramTile + kVector;  // rows begin in different banks
  static constexpr int kElements = kTokens * kStride;
};

// Up to kTokens rows from `from`, `rows` of which and `columns` of whose columns exist; zeros elsewhere.
// kWhole: every 16 bytes of a row are aligned and exist together, or not at all.
template <bool kWhole, typename T>
__device__ void load_chunk(T* chunk, const T* from, int64_t stride, int64_t rows, int64_t columns) {
  constexpr int kVector = Chunk<T>::kVector, kRowVectors = kGramTile / kVector;
#pragma unroll
  for (int i = 0; i < Chunk<T>::kTokens * kRowVectors / kThreads; ++i) {
    int vector = threadIdx.x + i * kThreads, row = vector / kRowVectors, column = vector % kRowVectors * kVector;
    T* to = chunk + row * Chunk<T>::kStride + column;
    if constexpr (kWhole) {
      bool exists = row < rows && column < columns;
      __pipeline_memcpy_async(to, exists ? from + row * stride + column : from, 16, exists ? 0 : 16);
    } else {
      for (int c = 0; c < kVector; ++c)
        to[c] = row < rows && column + c < columns ? from[row * stride + column + c] : T(0.0F);
    }
  }
}

// Sums of a tile, on the tensor cores, of elements of 16 bits. Each warp 32 x 64 of the tile: 2 x 8 products of 16 x 8.
template <typename T>
class Accumulator {
 public:
  __device__ void add(const T* a, const T* b) {
    constexpr int kStride = Chunk<T>::kStride;
    // Four 8 x 8 matrices at a time, transposed on the way, as mma wants both operands: lane 8 q + r gives the address
    // of row r (a token) of matrix q. Those of the left operand: tokens 0-7 of columns 0-7 and 8-15, then tokens 8-15
    // of both. Of the right one: tokens 0-7 and 8-15 of columns 0-7, then of columns 8-15.
    int lane = threadIdx.x % 32, near = lane / 8 % 2 * 8, far = lane / 16 * 8, token = lane % 8;
    const T* left_row = a + (token + far) * kStride + first_row() + near;
    const T* right_row = b + (token + near) * kStride + first_column() + far;
#pragma unroll
    for (int k = 0; k < Chunk<T>::kTokens; k += 16) {
      uint32_t left[2][4], right[4][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) load_matrices_transposed(left[i], shared_address(left_row + k * kStride + 16 * i));
#pragma unroll
      for (int j = 0; j < 4; ++j) load_matrices_transposed(right[j], shared_address(right_row + k * kStride + 16 * j));
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j)
          multiply_add(sums_[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1], a);
    }
  }
  __device__ void store(float* tile) const {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float* at = tile + (first_row() + 16 * i + lane / 4) * kGramTile + first_column() + 8 * j + lane % 4 * 2;
        *reinterpret_cast<float2*>(at) = make_float2(sums_[i][j][0], sums_[i][j][1]);
        *reinterpret_cast<float2*>(at + 8 * kGramTile) = make_float2(sums_[i][j][2], sums_[i][j][3]);
      }
  }

 private:
  __device__ static int first_row() { return static_cast<int>(threadIdx.x) / 32 % 4 * 32; }
  __device__ static int first_column() { return static_cast<int>(threadIdx.x) / 128 * 64; }

  float sums_[2][8][4] = {};
};

// Each thread 8 x 8 of the tile: two groups of four rows and of four columns, 64 apart.
template <>
class Accumulator<float> {
 public:
  __device__ void add(const float* a, const float* b) {
    constexpr int kStride = Chunk<float>::kStride;
#pragma unroll
    for (int k = 0; k < Chunk<float>::kTokens; ++k) {
      float left[8], right[8];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<float4*>(left + 4 * half) =
            *reinterpret_cast<const float4*>(a + k * kStride + first_row() + 64 * half);
        *reinterpret_cast<float4*>(right + 4 * half) =
            *reinterpret_cast<const float4*>(b + k * kStride + first_column() + 64 * half);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) sums_[i][j] = fmaf(left[i], right[j], sums_[i][j]);
    }
  }
  __device__ void store(float* tile) const {
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int row = first_row() + i % 4 + i / 4 * 64, column = first_column() + 64 * half;
        *reinterpret_cast<float4*>(tile + row * kGramTile + column) =
            make_float4(sums_[i][4 * half], sums_[i][4 * half + 1], sums_[i][4 * half + 2], sums_[i][4 * half + 3]);
      }
  }

 private:
  __device__ static int first_row() { return static_cast<int>(threadIdx.x) / 16 * 4; }
  __device__ static int first_column() { return static_cast<int>(threadIdx.x) % 16 * 4; }

  float sums_[8][8] = {};
};

// Products[p * tiles + t] (kGramTile, kGramTile) = tile t of the Gram matrix of piece first_piece + p, pieces counted
// through all sequences. Rows and columns beyond K hold rubbish.
template <typename T, bool kWhole>
__global__ void __launch_bounds__(kThreads, 2) gram_kernel(GramInput<T> input, int64_t first_piece, float* products) {
  extern __shared__ __align__(128) std::byte shared[];
  T* chunks = reinterpret_cast<T*>(shared);
  GramTile tile = gram_tile(blockIdx.x);
  bool diagonal = tile.row == tile.column;

  int64_t piece = first_piece + blockIdx.y, pieces = input.pieces();
  int64_t first_token = piece % pieces * kPieceTokens;
  int64_t tokens = min(kPieceTokens, input.tokens - first_token);
  const T* x = input.x + (piece / pieces * input.tokens + first_token) * input.stride;

  auto load = [&](int index) {
    T* left = chunks + index % kStages * 2 * Chunk<T>::kElements;
    int64_t token = static_cast<int64_t>(index) * Chunk<T>::kTokens;
    if (token < tokens) {
      const T* from = x + token * input.stride;
      load_chunk<kWhole>(left, from + tile.row, input.stride, tokens - token, input.columns - tile.row);
      if (!diagonal)
        load_chunk<kWhole>(left + Chunk<T>::kElements, from + tile.column, input.stride, tokens - token,
                           input.columns - tile.column);
    }
    __pipeline_commit();
  };
  for (int stage = 0; stage < kStages - 1; ++stage) load(stage);

  Accumulator<T> sums;
  for (int index = 0; static_cast<int64_t>(index) * Chunk<T>::kTokens < tokens; ++index) {
    __pipeline_wait_prior(kStages - 2);
    __syncthreads();  // the chunk is there for all, and all are done with the one that the next load replaces
    load(index + kStages - 1);
    const T* left = chunks + index % kStages * 2 * Chunk<T>::kElements;
    sums.add(left, diagonal ? left : left + Chunk<T>::kElements);
  }
  sums.store(products + (blockIdx.y * static_cast<int64_t>(gridDim.x) + blockIdx.x) * kGramTileElements);
}

template <typename T>
void multiply_gram(const GramInput<T>& input, int64_t first_piece, int64_t piece_count, float* products,
                   cudaStream_t stream) {
  constexpr int kSharedBytes = kStages * 2 * Chunk<T>::kElements * sizeof(T);
  bool whole = reinterpret_cast<uintptr_t>(input.x) % 16 == 0 && input.stride % Chunk<T>::kVector == 0 &&
               input.columns % Chunk<T>::kVector == 0;
  dim3 grid(static_cast<unsigned>(gram_tiles(input.columns)), static_cast<unsigned>(piece_count));
  launch_kernel(whole ? gram_kernel<T, true> : gram_kernel<T, false>, {grid, kThreads, kSharedBytes}, stream, input,
                first_piece, products);
}

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

__global__ void add_sums_kernel(const double* added, const unsigned long long* added_bad, int64_t count, double* sum,
                                unsigned long long* first_bad) {
  int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (i < count) sum[i] += added[i];
  if (i == 0) *first_bad = min(*first_bad, *added_bad);
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
    input.sum = DeviceArray<double>(columns * (columns + 1) / 2, "Hessians");
    input.first_bad = DeviceArray<unsigned long long>(1, "Hessians");
    input.sum.fill_bytes(0, stream);
    input.first_bad.fill_bytes(0xff, stream);
  }
  if (!std::ranges::equal(input.layers, layers))
    throw Error(ExitCode::kInternal, "layer '" + layers[0] + "': the layers that share its input changed");
  if (input.columns != columns)
    throw Error(ExitCode::kInternal, "layer '" + layers[0] + "': input of " + std::to_string(columns) +
                                         " columns, expected " + std::to_string(input.columns));
  return input;
}

int64_t CudaHessianCollector::pieces_at_once(int64_t columns) const {
  const auto affordable =
      static_cast<int64_t>(workspace_bytes_ / sizeof(float)) / (gram_tiles(columns) * kGramTileElements);
  return std::clamp<int64_t>(affordable, 1, kMostPieces);
}

void CudaHessianCollector::reserve_products(int64_t columns, int64_t sequences, int64_t tokens) {
  const int64_t pieces = std::min(pieces_at_once(columns), sequences * divide_up(tokens, kPieceTokens));
  workspace_.reserve(pieces * gram_tiles(columns) * kGramTileElements, "products of activations");
}

template <typename T>
void CudaHessianCollector::add(std::span<const std::string> layers, const T* x, int64_t stride, int64_t sequences,
                               int64_t tokens, int64_t columns, cudaStream_t stream) {
  DeviceScope device(device_);
  Input& input = input_of(layers, columns, stream);
  GramInput<T> gram{x, stride, tokens, columns};
  int64_t pieces = sequences * gram.pieces(), tiles = gram_tiles(columns);
  const int64_t at_once = pieces_at_once(columns);
  reserve_products(columns, sequences, tokens);
  for (int64_t first = 0; first < pieces; first += at_once) {
    int64_t count = std::min(at_once, pieces - first);
    multiply_gram(gram, first, count, workspace_.data(), stream);
    dim3 grid(static_cast<unsigned>(tiles), kGramTileElements / kThreads);
    launch_kernel(add_products_kernel, {grid, kThreads}, stream, workspace_.data(), count, columns, input.sum.data(),
                  first, gram.pieces(), first_sequence_ + input.sequence_count, input.first_bad.data());
  }
  input.sequence_count += sequences;
  input.token_count += sequences * tokens;
}

template void CudaHessianCollector::add(std::span<const std::string>, const __nv_bfloat16*, int64_t, int64_t, int64_t,
                                        int64_t, cudaStream_t);
template void CudaHessianCollector::add(std::span<const std::string>, const __half*, int64_t, int64_t, int64_t, int64_t,
                                        cudaStream_t);
template void CudaHessianCollector::add(std::span<const std::string>, const float*, int64_t, int64_t, int64_t, int64_t,
                                        cudaStream_t);

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

DeviceArray<double> CudaHessianCollector::take_sum() {
  DeviceScope device(device_);
  check_cuda(cudaDeviceSynchronize());
  if (inputs_.size() != 1) throw Error(ExitCode::kInternal, "the sum of one input, of a collector of several");
  Input input = std::move(inputs_.begin()->second);
  inputs_.clear();
  require_finite(input);
  return std::move(input.sum);
}

std::vector<SharedHessian> CudaHessianCollector::finish_sums() && {
  DeviceScope current(device_);
  check_cuda(cudaDeviceSynchronize());
  std::vector<const Input*> inputs;
  for (const auto& [first_layer, input] : inputs_) inputs.push_back(&input);
  std::vector<SharedHessian> hessians(inputs.size());
  parallel_for(static_cast<int64_t>(inputs.size()), [&](int64_t i) {
    DeviceScope device(device_);
    const Input& input = *inputs[static_cast<size_t>(i)];
    require_finite(input);
    SymmetricMatrix sum(input.columns);
    CudaStream stream;
    download(sum.values(), static_cast<const double*>(input.sum.data()), stream);
    stream.wait();
    hessians[static_cast<size_t>(i)] = {input.layers, {std::move(sum), input.token_count, input.sequence_count}};
  });
  inputs_.clear();
  return hessians;
}

HessianSet CudaHessianCollector::finish() && { return mean_hessians(std::move(*this).finish_sums()); }

void CudaHessianCollector::merge(CudaHessianCollector&& later) {
  DeviceScope device(device_);
  CudaStream stream;
  auto bring = [&]<typename T>(DeviceArray<T>& array) {
    DeviceArray<T> here(array.count(), "Hessians");
    copy_between_devices(here.data(), device_, array.data(), later.device_, array.bytes(), stream);
    stream.wait();
    array = std::move(here);
  };
  if (later.inputs_.size() != inputs_.size())
    throw Error(ExitCode::kInternal, "the parts of a calibration set have different layers");
  for (auto& [first_layer, input] : inputs_) {
    Input& added = later.inputs_.at(first_layer);
    if (added.layers != input.layers || added.columns != input.columns)
      throw Error(ExitCode::kInternal, "layer '" + first_layer + "': the parts of a Hessian have different inputs");
    if (later.device_ != device_) {
      bring(added.sum);
      bring(added.first_bad);
    }
    launch_kernel(add_sums_kernel, {static_cast<unsigned>(divide_up(input.sum.count(), kThreads)), kThreads}, stream,
                  added.sum.data(), added.first_bad.data(), input.sum.count(), input.sum.data(),
                  input.first_bad.data());
    if (later.device_ != device_) {
      stream.wait();
      added.sum = {};  // one at a time is here
    }
    input.sequence_count += added.sequence_count;
    input.token_count += added.token_count;
  }
  stream.wait();
  later.inputs_.clear();
}

}  // namespace thimble
