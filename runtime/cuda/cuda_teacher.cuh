// cuda_teacher.cuh: what a divergence pass on a CUDA device asks of the original: its predictions, of which the inputs
// of the head are kept and the logits made again.
#pragma once

#include <algorithm>

#include "runtime/cuda/cuda_gradient_pass.cuh"
#include "runtime/cuda/kernels/cuda_row_kernel.cuh"
#include "runtime/ops/divergence_pass.h"
#include "runtime/ops/logit_pieces.h"

namespace thimble {

__device__ inline float largest_of_row(const float* x, int64_t columns, int lane) {
  float peak = -INFINITY;
  for (int64_t c = lane; c < columns; c += 32) peak = fmaxf(peak, x[c]);
  return max_over_lanes<32>(peak);
}

// A row's terms of TemperatureSlope: E_p[l], Var_p[l], l_y.
struct FindTemperatureSlopes {
  ConstCudaView logits;
  const Token* next;
  float inverse_temperature;
  float3* terms;

  __device__ void operator()(int64_t row, int lane) const {
    const float* l = logits.data + row * logits.stride;
    const float peak = largest_of_row(l, logits.columns, lane);
    auto weight = [&](int64_t c) { return expf((l[c] - peak) * inverse_temperature); };
    const float sum = sum_over_row(logits.columns, lane, weight);
    const float mean =
        peak + sum_over_row(logits.columns, lane, [&](int64_t c) { return weight(c) * (l[c] - peak); }) / sum;
    const float variance =
        sum_over_row(logits.columns, lane, [&](int64_t c) { return weight(c) * ((l[c] - mean) * (l[c] - mean)); }) /
        sum;
    if (lane == 0) terms[row] = {mean, variance, l[next[row]]};
  }
};

// Logits become those of (1 - share) softmax(logits) + share onehot(next token).
struct MixData {
  CudaView logits;
  const Token* next;
  float share;

  __device__ void operator()(int64_t row, int lane) const {
    float* z = logits.data + row * logits.stride;
    const float peak = largest_of_row(z, logits.columns, lane);
    const float sum = sum_over_row(logits.columns, lane, [&](int64_t c) { return expf(z[c] - peak); });
    const float shift = log1pf(-share) - logf(sum) - peak;
    for (int64_t c = lane; c < logits.columns; c += 32) {
      const float mixed = z[c] + shift;
      z[c] = c == next[row] ? logf(expf(mixed) + share) : mixed;
    }
  }
};

// The head of the original, its inputs after all positions of some sequences, and room for a piece of the logits that
// they make.
template <typename T>
struct CudaTeacher {
  // Without values yet. `weights`, of the same network, may go afterwards.
  CudaTeacher(const Network& of, const CudaNetworkWeights<T>& weights, int64_t sequences, int64_t positions,
              int64_t batch)
      : network(of),
        head(weights.matrix(network.head.weight).rows, weights.matrix(network.head.weight).columns),
        hidden(sequences * positions * head.columns, "the original's head"),
        logits(std::min(batch * positions, logit_rows(network.vocabulary())) * network.vocabulary(), "logits") {}

  // Room for so many rows; values are lost when it grows.
  void reserve(int64_t rows) { hidden.reserve(rows * head.columns, "the original's head"); }
  int64_t width() const { return network.matrix(network.head.weight).columns; }
  // The head's input at rows [first_row, first_row + rows) of the sequences.
  BasicCudaView<T> rows(int64_t first_row, int64_t rows) const {
    return {hidden.data() + first_row * head.columns, rows, width(), head.columns};
  }
  void copy_head(const CudaMatrix<T>& from, cudaStream_t stream) {
    check_cuda(
        cudaMemcpyAsync(head.data.data(), from.data.data(), head.data.bytes(), cudaMemcpyDeviceToDevice, stream));
  }
  void copy_rows(BasicCudaView<const T> from, int64_t first_row, cudaStream_t stream) {
    const BasicCudaView<T> to = rows(first_row, from.rows);
    check_cuda(cudaMemcpy2DAsync(to.data, static_cast<size_t>(to.stride) * sizeof(T), from.data,
                                 static_cast<size_t>(from.stride) * sizeof(T),
                                 static_cast<size_t>(from.columns) * sizeof(T), static_cast<size_t>(from.rows),
                                 cudaMemcpyDeviceToDevice, stream));
  }
  // Softcapped logits (count, V) at rows of the sequences, until the next call.
  CudaView logits_of(int64_t first_row, int64_t count, cudaStream_t stream) {
    const CudaView out{logits.data(), count, network.vocabulary()};
    launch_logits<T>(rows(first_row, count), head, network.head.softcap, out, stream);
    return out;
  }
  // Of the batch whose first row is that one of the sequences, as the options have them. `next`: what follows its rows,
  // in device memory, where that counts.
  CudaTargetRows targets(int64_t batch_row, const Token* next, const DivergenceOptions& options) {
    return [this, batch_row, next, share = options.data_share, temperature = options.temperature](
               int64_t first_row, int64_t count, cudaStream_t stream) {
      const CudaView out = logits_of(batch_row + first_row, count, stream);
      CudaGradientRows<float>(stream).scale(out, nullptr, static_cast<float>(1 / temperature), /*adds=*/false, out);
      if (share > 0) launch_rows(count, MixData{out, next + first_row, static_cast<float>(share)}, stream);
      return CudaTargets::teacher(out.data);
    };
  }

  const Network& network;
  CudaMatrix<T> head;
  DeviceArray<T> hidden;  // (sequences, positions, stride of the head)
  DeviceArray<float> logits;
};

}  // namespace thimble
