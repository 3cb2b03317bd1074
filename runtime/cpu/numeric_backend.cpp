// numeric_backend.cpp: which boundary each operation writes at. An operation that writes twice is done in two steps, so
// that its second half reads what was rounded.
#include "runtime/cpu/numeric_backend.h"

#include <cassert>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

namespace thimble {
namespace {

class NumericBackend final : public Backend {
 public:
  NumericBackend(std::unique_ptr<Backend> exact, const NumericPolicy& policy, Nvfp4Weights weights)
      : exact_(std::move(exact)), policy_(policy), nvfp4_(std::move(weights)) {}

  std::string name() const override { return exact_->name(); }
  std::shared_ptr<float> allocate(int64_t floats) override { return exact_->allocate(floats); }
  void finish() override { exact_->finish(); }

  void copy(ConstMatrixView from, MatrixView to) override { exact_->copy(from, to); }
  void store_rows(ConstMatrixView rows, const BatchShape& batch, int64_t capacity, MatrixView cache) override {
    exact_->store_rows(rows, batch, capacity, cache);
  }
  void log_softmax(MatrixView logits) override { exact_->log_softmax(logits); }
  void round(const Rounding& rounding, MatrixView x) override { exact_->round(rounding, x); }
  void linear_nvfp4(ConstMatrixView x, const Nvfp4Weight& w, MatrixView y) override { exact_->linear_nvfp4(x, w, y); }

  void gather_rows(ConstMatrixView table, std::span<const int32_t> index, MatrixView out) override {
    exact_->gather_rows(table, index, out);
    write(Boundary::kEmbedding, out);
  }
  void add_scaled(ConstMatrixView a, float scale, MatrixView x) override {
    exact_->add_scaled(a, scale, x);
    write(Boundary::kEmbedding, x);
  }

  void linear(ConstMatrixView x, ConstMatrixView w, MatrixView y) override {
    if (policy_.nvfp4)
      exact_->linear_nvfp4(x, nvfp4_of(w), y);
    else
      exact_->linear(x, w, y);
    write(Boundary::kLinear, y);
  }
  void add_bias(std::span<const float> bias, MatrixView y) override {
    exact_->add_bias(bias, y);
    write(Boundary::kLinear, y);
  }
  void head(ConstMatrixView x, ConstMatrixView w, MatrixView y) override {
    exact_->head(x, w, y);
    write(Boundary::kLogits, y);
    if (policy_.logits_scale != 1) exact_->scale(policy_.logits_scale, y);
  }
  void scale(float factor, MatrixView x) override { exact_->scale(factor, x); }
  void softcap(float cap, MatrixView logits) override {
    exact_->softcap(cap, logits);
    write(Boundary::kCapped, logits);
  }

  void rms_norm(ConstMatrixView x, float c, MatrixView y) override {
    exact_->rms_norm(x, c, y);
    write(Boundary::kNorm, y);
  }
  void layer_norm(ConstMatrixView x, std::span<const float> weight, std::span<const float> bias, float epsilon,
                  MatrixView y) override {
    exact_->layer_norm(x, weight, bias, epsilon, y);
    write(Boundary::kNorm, y);
  }
  void norm_and_rotate(MatrixView x, int64_t head_dim, const RotaryTable& rotary, std::span<const float> gain,
                       const BatchShape& batch) override {
    exact_->norm_and_rotate(x, head_dim, rotary, gain, batch);
    write(Boundary::kNorm, x);
  }

  void smear(ConstMatrixView x, ConstMatrixView before, std::span<const float> gate, const BatchShape& batch,
             MatrixView out) override {
    exact_->smear(x, before, gate, batch, out);
    write(Boundary::kResidual, out);
  }
  void add_skip(ConstMatrixView skip, std::span<const float> weight, std::span<const float> gate,
                MatrixView x) override {
    exact_->add_skip(skip, weight, gate, x);
    write(Boundary::kResidual, x);
  }
  void mix_and_norm(ConstMatrixView x, ConstMatrixView x0, std::span<const float> mix_x, std::span<const float> mix_x0,
                    float c, MatrixView u, MatrixView normed) override {
    exact_->mix_and_norm(x, x0, mix_x, mix_x0, c, u, normed);
    write(Boundary::kResidual, u);
    rms_norm(u, c, normed);
  }
  void add_and_norm(ConstMatrixView a, std::span<const float> scale, float c, MatrixView x,
                    MatrixView normed) override {
    exact_->add(a, scaled(scale, policy_.attention_scale), x);
    write(Boundary::kResidual, x);
    rms_norm(x, c, normed);
  }
  void add(ConstMatrixView a, std::span<const float> scale, MatrixView x) override {
    exact_->add(a, scaled(scale, policy_.mlp_scale), x);
    write(Boundary::kResidual, x);
  }
  void add_branch(ConstMatrixView a, Branch branch, MatrixView x) override {
    exact_->add_scaled(a, branch == Branch::kAttention ? policy_.attention_scale : policy_.mlp_scale, x);
    write(Boundary::kResidual, x);
  }

  void attention(ConstMatrixView q, const KeyValueView& cache, const AttentionShape& shape, const BatchShape& batch,
                 MatrixView y) override {
    AttentionShape rounding = shape;
    rounding.scores = policy_.at(Boundary::kScores);
    rounding.weights = policy_.at(Boundary::kSoftmax);
    exact_->attention(q, cache, rounding, batch, y);
    write(Boundary::kLinear, y);
  }

  void leaky_relu_squared(MatrixView z) override {
    exact_->leaky_relu_squared(z);
    write(Boundary::kActivation, z);
  }
  void gelu(MatrixView z) override {
    exact_->gelu(z);
    write(Boundary::kActivation, z);
  }

 private:
  void write(Boundary boundary, MatrixView y) {
    if (!policy_.at(boundary).is_exact()) exact_->round(policy_.at(boundary), y);
  }

  // `w` may be some rows of a matrix.
  Nvfp4Weight nvfp4_of(ConstMatrixView w) const {
    auto after = nvfp4_.upper_bound(w.data);
    assert(after != nvfp4_.begin());
    const auto& [values, codes] = *std::prev(after);
    const int64_t first_row = (w.data - values) / w.cols;
    assert(static_cast<size_t>((first_row + w.rows) * nvfp4_row_bytes(w.cols)) <= codes->codes.size());
    return {w, codes, first_row};
  }

  // factor * scale, made once: backends may keep copies of vectors by address.
  std::span<const float> scaled(std::span<const float> scale, float factor) {
    if (factor == 1) return scale;
    auto [found, is_new] = scaled_.try_emplace({scale.data(), factor});
    if (is_new)
      for (float value : scale) found->second.push_back(factor * value);
    return found->second;
  }

  std::map<std::pair<const float*, float>, std::vector<float>> scaled_;
  std::unique_ptr<Backend> exact_;
  NumericPolicy policy_;
  Nvfp4Weights nvfp4_;
};

}  // namespace

std::unique_ptr<Backend> make_numeric_backend(std::unique_ptr<Backend> exact, const NumericPolicy& policy,
                                              Nvfp4Weights weights) {
  if (policy.is_exact()) return exact;
  return std::make_unique<NumericBackend>(std::move(exact), policy, std::move(weights));
}

}  // namespace thimble
