// cpu_backend.cpp: the reference Backend: row kernels over chunks of rows, products over tiles, attention over
// (sequence, head, block of queries). Chunk sizes are fixed, so results do not depend on the thread count.
#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/base/parallel.h"
#include "runtime/codes/nvfp4_block.h"
#include "runtime/cpu/backend.h"
#include "runtime/cpu/cpu_kernels.h"
#include "runtime/cpu/gemm.h"
#include "runtime/tensor/row_chunks.h"

namespace thimble {
namespace {

constexpr int64_t kQueryTile = 128;

// The choice of formats is made once per row.
template <Format kValue>
void round_values(Format storage, float* x, int64_t n) {
  auto all = [&](auto round) {
    for (int64_t i = 0; i < n; ++i) x[i] = round(rounded_to(kValue, x[i]));
  };
  switch (storage) {
    case Format::kFp32: return all([](float v) { return v; });
    case Format::kBf16: return all([](float v) { return rounded_to(Format::kBf16, v); });
    default: return all([storage](float v) { return rounded_to(storage, v); });
  }
}

void round_row(const Rounding& r, float* x, int64_t n) {
  switch (r.value) {
    case Format::kFp32: return round_values<Format::kFp32>(r.storage, x, n);
    case Format::kBf16: return round_values<Format::kBf16>(r.storage, x, n);
    case Format::kFp16: return round_values<Format::kFp16>(r.storage, x, n);
    case Format::kQ115: return round_values<Format::kQ115>(r.storage, x, n);
    case Format::kQ131Q115: return round_values<Format::kQ131Q115>(r.storage, x, n);
  }
}

RowRounding row_rounding(const Rounding& r) { return r.is_exact() ? RowRounding{} : RowRounding{&r, round_row}; }

class CpuBackend final : public Backend {
 public:
  std::string name() const override { return std::string("cpu (") + kernels_.name + ")"; }

  void copy(ConstMatrixView from, MatrixView to) override {
    for_each_row(to.rows, to.cols, [&](int64_t p) { std::copy(from.row(p), from.row(p) + to.cols, to.row(p)); });
  }

  void gather_rows(ConstMatrixView table, std::span<const int32_t> index, MatrixView out) override {
    for_each_row(out.rows, out.cols, [&](int64_t p) {
      const float* source = table.row(index[static_cast<size_t>(p)]);
      std::copy(source, source + out.cols, out.row(p));
    });
  }

  void linear(ConstMatrixView x, ConstMatrixView w, MatrixView y) override { multiply_nt(x, w, y); }

  void linear_nvfp4(ConstMatrixView x, const Nvfp4Weight& w, MatrixView y) override {
    staged_.resize(x.rows, x.cols);
    for_each_row(x.rows, x.cols, [&](int64_t p) {
      const float* row = x.row(p);
      const float tensor_scale = nvfp4_tensor_scale(nvfp4_amax(row, x.cols));
      for (int64_t c = 0; c < x.cols; c += kNvfp4Block) {
        const int64_t count = std::min<int64_t>(kNvfp4Block, x.cols - c);
        const float scale = float_from_ue4m3(nvfp4_block_scale(nvfp4_amax(row + c, count), tensor_scale));
        for (int64_t k = c; k < c + count; ++k)
          staged_(p, k) = float_from_e2m1(nvfp4_element(row[k], scale * tensor_scale)) * scale * tensor_scale;
      }
    });
    linear(staged_, w.values, y);
  }

  void add_scaled(ConstMatrixView a, float scale, MatrixView x) override {
    for_each_row(x.rows, x.cols, [&](int64_t p) { kernels_.add_scaled(a.row(p), scale, x.row(p), x.cols); });
  }

  void rms_norm(ConstMatrixView x, float c, MatrixView y) override {
    for_each_row(x.rows, x.cols,
                 [&](int64_t p) { kernels_.rms_norm(x.row(p), nullptr, c, 1.1920929e-7f, y.row(p), x.cols); });
  }

  void smear(ConstMatrixView x, ConstMatrixView before, std::span<const float> gate, const BatchShape& batch,
             MatrixView out) override {
    for_each_row(x.rows, x.cols, [&](int64_t p) {
      const float* previous = p % batch.positions == 0 ? before.row(p / batch.positions) : x.row(p - 1);
      kernels_.smear(x.row(p), previous, gate.data(), out.row(p), x.cols);
    });
  }

  void add_skip(ConstMatrixView skip, std::span<const float> weight, std::span<const float> gate,
                MatrixView x) override {
    const float* gate_data = gate.empty() ? nullptr : gate.data();
    for_each_row(x.rows, x.cols,
                 [&](int64_t p) { kernels_.add_skip(skip.row(p), weight.data(), gate_data, x.row(p), x.cols); });
  }

  void mix_and_norm(ConstMatrixView x, ConstMatrixView x0, std::span<const float> mix_x, std::span<const float> mix_x0,
                    float c, MatrixView u, MatrixView normed) override {
    for_each_row(x.rows, x.cols, [&](int64_t p) {
      kernels_.mix_and_norm(x.row(p), x0.row(p), mix_x.data(), mix_x0.data(), c, u.row(p), normed.row(p), x.cols);
    });
  }

