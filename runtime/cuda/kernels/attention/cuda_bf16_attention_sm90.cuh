// cuda_bf16_attention_sm90.cuh: the kernels of cuda_bf16_attention_mma.cuh on Hopper's own units, for heads of
// kSm90HeadWidth. Same operands and contract; has_sm90_kernels() must be true.
#pragma once

#include "runtime/cuda/kernels/attention/cuda_bf16_attention.cuh"

namespace thimble {

// Outputs y with what forward() leaves for backward(); `exclusive`: XSA.
void launch_attention_forward_sm90(const Bf16AttentionOperands& in, int64_t sequences, bool exclusive, Bf16View y,
                                   cudaStream_t stream);
// dq, by queries.
void launch_query_gradient_sm90(const Bf16AttentionOperands& in, int64_t sequences, Bf16View dq, float scale,
                                cudaStream_t stream);
// dk and dv, by keys; dv is added to where `adds_dv`.
void launch_key_gradients_sm90(const Bf16AttentionOperands& in, int64_t sequences, Bf16View dk, Bf16View dv,
                               bool adds_dv, float scale, cudaStream_t stream);

}  // namespace thimble
