// cpu_pass.cpp: the operations of network.h forwards: row kernels over chunks of rows, products over tiles, attention
// over (sequence, head, block of queries). Chunk sizes are fixed, so results do not depend on the thread count.
#include "runtime/cpu/cpu_pass.h"

#include <algorithm>
#include <cassert>

#include "runtime/base/parallel.h"
#include "runtime/cpu/cpu_kernels.h"
#include "runtime/cpu/cpu_rows.h"
#include "runtime/cpu/gemm.h"
#include "runtime/cpu/tile_products.h"

namespace thimble {
namespace {

constexpr int64_t kQueryTile = 128;

// Null for a vector that is not there.
const float* data_of(const Weights& weights, VectorId id) {
  return id == kAbsent ? nullptr : weights.vector(id).data();
}

}  // namespace

// Runs the operation of one instruction.
class CpuForward {
 public:
  CpuForward(CpuPass& pass, const Node& node, const Instruction& instruction)
      : pass_(pass), weights_(pass.weights_), node_(node), at_(instruction), y_(pass.view(instruction.output)) {}

  void operator()(const op::Gather& o) const {
    const std::vector<int32_t> rows = looked_up_rows(o.index, pass_.batch_);
    const int64_t first = static_cast<int64_t>(rows.size()) - y_.rows;
    const StoredMatrixView& table = weights_.matrix(o.table);
    for_each_row(y_.rows, y_.cols, [&](int64_t p) {
      table.read_row(rows[static_cast<size_t>(first + p)], y_.row(p));
      for (int64_t c = 0; c < y_.cols; ++c) y_.row(p)[c] *= o.factor;
    });
    pass_.round(Boundary::kEmbedding, y_);
  }

  void operator()(const op::Linear& o) const {
    const ConstMatrixView x = input(0);
    if (pass_.policy_.nvfp4) {
      Matrix staged(x.rows, x.cols);
      stage_rows_nvfp4(x, pass_.policy_.weights, staged);
      multiply_nt(staged, weights_.matrix(o.weight), y_, pass_.policy_.products);
    } else {
      multiply_nt(x, weights_.matrix(o.weight), y_, pass_.policy_.products);
    }
    pass_.round(Boundary::kLinear, y_);
    if (o.bias == kAbsent) return;
    const float* bias = weights_.vector(o.bias).data();
    for_each_row(y_.rows, y_.cols, [&](int64_t p) { kernels_.add_scaled(bias, 1.0f, y_.row(p), y_.cols); });
    pass_.round(Boundary::kLinear, y_);
  }

  void operator()(const op::Add& o) const {
    const MatrixView y = first_input_in_place();
    const ConstMatrixView a = input(1);
    const NumericPolicy& policy = pass_.policy_;
    const float factor = o.sum == Sum::kAttention ? policy.attention_scale : o.sum == Sum::kMlp ? policy.mlp_scale : 1;
    if (o.scale != kAbsent && weights_.vector(o.scale).size() > 1) {
      std::vector<float> scale = weights_.vector(o.scale);
      for (float& value : scale) value *= factor;
      for_each_row(y.rows, y.cols, [&](int64_t p) { kernels_.add(a.row(p), scale.data(), y.row(p), y.cols); });
    } else {
      const float scale = o.scale == kAbsent ? factor : factor * weights_.vector(o.scale)[0];
      for_each_row(y.rows, y.cols, [&](int64_t p) { kernels_.add_scaled(a.row(p), scale, y.row(p), y.cols); });
    }
    pass_.round(o.sum == Sum::kEmbedding ? Boundary::kEmbedding : Boundary::kResidual, y);
  }

  void operator()(const op::RmsNorm& o) const {
    rms_norm_rows(input(0), data_of(weights_, o.gain), o.factor, o.epsilon, y_);
    pass_.round(Boundary::kNorm, y_);
  }

