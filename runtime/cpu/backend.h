// backend.h: the operations that a forward pass is made of. One implementation per device; the CPU's is the reference.
// P = rows of a batch = sequences x positions per sequence, sequence-major. D = model width.
// Activations lie in memory that the backend allocated (backend_matrix.h); weights, tables of angles and index lists
// lie in host memory, and a backend may keep copies: they must not change, nor move, while it lives. Outputs may alias
// inputs only where a comment says so.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/codes/nvfp4_matrix.h"
#include "runtime/cpu/rotary_table.h"
#include "runtime/ops/token_batch.h"
#include "runtime/tensor/matrix.h"
#include "runtime/tensor/rounding.h"

namespace thimble {

// Keys and values of one layer, all positions so far: row s * capacity + p holds sequence s, position p; (G*d) wide.
struct KeyValueView {
  MatrixView keys, values;
  int64_t capacity = 0;
};

struct AttentionShape {
  int64_t heads = 0;       // H
  int64_t kv_heads = 0;    // G; query head h uses key/value head h / (H / G)
  int64_t head_dim = 0;    // d
  bool exclusive = false;  // XSA: remove from each output its component along the own position's value
  Rounding scores{};       // of q k^T, before 1/sqrt(d)
  Rounding weights{};      // of softmax, before the product with the values
};

// A matrix (N,K) in NVFP4: its values, and rows [first_row, first_row + N) of the codes that stand for them, which must
// not move either.
struct Nvfp4Weight {
  ConstMatrixView values;
  const Nvfp4Codes* codes;
  int64_t first_row;
};

// The two sums of a layer's residual stream.
enum class Branch { kAttention, kMlp };

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;

  // Memory of so many floats for activations, zero, at a multiple of 64 bytes.
  virtual std::shared_ptr<float> allocate(int64_t floats);
  // Returns when everything that was written can be read by the host.
  virtual void finish() {}

  // to = from.
  virtual void copy(ConstMatrixView from, MatrixView to) = 0;
  // out[p] = table[index[p]].
  virtual void gather_rows(ConstMatrixView table, std::span<const int32_t> index, MatrixView out) = 0;
  // y (P,N) = x (P,K) w^T, w (N,K).
  virtual void linear(ConstMatrixView x, ConstMatrixView w, MatrixView y) = 0;
  // The same in NVFP4: x is staged (nvfp4_block.h) with a tensor scale per row, sums are float32.
  virtual void linear_nvfp4(ConstMatrixView x, const Nvfp4Weight& w, MatrixView y) = 0;
  // As linear() where y are the logits.
  virtual void head(ConstMatrixView x, ConstMatrixView w, MatrixView y) { linear(x, w, y); }
  // x += scale * a, a sum of embeddings.
  virtual void add_scaled(ConstMatrixView a, float scale, MatrixView x) = 0;
  // y = rms(x) * c; y may be x. rms(x) = x / sqrt(mean(x^2) + 1.1920929e-7) per row.
  virtual void rms_norm(ConstMatrixView x, float c, MatrixView y) = 0;
  // out[p] = (1 - gate) * x[p] + gate * x[p-1]; a sequence's first row uses its row of `before` (S,D).
  virtual void smear(ConstMatrixView x, ConstMatrixView before, std::span<const float> gate, const BatchShape& batch,
                     MatrixView out) = 0;
  // x = weight * skip + x, or with a gate x = (1 - gate) * (weight * skip) + gate * x.
  virtual void add_skip(ConstMatrixView skip, std::span<const float> weight, std::span<const float> gate,
                        MatrixView x) = 0;
  // u = mix_x * x + mix_x0 * x0; normed = rms(u) * c.
  virtual void mix_and_norm(ConstMatrixView x, ConstMatrixView x0, std::span<const float> mix_x,
                            std::span<const float> mix_x0, float c, MatrixView u, MatrixView normed) = 0;
  // x += scale * a, attention's branch; normed = rms(x) * c.
  virtual void add_and_norm(ConstMatrixView a, std::span<const float> scale, float c, MatrixView x,
                            MatrixView normed) = 0;
  // x += scale * a, the MLP's branch.
  virtual void add(ConstMatrixView a, std::span<const float> scale, MatrixView x) = 0;
  // x += a, a branch without a scale of its own.
  virtual void add_branch(ConstMatrixView a, Branch, MatrixView x) { add_scaled(a, 1.0f, x); }
  // Every row of y += bias.
  virtual void add_bias(std::span<const float> bias, MatrixView y) = 0;
  // y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias per row, the variance over all of it (not n - 1);
  // y may be x (arXiv 1607.06450, equation 4).
  virtual void layer_norm(ConstMatrixView x, std::span<const float> weight, std::span<const float> bias, float epsilon,
                          MatrixView y) = 0;
  // In place, per head of width d: rms, rotation at the row's position, times gain[head] (no gain: 1).
  virtual void norm_and_rotate(MatrixView x, int64_t head_dim, const RotaryTable& rotary, std::span<const float> gain,
                               const BatchShape& batch) = 0;
  // Copies the batch's rows of keys or values to their places in the cache half `cache`.
  virtual void store_rows(ConstMatrixView rows, const BatchShape& batch, int64_t capacity, MatrixView cache) = 0;
  // y (P, H*d) = causal softmax(q k^T / sqrt(d)) v over the cached positions up to each row's own.
  virtual void attention(ConstMatrixView q, const KeyValueView& cache, const AttentionShape& shape,
                         const BatchShape& batch, MatrixView y) = 0;
  // In place: z = leaky_relu(z, 0.5)^2.
  virtual void leaky_relu_squared(MatrixView z) = 0;
  // In place: z = z / 2 * (1 + tanh(sqrt(2 / pi) * (z + 0.044715 z^3))) (arXiv 1606.08415, section 2).
  virtual void gelu(MatrixView z) = 0;
  // In place: x = factor * x.
  virtual void scale(float factor, MatrixView x) = 0;
  // In place: x = cap * tanh(x / cap).
  virtual void softcap(float cap, MatrixView logits) = 0;
  // In place: log softmax of each row.
  virtual void log_softmax(MatrixView logits) = 0;

  // In place: what is left of every element.
  virtual void round(const Rounding& rounding, MatrixView x) = 0;
};

std::unique_ptr<Backend> make_cpu_backend();

}  // namespace thimble
