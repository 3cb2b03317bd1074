// cpu_backward.cpp: the transposes of the operations of network.h, each at the inputs that it had, and the sums of
// vector_sums.h. d<x> is the gradient of the loss by x. Sums over rows are in float64, first row first.
#include <algorithm>
#include <array>
#include <cassert>

#include "runtime/base/parallel.h"
#include "runtime/cpu/cpu_gradient_kernels.h"
#include "runtime/cpu/cpu_pass.h"
#include "runtime/cpu/cpu_rows.h"
#include "runtime/cpu/gemm.h"
#include "runtime/cpu/gradient_ops.h"

namespace thimble {
// Runs the transpose of one instruction's operation.
class CpuBackward {
 public:
  CpuBackward(CpuPass& pass, const Instruction& instruction, GradientObserver& observer, std::vector<double>* sums)
      : pass_(pass),
        weights_(pass.weights_),
        at_(instruction),
        observer_(observer),
        sums_(sums),
        dy_(pass.view(instruction.output_gradient)) {}

  void operator()(const op::Gather& o) const {
    const std::string& table = pass_.network_.matrix(o.table).name;
    if (o.factor != 1)  // over the gradient of its output, which nobody reads after it
      for_each_row(dy_.rows, dy_.cols, [&](int64_t p) {
        for (int64_t c = 0; c < dy_.cols; ++c) dy_.row(p)[c] *= o.factor;
      });
    observer_.on_lookup_gradient(table, looked_up_rows(o.index, pass_.batch_), dy_);
  }

  void operator()(const op::Linear& o) const {
    ConstMatrixView y = at_.output ? pass_.view(at_.output) : MatrixView();
    Matrix product;  // what the matrix gave, before its bias
    if (at_.output && o.bias != kAbsent) {
      product.resize(y.rows, y.cols);
      copy_rows(y, product);
      const float* bias = weights_.vector(o.bias).data();
      for_each_row(y.rows, y.cols, [&](int64_t p) { kernels_.add_scaled(bias, -1.0f, product.row(p), y.cols); });
      y = product;
    }
    const std::string& name = pass_.network_.matrix(o.weight).name;
    observer_.on_output_gradient(name, 0, dy_, y);
    if (at_.inputs[0]) observer_.on_linear_gradient(name, dy_, input(0));
    add_sums(0, ones());
    if (!has_gradient(0)) return;
    multiply_nn(dy_, weights_.matrix(o.weight), gradient(0), at_.input_gradients[0].adds, pass_.policy_.products);
  }

  // y = x + scale * a.
  void operator()(const op::Add& o) const {
    const bool is_vector = o.scale != kAbsent && weights_.vector(o.scale).size() > 1;
    if (has_sums(0)) add_sums(0, input(1));
    write(1, [&](int64_t p, float* dx) {
      const float* dy = dy_.row(p);
      const float factor = o.scale == kAbsent ? 1.0f : weights_.vector(o.scale)[0];
      const float* scale = is_vector ? weights_.vector(o.scale).data() : nullptr;
      for (int64_t c = 0; c < dy_.cols; ++c) dx[c] = (scale ? scale[c] : factor) * dy[c];
    });
    pass_through();
  }

  void operator()(const op::RmsNorm& o) const {
    const ConstMatrixView x = input(0);
    if (has_sums(0)) {
      Matrix normed(x.rows, x.cols);
      rms_norm_rows(x, nullptr, o.factor, o.epsilon, normed);
      add_sums(0, normed);
    }
    const float* gain = o.gain == kAbsent ? nullptr : weights_.vector(o.gain).data();
    write(0, [&](int64_t p, float* dx) {
      gradient_kernels_.rms_norm_backward(x.row(p), gain, o.factor, o.epsilon, dy_.row(p), dx, x.cols);
    });
  }

  void operator()(const op::LayerNorm& o) const {
    const ConstMatrixView x = input(0);
    if (has_sums(0)) {
      const std::vector<float> zeros(static_cast<size_t>(x.cols));
      Matrix normed(x.rows, x.cols);
      for_each_row(x.rows, x.cols, [&](int64_t p) {
        kernels_.layer_norm(x.row(p), ones_.data(), zeros.data(), o.epsilon, normed.row(p), x.cols);
      });
      add_sums(0, normed);
      add_sums(1, ones());
    }
    const float* weight = weights_.vector(o.weight).data();
    write(0, [&](int64_t p, float* dx) {
      gradient_kernels_.layer_norm_backward(x.row(p), weight, o.epsilon, dy_.row(p), dx, x.cols);
    });
  }