  void operator()(const op::LayerNorm& o) const {
    const ConstMatrixView x = input(0);
    for_each_row(x.rows, x.cols, [&](int64_t p) {
      kernels_.layer_norm(x.row(p), data_of(weights_, o.weight), data_of(weights_, o.bias), o.epsilon, y_.row(p),
                          x.cols);
    });
    pass_.round(Boundary::kNorm, y_);
  }

  void operator()(const op::Heads& o) const {
    const MatrixView y = first_input_in_place();
    const HeadRows heads{o, weights_, o.rotary == kAbsent ? nullptr : &pass_.rotaries_[static_cast<size_t>(o.rotary)]};
    heads.run(y, shape_of(y));
    pass_.round(Boundary::kNorm, y);
  }

  void operator()(const op::Attention& o) const {
    const ConstMatrixView q = input(0);
    const BatchShape queries = shape_of(q), all = pass_.batch_.shape;
    const ConstMatrixView keys = input(1), values = input(2);
    if (CpuCache* cache = pass_.cache_)
      for_each_row(keys.rows, 2 * keys.cols, [&](int64_t p) {
        cache->store(o.cache, p / all.positions, all.position_of(p), keys.row(p), values.row(p));
      });
    attend(o, q, queries, keys, values);
    pass_.round(Boundary::kLinear, y_);
  }

  void operator()(const op::Activate& o) const {
    const MatrixView y = first_input_in_place();
    activate_rows(o.activation, y);
    pass_.round(Boundary::kActivation, y);
  }

  void operator()(const op::Gate& o) const {
    const MatrixView y = first_input_in_place();
    const ConstMatrixView a = input(1);
    activate_rows(o.activation, y);
    for_each_row(y.rows, y.cols, [&](int64_t p) { kernels_.multiply(y.row(p), a.row(p), y.row(p), y.cols); });
    pass_.round(Boundary::kActivation, y);
  }

  void operator()(const op::Mix& o) const {
    const ConstMatrixView x = input(0), a = input(1);
    for_each_row(x.rows, x.cols, [&](int64_t p) {
      kernels_.mix(x.row(p), a.row(p), data_of(weights_, o.first), data_of(weights_, o.second), y_.row(p), x.cols);
    });
    pass_.round(Boundary::kResidual, y_);
  }

  void operator()(const op::Skip& o) const {
    const MatrixView y = first_input_in_place();
    const ConstMatrixView a = input(1);
    const float *weight = data_of(weights_, o.weight), *gate = data_of(weights_, o.gate);
    for_each_row(y.rows, y.cols, [&](int64_t p) {
      if (gate)
        kernels_.gated_skip(a.row(p), weight, gate, y.row(p), y.cols);
      else
        kernels_.add(a.row(p), weight, y.row(p), y.cols);
    });
    pass_.round(Boundary::kResidual, y);
  }

  void operator()(const op::Smear& o) const {
    const ConstMatrixView x = input(0);
    const BatchShape& shape = pass_.batch_.shape;
    const Matrix nothing(shape.sequences, x.cols);
    Matrix* state = pass_.cache_ ? &pass_.cache_->state(o.state) : nullptr;
    const Matrix& before = state ? *state : nothing;
    const int64_t first = x.rows - y_.rows;
    for_each_row(y_.rows, y_.cols, [&](int64_t r) {
      const int64_t p = first + r;
      const float* previous = p % shape.positions == 0 ? before.row(p / shape.positions) : x.row(p - 1);
      kernels_.smear(x.row(p), previous, data_of(weights_, o.gate), y_.row(r), x.cols);
    });
    for (int64_t s = 0; state && s < shape.sequences; ++s)
      std::copy_n(x.row((s + 1) * shape.positions - 1), x.cols, state->row(s));
    pass_.round(Boundary::kResidual, y_);
  }

  void operator()(const op::Columns&) const {}  // a view

