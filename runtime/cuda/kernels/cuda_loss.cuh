// cuda_loss.cuh: losses at the output head and their gradients, from float32 to T = float or __nv_bfloat16. z are the
// logits before the softcap, l = cap * tanh(z / cap), or z where the cap is 0; p = softmax(l).
#pragma once

#include "runtime/cuda/kernels/cuda_float_matrix.cuh"

namespace thimble {

// What the model should have predicted at each row; in device memory. Exactly one of the two is given.
struct CudaTargets {
  // Next tokens (rows): the loss is sum_p -ln p[p][token], in nats.
  static CudaTargets next_tokens(const int32_t* tokens) { return {tokens, nullptr}; }
  // Softcapped logits (rows, V) of a teacher: the loss is sum_p KL(softmax(teacher) || p), in nats.
  static CudaTargets teacher(const float* logits) { return {nullptr, logits}; }

  const int32_t* tokens = nullptr;
  const float* logits = nullptr;
};

// dz = (p - onehot(token)) or (p - softmax(teacher)), times 1 - (l / cap)^2; losses[row] of each row. dz may be z. Rows
// of z follow each other without gaps.
template <typename T>
void launch_loss_backward(ConstCudaView z, float cap, const CudaTargets& targets, BasicCudaView<T> dz, float* losses,
                          cudaStream_t stream);

}  // namespace thimble