  // y = rotation(head_gain * norm_gain * norm(x)): the rotation's inverse is its transpose.
  void operator()(const op::Heads& o) const {
    const ConstMatrixView x = input(0);
    const HeadRows heads{o, weights_, o.rotary == kAbsent ? nullptr : &pass_.rotaries_[static_cast<size_t>(o.rotary)]};
    const int64_t d = o.head_dim;
    if (has_sums(0)) {
      Matrix normed(x.rows, x.cols), before(x.rows, x.cols);  // norm(x); the gradient before the rotation
      for_each_row(x.rows, x.cols, [&](int64_t p) {
        std::copy_n(dy_.row(p), x.cols, before.row(p));
        std::copy_n(x.row(p), x.cols, normed.row(p));
        for (int64_t h = 0; h < x.cols / d; ++h) {
          heads.rotate(before.row(p) + h * d, position_of(p), -1);
          float* head = normed.row(p) + h * d;
          if (o.epsilon > 0) kernels_.rms_norm(head, nullptr, 1.0f, o.epsilon, head, d);
        }
      });
      add_sums(0, before, normed);
    }
    write(0, [&](int64_t p, float* dx) {
      std::copy_n(dy_.row(p), x.cols, dx);
      for (int64_t h = 0; h < x.cols / d; ++h) {
        float* dhead = dx + h * d;
        heads.rotate(dhead, position_of(p), -1);
        if (o.epsilon > 0) {
          gradient_kernels_.rms_norm_backward(x.row(p) + h * d, heads.norm_gain(), heads.head_gain(h), o.epsilon, dhead,
                                              dhead, d);
        } else {
          for (int64_t c = 0; c < d; ++c) dhead[c] *= heads.head_gain(h);
        }
      }
    });
  }

  void operator()(const op::Attention& o) const {
    std::array<Matrix, 3> sums;  // where others read an input too
    std::array<MatrixView, 3> to;
    for (size_t i = 0; i < 3; ++i) {
      to[i] = gradient(i);
      if (!at_.input_gradients[i].adds) continue;
      sums[i].resize(to[i].rows, to[i].cols);
      to[i] = sums[i];
    }
    attention_backward(input(0), input(1), input(2), o, dy_, to[0], to[1], to[2], pass_.policy_.products);
    for (size_t i = 3; i-- > 0;)
      if (at_.input_gradients[i].adds)
        write(i, [&](int64_t p, float* dx) { std::copy_n(to[i].row(p), to[i].cols, dx); });
  }

  void operator()(const op::Activate& o) const {
    const ConstMatrixView x = input(0);
    write(0, [&](int64_t p, float* dx) {
      gradient_kernels_.activation_backward(o.activation, x.row(p), dy_.row(p), dx, x.cols);
    });
  }

  // y = f(x) * a.
  void operator()(const op::Gate& o) const {
    const ConstMatrixView x = input(0), a = input(1);
    Matrix active(x.rows, x.cols), product(x.rows, x.cols);
    copy_rows(x, active);
    activate_rows(o.activation, active);
    for_each_row(x.rows, x.cols, [&](int64_t p) { kernels_.multiply(dy_.row(p), a.row(p), product.row(p), x.cols); });
    write(1, [&](int64_t p, float* da) { kernels_.multiply(dy_.row(p), active.row(p), da, x.cols); });
    write(0, [&](int64_t p, float* dx) {
      gradient_kernels_.activation_backward(o.activation, x.row(p), product.row(p), dx, x.cols);
    });
  }

  // y = first * x + second * a.
  void operator()(const op::Mix& o) const {
    if (sums_) {
      add_sums(0, input(0));
      add_sums(1, input(1));
    }
    const VectorId factors[] = {o.first, o.second};
    for (size_t i : {size_t{1}, size_t{0}})
      write(i, [&](int64_t p, float* dx) {
        kernels_.multiply(dy_.row(p), weights_.vector(factors[i]).data(), dx, dy_.cols);
      });
  }

  // y = gate * x + (1 - gate) * (weight * a), or x + weight * a.
  void operator()(const op::Skip& o) const {
    const std::vector<float>& weight = weights_.vector(o.weight);
    std::vector<float> gate(weight.size(), 1.0f), factor = weight;
    if (o.gate != kAbsent) {
      gate = weights_.vector(o.gate);
      for (size_t i = 0; i < factor.size(); ++i) factor[i] *= 1.0f - gate[i];
    }
    if (sums_) {
      add_sums(0, input(1));
      if (o.gate != kAbsent) add_sums(1, input(0));
    }
    write(1, [&](int64_t p, float* da) { kernels_.multiply(dy_.row(p), factor.data(), da, dy_.cols); });
    if (o.gate == kAbsent) return pass_through();
    write(0, [&](int64_t p, float* dx) { kernels_.multiply(dy_.row(p), gate.data(), dx, dy_.cols); });
  }