 private:
  // The rows of an input that the output's rows need.
  ConstMatrixView input(size_t i) const {
    const ConstMatrixView all = pass_.view(at_.inputs[i]);
    return reads_earlier_rows(node_.operation, i) ? all : all.block_rows(all.rows - y_.rows, y_.rows);
  }

  MatrixView first_input_in_place() const {
    const ConstMatrixView x = input(0);
    if (x.data != y_.data) copy_rows(x, y_);
    return y_;
  }

  // The positions of a view's rows, the last ones of the batch.
  BatchShape shape_of(ConstMatrixView rows) const {
    BatchShape shape = pass_.batch_.shape;
    const int64_t left_out = (shape.rows() - rows.rows) / shape.sequences;
    shape.first_position += left_out;
    shape.positions -= left_out;
    return shape;
  }

  // Keys and values of a window, or of the cache where there is one.
  void attend(const op::Attention& o, ConstMatrixView q, const BatchShape& batch, ConstMatrixView keys,
              ConstMatrixView values) const {
    const int64_t tiles = (batch.positions + kQueryTile - 1) / kQueryTile, d = o.head_dim;
    const int64_t shared = o.heads / o.kv_heads, heads = batch.positions <= kFewQueries ? shared : 1;
    const int64_t groups = o.heads / heads;
    const TileProducts* products = tile_products(pass_.policy_.products);
    const AttentionRoundings roundings = {row_rounding(pass_.policy_.at(Boundary::kScores)),
                                          row_rounding(pass_.policy_.at(Boundary::kSoftmax))};
    parallel_for(batch.sequences * groups * tiles, [&](int64_t task) {
      // Late tiles see the most keys; starting with them balances the threads.
      const int64_t tile = tiles - 1 - task / (batch.sequences * groups);
      const int64_t sequence = task / groups % batch.sequences, head = task % groups * heads;
      const int64_t first = tile * kQueryTile, rows = std::min(kQueryTile, batch.positions - first);
      // Keys that no query of the tile sees are left out.
      const int64_t first_key = first_seen(batch.first_position + first, o.window);
      const int64_t q_row = sequence * batch.positions + first, q_col = head * d, kv_head = head / shared;
      const int64_t first_position = batch.first_position + first - first_key;
      const CpuCache* cache = pass_.cache_;
      auto of_window = [&](StoredMatrixView all) {
        return all.block_rows(sequence * pass_.batch_.shape.positions, pass_.batch_.shape.positions)
            .block_cols(kv_head * d, d);
      };
      const StoredMatrixView k = cache ? cache->keys(o.cache, sequence, kv_head) : of_window(keys);
      const StoredMatrixView v = cache ? cache->values(o.cache, sequence, kv_head) : of_window(values);
      assert(k.is_float32() || rows <= kFewQueries);
      thread_local AlignedVector<float> scores;
      scores.resize(static_cast<size_t>(heads * rows * (first_position + rows)));
      kernels_.attention({q.row(q_row) + q_col, q.stride, k.block_rows(first_key, first_position + rows),
                          v.block_rows(first_key, first_position + rows), rows, first_position, d, o.window, o.scale,
                          o.exclusive, scores.data(), heads, products},
                         y_.row(q_row) + q_col, y_.stride, roundings);
    });
  }

