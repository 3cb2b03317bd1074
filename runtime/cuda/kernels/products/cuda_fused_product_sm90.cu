// cuda_fused_product_sm90.cu: see cuda_fused_product_sm90.cuh; cuda_tile_product_sm90.cuh with two more sinks.
#include "runtime/cuda/kernels/products/cuda_fused_product_sm90.cuh"

#include "runtime/cuda/kernels/cuda_activation.cuh"
#include "runtime/cuda/kernels/products/cuda_chunks_sm90.cuh"

namespace thimble {
namespace {

using tile_product_sm90::kColumns;
constexpr int kChunks = kColumns / 16;  // of a lane
using Stored = Stored8<__nv_bfloat16>;

template <Activation kActivation>
struct StoreActivated {
  const float* bias;
  Bf16View z, y;

  __device__ void operator()(FragmentValues<kColumns>& sums, const ProductTile& at) const {
    for_each_chunk<kColumns>(sums, at, [&](const ChunkSums& chunk, int) {
      Stored before = chunk.rounded();
      if (chunk.at.row >= y.rows || chunk.at.column >= y.columns) return;
      float v[8];
      before.unpack(v);
      if (bias) {
        float added[8];
        Stored8<float>::load(bias + chunk.at.column).unpack(added);
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] += added[i];
        before = Stored::rounded(v);
        before.unpack(v);
      }
      if (z.data) before.store(z.data + chunk.at.row * z.stride + chunk.at.column);
#pragma unroll
      for (float& value : v) value = activated<kActivation>(value);
      Stored::rounded(v).store(y.data + chunk.at.row * y.stride + chunk.at.column);
    });
  }
};

template <Activation kActivation>
struct StoreActivationGradient {
  ConstBf16View z;
  Bf16View dz;

  __device__ void prefetch(const ProductTile& at) const { prefetch_chunks<kColumns>(z, at); }
  __device__ void operator()(FragmentValues<kColumns>& sums, const ProductTile& at) const {
    auto load = [&](int i) {
      const auto [row, column] = chunk_place(at, i);
      const bool exists = i < kChunks && row < z.rows && column < z.columns;
      return exists ? Stored::load(z.data + row * z.stride + column) : Stored{};
    };
    Stored next = load(0);
    for_each_chunk<kColumns>(sums, at, [&](const ChunkSums& chunk, int i) {
      const Stored gradient = chunk.rounded(), by = next;
      next = load(i + 1);
      if (chunk.at.row >= dz.rows || chunk.at.column >= dz.columns) return;
      float v[8], before[8];
      gradient.unpack(v);
      by.unpack(before);
#pragma unroll
      for (int k = 0; k < 8; ++k) v[k] *= activation_slope(kActivation, before[k]);
      Stored::rounded(v).store(dz.data + chunk.at.row * dz.stride + chunk.at.column);
    });
  }
};

template <bool kAlongB, typename Sink>
void launch(const Bf16Factor& a, const Bf16Factor& b, Bf16View out, const Sink& sink, cudaStream_t stream) {
  if (out.count() == 0) return;
  const TileGrid grid{static_cast<int>(a.columns), divide_up(out.rows, tile_product_sm90::kRows),
                      divide_up(out.columns, kColumns)};
  launch_tile_product_sm90<__nv_bfloat16, /*kAlongA=*/true, kAlongB>(
      factor_map_sm90(a.data, a.rows, a.columns, a.stride, /*runs_along_depth=*/true),
      factor_map_sm90(b.data, b.rows, b.columns, b.stride, kAlongB), grid, /*batch=*/1, sink, stream);
}

}  // namespace

void launch_activated_product_sm90(const Bf16Factor& a, const Bf16Factor& b, const float* bias, Activation activation,
                                   Bf16View z, Bf16View y, cudaStream_t stream) {
  with_activation(activation, [&]<Activation kActivation>(ActivationConstant<kActivation>) {
    launch</*kAlongB=*/true>(a, b, y, StoreActivated<kActivation>{bias, z, y}, stream);
  });
}

void launch_activation_gradient_sm90(const Bf16Factor& a, const Bf16Factor& b, Activation activation, ConstBf16View z,
                                     Bf16View dz, cudaStream_t stream) {
  with_activation(activation, [&]<Activation kActivation>(ActivationConstant<kActivation>) {
    launch</*kAlongB=*/false>(a, b, dz, StoreActivationGradient<kActivation>{z, dz}, stream);
  });
}

}  // namespace thimble