  // y[p] = (1 - gate) * x[p] + gate * x[p-1]: dx[p] = (1 - gate) * dy[p] + gate * dy[p+1].
  void operator()(const op::Smear& o) const {
    const float* gate = weights_.vector(o.gate).data();
    const int64_t positions = pass_.batch_.shape.positions;
    const std::vector<float> nothing(static_cast<size_t>(dy_.cols));
    if (has_sums(0)) {
      const ConstMatrixView x = input(0);
      Matrix direction(x.rows, x.cols);  // in which the gate moves y
      for (int64_t p = 0; p < x.rows; ++p)
        for (int64_t c = 0; c < x.cols; ++c) direction(p, c) = (p % positions == 0 ? 0 : x.row(p - 1)[c]) - x.row(p)[c];
      add_sums(0, direction);
    }
    write(0, [&](int64_t p, float* dx) {
      const float* next = p % positions + 1 < positions ? dy_.row(p + 1) : nothing.data();
      kernels_.smear(dy_.row(p), next, gate, dx, dy_.cols);
    });
  }

  void operator()(const op::Columns&) const {}  // what its readers left lies in place

 private:
  ConstMatrixView input(size_t i) const { return pass_.view(at_.inputs[i]); }
  bool has_gradient(size_t i) const { return static_cast<bool>(at_.input_gradients[i].place); }
  MatrixView gradient(size_t i) const { return pass_.view(at_.input_gradients[i].place); }

  // Where the output's gradient is that of input 0, as it is.
  void pass_through() const {
    const MatrixView dx = gradient(0);
    if (at_.input_gradients[0].adds) {
      for_each_row(dx.rows, dx.cols, [&](int64_t p) { kernels_.add_scaled(dy_.row(p), 1.0f, dx.row(p), dx.cols); });
    } else if (dx.data != dy_.data) {
      copy_rows(dy_, dx);
    }
  }

  // row(p, out) gives row p of the gradient of input i. It may be written over that of the output, row by row.
  template <typename Row>
  void write(size_t i, const Row& row) const {
    const MatrixView dx = gradient(i);
    for_each_row(dx.rows, dx.cols, [&](int64_t p) {
      if (!at_.input_gradients[i].adds) return row(p, dx.row(p));
      thread_local AlignedVector<float> added;
      added.resize(static_cast<size_t>(dx.cols));
      row(p, added.data());
      kernels_.add_scaled(added.data(), 1.0f, dx.row(p), dx.cols);
    });
  }

  int64_t position_of(int64_t row) const { return pass_.batch_.shape.position_of(row); }
  // One, in every row.
  ConstMatrixView ones() const { return {ones_.data(), dy_.rows, dy_.cols, 0}; }
  bool has_sums(int kind) const { return sums_ && pass_.sums_.first(at_.node, kind) >= 0; }
  // Adds sums over rows of dy * `factor`, where anybody asks for them.
  void add_sums(int kind, ConstMatrixView factor) const { add_sums(kind, dy_, factor); }
  void add_sums(int kind, ConstMatrixView dy, ConstMatrixView factor) const {
    if (!has_sums(kind)) return;
    const std::vector<double> dots = column_dots(dy, factor);
    double* to = sums_->data() + pass_.sums_.first(at_.node, kind);
    for (size_t c = 0; c < dots.size(); ++c) to[c] += dots[c];
  }

  CpuPass& pass_;
  const Weights& weights_;
  const Instruction& at_;
  GradientObserver& observer_;
  std::vector<double>* sums_;
  MatrixView dy_;
  std::vector<float> ones_ = std::vector<float>(static_cast<size_t>(dy_.cols), 1.0f);
  const CpuKernels& kernels_ = cpu_kernels();
  const CpuGradientKernels& gradient_kernels_ = cpu_gradient_kernels();
};

void CpuPass::backward_head(int64_t first_row, ConstMatrixView logit_gradient, ConstMatrixView head_output,
                            GradientObserver& observer) {
  assert(next_node_ == network_.nodes.size() && first_needed_ == 0);
  const std::string& name = network_.matrix(network_.head.weight).name;
  observer.on_output_gradient(name, first_row, logit_gradient, head_output);
  if (options_.reads_linear_inputs)
    observer.on_linear_gradient(name, logit_gradient, view(plan_.hidden).block_rows(first_row, logit_gradient.rows));
  multiply_nn(logit_gradient, weights_.matrix(network_.head.weight),
              view(plan_.hidden_gradient).block_rows(first_row, logit_gradient.rows), /*adds=*/false, policy_.products);
}

void CpuPass::backward(GradientObserver& observer, std::vector<double>* sums) {
  assert(next_node_ == network_.nodes.size() && first_needed_ == 0);
  if (sums) sums->resize(static_cast<size_t>(sums_.count()));
  for (const Instruction& instruction : plan_.backward) {
    switch (instruction.kind) {
      case Instruction::Kind::kForward: run(instruction); break;
      case Instruction::Kind::kZero: {
        const MatrixView zero = view(instruction.output_gradient);
        for_each_row(zero.rows, zero.cols, [&](int64_t p) { std::fill_n(zero.row(p), zero.cols, 0.0f); });
        break;
      }
      case Instruction::Kind::kBackward:
        std::visit(CpuBackward(*this, instruction, observer, sums), network_.nodes[instruction.node].operation);
        break;
    }
  }
  next_node_ = 0;
}

}  // namespace thimble