  CpuPass& pass_;
  const Weights& weights_;
  const Node& node_;
  const Instruction& at_;
  MatrixView y_;
  const CpuKernels& kernels_ = cpu_kernels();
};

CpuPass::CpuPass(const Weights& weights, int64_t context_length, const NumericPolicy& policy,
                 const PassOptions& options)
    : weights_(weights),
      network_(*weights.network),
      context_length_(context_length),
      policy_(policy),
      options_(options),
      plan_(plan_pass(network_, options)),
      sums_(network_),
      slots_(plan_.slot_widths.size()) {
  assert(policy.is_exact() || !options.has_backward);
  for (const RotaryRule& rule : network_.rotaries) rotaries_.push_back(make_rotary_table(rule, context_length));
}

MatrixView CpuPass::view(const Place& place) {
  Matrix& slot = slots_[static_cast<size_t>(place.slot)];
  const int64_t first = place.needed_rows_only ? first_needed_ : 0, rows = batch_.shape.rows() - first;
  return {slot.data() + first * place.stride + place.first_column, rows, place.width, place.stride};
}

ConstMatrixView CpuPass::view(const Place& place) const { return const_cast<CpuPass*>(this)->view(place); }

void CpuPass::round(Boundary boundary, MatrixView y) const { round_rows(policy_.at(boundary), y); }

void CpuPass::begin(TokenBatch batch, CpuCache* cache, int64_t first_needed) {
  assert(batch.shape.sequences == 1 || first_needed == 0);
  assert(cache || batch.shape.first_position == 0);
  assert(batch.shape.first_position + batch.shape.positions <= context_length_);
  batch_ = std::move(batch);
  cache_ = cache;
  first_needed_ = first_needed;
  next_node_ = 0;
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i].resize(1, batch_.shape.rows() * plan_.slot_widths[i]);
}

void CpuPass::run(const Instruction& instruction) {
  const Node& node = network_.nodes[instruction.node];
  std::visit(CpuForward(*this, node, instruction), node.operation);
}

void CpuPass::run_to(size_t node) {
  for (; next_node_ < node; ++next_node_) run(plan_.forward[next_node_]);
}

ConstMatrixView CpuPass::value(ValueId value) const { return view(plan_.forward[network_.maker_of(value)].output); }

CpuPass::Pause CpuPass::pause() {
  assert(!cache_ && first_needed_ == 0);
  Pause pause{next_node_, batch_, {}};
  for (const LiveValue& live : live_values(network_, plan_, next_node_)) {
    const ConstMatrixView rows = view(live.place);
    copy_rows(rows, pause.values.emplace_back(live.value, Matrix(rows.rows, rows.cols)).second);
  }
  return pause;
}

void CpuPass::resume(Pause pause) {
  begin(std::move(pause.batch));
  next_node_ = pause.next_node;
  for (const LiveValue& live : live_values(network_, plan_, next_node_))
    for (const auto& [value, rows] : pause.values)
      if (value == live.value) copy_rows(rows, view(live.place));
}

ConstMatrixView CpuPass::run(TokenBatch batch, CpuCache* cache, int64_t first_needed, LinearObserver* observer) {
  begin(std::move(batch), cache, first_needed);
  if (observer) {
    for (const LinearInput& input : network_.linear_inputs()) {
      std::vector<std::string> readers;
      for (MatrixId id : input.readers) readers.push_back(network_.matrix(id).name);
      run_to(input.first_reader);
      observer->on_linear_input(readers, value(input.value));
    }
  }
  run_to(network_.nodes.size());
  const ConstMatrixView hidden = view(plan_.hidden);
  const int64_t rows = batch_.shape.rows() - first_needed;
  return hidden.block_rows(hidden.rows - rows, rows);
}

void CpuPass::logits(ConstMatrixView hidden, MatrixView out, Matrix* product) const {
  multiply_nt(hidden, weights_.matrix(network_.head.weight), out, policy_.products);
  round(Boundary::kLogits, out);
  if (policy_.logits_scale != 1)
    for_each_row(out.rows, out.cols, [&](int64_t p) {
      for (int64_t c = 0; c < out.cols; ++c) out.row(p)[c] *= policy_.logits_scale;
    });
  if (product) copy_rows(out, *product);
  const float cap = network_.head.softcap;
  if (cap == 0) return;
  const CpuKernels& kernels = cpu_kernels();
  for_each_row(out.rows, out.cols, [&](int64_t p) { kernels.softcap(cap, out.row(p), out.cols); });
  round(Boundary::kCapped, out);
}

}  // namespace thimble