  void add_and_norm(ConstMatrixView a, std::span<const float> scale, float c, MatrixView x,
                    MatrixView normed) override {
    for_each_row(x.rows, x.cols,
                 [&](int64_t p) { kernels_.add_and_norm(a.row(p), scale.data(), c, x.row(p), normed.row(p), x.cols); });
  }

  void add(ConstMatrixView a, std::span<const float> scale, MatrixView x) override {
    for_each_row(x.rows, x.cols, [&](int64_t p) { kernels_.add(a.row(p), scale.data(), x.row(p), x.cols); });
  }

  void add_bias(std::span<const float> bias, MatrixView y) override {
    for_each_row(y.rows, y.cols, [&](int64_t p) { kernels_.add_scaled(bias.data(), 1.0f, y.row(p), y.cols); });
  }

  void layer_norm(ConstMatrixView x, std::span<const float> weight, std::span<const float> bias, float epsilon,
                  MatrixView y) override {
    for_each_row(x.rows, x.cols, [&](int64_t p) {
      kernels_.layer_norm(x.row(p), weight.data(), bias.data(), epsilon, y.row(p), x.cols);
    });
  }

  void norm_and_rotate(MatrixView x, int64_t head_dim, const RotaryTable& rotary, std::span<const float> gain,
                       const BatchShape& batch) override {
    int64_t heads = x.cols / head_dim, half = rotary.cosine.cols();
    for_each_row(x.rows, x.cols, [&](int64_t p) {
      int64_t position = batch.first_position + p % batch.positions;
      for (int64_t h = 0; h < heads; ++h)
        kernels_.norm_and_rotate(x.row(p) + h * head_dim, head_dim, rotary.cosine.row(position),
                                 rotary.sine.row(position), half, gain.empty() ? 1.0f : gain[static_cast<size_t>(h)]);
    });
  }

  void store_rows(ConstMatrixView rows, const BatchShape& batch, int64_t capacity, MatrixView cache) override {
    for_each_row(rows.rows, rows.cols, [&](int64_t p) {
      int64_t slot = p / batch.positions * capacity + batch.first_position + p % batch.positions;
      std::copy(rows.row(p), rows.row(p) + rows.cols, cache.row(slot));
    });
  }

  void attention(ConstMatrixView q, const KeyValueView& cache, const AttentionShape& shape, const BatchShape& batch,
                 MatrixView y) override {
    int64_t tiles = (batch.positions + kQueryTile - 1) / kQueryTile;
    parallel_for(batch.sequences * shape.heads * tiles, [&](int64_t task) {
      // Late tiles see the most keys; starting with them balances the threads.
      int64_t tile = tiles - 1 - task / (batch.sequences * shape.heads);
      int64_t sequence = task / shape.heads % batch.sequences, head = task % shape.heads;
      int64_t first = tile * kQueryTile, rows = std::min(kQueryTile, batch.positions - first);
      int64_t q_row = sequence * batch.positions + first, kv_row = sequence * cache.capacity;
      int64_t q_col = head * shape.head_dim, kv_col = head / (shape.heads / shape.kv_heads) * shape.head_dim;
      thread_local AlignedVector<float> scores;
      int64_t first_position = batch.first_position + first;
      scores.resize(static_cast<size_t>(rows * (first_position + rows)));
      kernels_.attention({q.row(q_row) + q_col, cache.keys.row(kv_row) + kv_col, cache.values.row(kv_row) + kv_col,
                          y.row(q_row) + q_col, q.stride, cache.keys.stride, cache.values.stride, y.stride, rows,
                          first_position, shape.head_dim, 1.0f / std::sqrt(static_cast<float>(shape.head_dim)),
                          shape.exclusive, scores.data(), row_rounding(shape.scores), row_rounding(shape.weights)});
    });
  }

  void leaky_relu_squared(MatrixView z) override {
    for_each_row(z.rows, z.cols, [&](int64_t p) { kernels_.leaky_relu_squared(z.row(p), z.cols); });
  }

  void gelu(MatrixView z) override {
    for_each_row(z.rows, z.cols, [&](int64_t p) { kernels_.gelu(z.row(p), z.cols); });
  }

  void scale(float factor, MatrixView x) override {
    for_each_row(x.rows, x.cols, [&](int64_t p) {
      for (int64_t c = 0; c < x.cols; ++c) x.row(p)[c] *= factor;
    });
  }

  void softcap(float cap, MatrixView logits) override {
    for_each_row(logits.rows, logits.cols, [&](int64_t p) { kernels_.softcap(cap, logits.row(p), logits.cols); });
  }

  void log_softmax(MatrixView logits) override {
    for_each_row(logits.rows, logits.cols, [&](int64_t p) { kernels_.log_softmax(logits.row(p), logits.cols); });
  }

  void round(const Rounding& rounding, MatrixView x) override {
    if (rounding.is_exact()) return;
    for_each_row(x.rows, x.cols, [&](int64_t p) { round_row(rounding, x.row(p), x.cols); });
  }

 private:
  const CpuKernels& kernels_ = cpu_kernels();
  Matrix staged_;  // the values of an input in NVFP4
};

}  // namespace

std::shared_ptr<float> Backend::allocate(int64_t floats) {
  auto memory = std::make_shared<AlignedVector<float>>(static_cast<size_t>(floats));
  return {memory, memory->data()};
}

std::unique_ptr<Backend> make_cpu_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace thimble
