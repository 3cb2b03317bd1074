// cuda_rows.cuh: the row-wise kernels around the products: embedding, compaction, loss, sampling. Host interface.
#pragma once

#include "runtime/cuda/kernels/cuda_gemm.cuh"
#include "runtime/ops/network.h"
#include "runtime/ops/token_sequences.h"
#include "runtime/tensor/rounding.h"

namespace thimble {

// Tokens of sequence s, position p: tokens[s * stride + p]. Positions before 0 do not exist.
struct CudaTokens {
  const Token* data = nullptr;
  int64_t stride = 0;
};

// What a pass starts from: x0 = smear(rms(token embedding + pair embedding)), u = first * x0 + second * x0, and the
// squares of u.
template <typename T>
struct EmbedOperands {
  const T *token_table, *pair_table;  // (V, width), (buckets, width); pair_table may be null
  int width, buckets;
  float inverse_width, epsilon;              // of the norm: 1 / D
  const float *smear_gate, *first, *second;  // (width); smear_gate may be null
  T *x0, *u;                                 // (rows, width)
  RowSquares squares;
};

// Of `rows` rows; of the distinct ones where rows are shared.
template <typename T>
void launch_embed(const EmbedOperands<T>& operands, const CudaTokens& tokens, const RowPositions& positions,
                  const SharedRows& shared, int64_t rows, cudaStream_t stream);

// What the first layer's attention starts from, for the distinct rows: the stream, and all heads before their rotation.
template <typename T>
struct SharedProjections {
  SharedRows rows;
  const T* u;          // (distinct rows, width)
  const float* heads;  // (distinct rows, (H + 2G) * head_width)
  int width, query_heads, kv_heads, head_width;
  const float2* rotary;  // see cuda_rotary.cuh
  int half;
};
// Gives every row of the windows its own: u (rows, width), query (rows, H * head_width), and the cache's keys and
// values, with queries and keys rotated by the row's position.
template <typename T>
void launch_spread(const SharedProjections<T>& shared, T* u, T* query, T* keys, int64_t capacity, cudaStream_t stream);

// out row s * needed + i = in row s * positions + positions - needed + i, with its squares.
template <typename T>
void launch_take_last_rows(const T* in, const RowSquares& in_squares, int sequences, int positions, int needed,
                           int width, T* out, const RowSquares& out_squares, cudaStream_t stream);

// Columns of a row that is `heads` heads, `padded` elements apart.
struct HeadColumns {
  int heads = 1, head = 0, padded = 0;

  __host__ __device__ int count() const { return heads * head; }
  __host__ __device__ int place(int column) const {
    return heads == 1 ? column : column / head * padded + column % head;
  }
};

// What a linear layer reads, without the heads' padding: row r of out = norm(r) * gain * row r of in; `gain`, by
// columns, may be null: 1. Zeros follow up to out_stride.
template <typename T>
void launch_linear_input(const T* in, int64_t in_stride, int64_t rows, const HeadColumns& columns, const RowNorm& norm,
                         const float* gain, T* out, int64_t out_stride, cudaStream_t stream);

// The same where it lies, in NVFP4: norm(r) * row r of in staged with a tensor scale per row (nvfp4.h), and
// rounded to T. Rows of both are `stride` apart, a multiple of 8, and those of out aligned; out may be in.
template <typename T>
void launch_stage_nvfp4(const T* in, int64_t stride, int64_t rows, const HeadColumns& columns, const RowNorm& norm,
                        T* out, cudaStream_t stream);

// out (rows, `stride` elements apart) = rows of a table (., table_stride), `columns` of each, rounded; zeros up to
// `padded`.
template <typename T>
struct GatherOperands {
  const T* table;
  int64_t table_stride;
  RowIndex index;
  float factor;
  int64_t columns, padded;
  T* out;
  int64_t stride;
  Rounding rounding;
};
template <typename T>
void launch_gather(const GatherOperands<T>& operands, const CudaTokens& tokens, const RowPositions& positions,
                   int64_t rows, cudaStream_t stream);

// Puts the column tiles of LossEpilogue together: log_sums[row] = ln sum exp(logits), and where targets are given
// nll[row] = log_sum - target logit. Either output may be null.
void launch_finish_loss(const float2* parts, int tiles, int64_t rows, const float* target_logits, float* log_sums,
                        float* nll, cudaStream_t stream);

// logits[row][v] -= log_sums[row].
void launch_subtract_rows(float* logits, int64_t rows, int columns, int64_t stride, const float* log_sums,
                          cudaStream_t stream);

// Draws each sequence's next token as sample_token() (generator.h) does, into tokens at position *position + offset + 1
// where that is negative. Sequence s is random stream first_stream + s; the draw's index is the new position less
// first_position. A row whose logits are not finite sets *failed to 1. Logits of what is never drawn may be
// overwritten.
struct SampleRequest {
  float* logits = nullptr;  // (sequences, stride)
  int64_t stride = 0;
  int vocabulary = 0, sequences = 0;
  double temperature = 0;
  uint64_t seed = 0, first_stream = 0;
  int first_position = 0;
  Token* tokens = nullptr;
  int64_t token_stride = 0;
  const int* position = nullptr;
  int offset = 0;
  int* failed = nullptr;
  const Token* never_drawn = nullptr;
  int never_drawn_count = 0;
};
void launch_sample(const SampleRequest& request, cudaStream_t stream);

// The same, and of sequence s row s of what the next pass starts from, at the position that is drawn.
template <typename T>
void launch_sample_and_embed(const SampleRequest& request, const EmbedOperands<T>& embed, cudaStream_t stream);

// *position += steps.
void launch_advance(int* position, int steps, cudaStream_t stream);

}  // namespace thimble
