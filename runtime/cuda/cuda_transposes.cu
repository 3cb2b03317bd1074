// cuda_transposes.cu: the backward pass: cpu_backward.cpp on the device, the same order, the same names.
#include <cassert>

#include "runtime/cuda/cuda_gradient_pass.cuh"

namespace thimble {

// Runs the transpose of one instruction's operation.
class CudaTranspose {
 public:
  CudaTranspose(CudaGradientPass& pass, const Instruction& instruction, CudaGradientObserver& observer,
                CudaVectorSums* vectors)
      : pass_(pass),
        weights_(pass.weights_),
        at_(instruction),
        observer_(observer),
        vectors_(vectors),
        rows_(pass.stream_, &pass.rounds_),
        dy_(pass.view(instruction.output_gradient)) {}

  void operator()(const op::Gather& o) const {
    const std::vector<int32_t> looked_up = looked_up_rows(o.index, pass_.tokens_);
    if (o.factor != 1) rows_.scale(dy_, nullptr, o.factor, /*adds=*/false, dy_);  // nobody reads it after this
    observer_.on_lookup_gradient(pass_.network_.matrix(o.table).name, looked_up, dy_, pass_.batch_, pass_.stream_);
  }

  void operator()(const op::Linear& o) const {
    ConstCudaView y = at_.output ? ConstCudaView(pass_.view(at_.output)) : ConstCudaView();
    if (y.data && o.bias != kAbsent) {  // what the matrix gave, before its bias
      const CudaView product = scratch(0, y.columns);
      rows_.subtract(y, weights_.vector(o.bias), product);
      y = product;
    }
    const std::string& name = pass_.network_.matrix(o.weight).name;
    observer_.on_output_gradient(name, dy_, y, pass_.batch_, pass_.stream_);
    if (at_.inputs[0]) observer_.on_linear_gradient(name, dy_, input(0), pass_.batch_, pass_.stream_);
    add_sums(0, ones());
    if (!at_.input_gradients[0].place) return;
    const CudaView dx = gradient(0);
    pass_.products_.multiply(ProductForm::kNN, ConstCudaView(dy_), weight_view(o.weight), dx, adds(0), /*batch=*/1,
                             pass_.stream_);
  }

  // y = x + scale * a.
  void operator()(const op::Add& o) const {
    if (o.scale != kAbsent) add_sums(0, at_.inputs[1] ? ConstCudaView(input(1)) : ConstCudaView());
    const bool is_vector = o.scale != kAbsent && weights_.vector_size(o.scale) > 1;
    const float factor = o.scale == kAbsent || is_vector ? 1.0f : weights_.scalar(o.scale);
    rows_.scale(dy_, is_vector ? weights_.vector(o.scale) : nullptr, factor, adds(1), gradient(1));
    pass_through();
  }

  void operator()(const op::RmsNorm& o) const {
    if (has_sums(0)) {
      const CudaView normed = scratch(0, dy_.columns);
      CudaNodeRows<float>(pass_.stream_)
          .rms_norm(node_rows(input(0)), nullptr, o.factor, o.epsilon, {}, node_rows(normed));
      add_sums(0, normed);
    }
    rows_.rms_norm(input(0), weights_.vector(o.gain), o.factor, o.epsilon, dy_, adds(0), gradient(0));
  }

  void operator()(const op::LayerNorm& o) const {
    if (has_sums(0)) {
      const CudaView normed = scratch(0, dy_.columns);
      rows_.normalise(input(0), o.epsilon, normed);
      add_sums(0, normed);
      add_sums(1, ones());
    }
    rows_.layer_norm(input(0), weights_.vector(o.weight), o.epsilon, dy_, adds(0), gradient(0));
  }

  // y = rotation(head_gain * norm_gain * norm(x)): the rotation's inverse is its transpose.
  void operator()(const op::Heads& o) const {
    NodeRotation rotation;
    if (o.rotary != kAbsent)
      rotation = {pass_.rotaries_[static_cast<size_t>(o.rotary)].data(),
                  pass_.network_.rotaries[static_cast<size_t>(o.rotary)].dims / 2};
    const int64_t positions = pass_.batch_.positions;
    if (has_sums(0)) {
      const CudaView normed = scratch(0, dy_.columns), before = scratch(1, dy_.columns);
      const RowPositions unused{pass_.zero_.data(), 0, static_cast<int>(positions)};
      CudaNodeRows<float>(pass_.stream_)
          .heads(node_rows(input(0)), o.head_dim, o.epsilon, nullptr, nullptr, {}, unused, {}, node_rows(normed));
      rows_.rotate_back(o.head_dim, rotation, positions, dy_, before);
      pass_.dots_.add(before, normed, pass_.batch_, vectors_->at(at_.node, 0), {}, pass_.stream_);
    }
    rows_.heads(input(0), o.head_dim, o.epsilon, weights_.vector(o.norm_gain), weights_.vector(o.head_gain), rotation,
                positions, dy_, adds(0), gradient(0));
  }

  // Overwrites the gradient of its output.
  void operator()(const op::Attention& o) const {
    CudaView to[3];  // elsewhere where other operations read an input too
    for (size_t i = 0; i < 3; ++i) {
      to[i] = gradient(i);
      if (!adds(i)) continue;
      CudaFloatMatrix& sum = pass_.attention_sums_[i];
      sum.resize(to[i].rows, to[i].columns);
      to[i] = sum;
    }
    const ConstCudaView y = at_.output ? ConstCudaView(pass_.view(at_.output)) : ConstCudaView();
    pass_.attention_.backward(input(0), input(1), input(2), y, o, pass_.batch_, pass_.attention_of_.at(at_.node), dy_,
                              to[0], to[1], to[2], pass_.stream_);
    for (size_t i = 3; i-- > 0;)
      if (adds(i)) rows_.scale(to[i], nullptr, 1, /*adds=*/true, gradient(i));
  }

  void operator()(const op::Activate& o) const { rows_.activate(o.activation, input(0), dy_, adds(0), gradient(0)); }

  // y = f(x) * a.
  void operator()(const op::Gate& o) const {
    rows_.gated(o.activation, input(0), dy_, adds(1), gradient(1));
    rows_.gate(o.activation, input(0), input(1), dy_, adds(0), gradient(0));
  }

  // y = first * x + second * a.
  void operator()(const op::Mix& o) const {
    if (vectors_) {
      add_sums(0, input(0));
      add_sums(1, input(1));
    }
    rows_.scale(dy_, weights_.vector(o.second), 1, adds(1), gradient(1));
    rows_.scale(dy_, weights_.vector(o.first), 1, adds(0), gradient(0));
  }

  // y = gate * x + (1 - gate) * (weight * a), or x + weight * a.
  void operator()(const op::Skip& o) const {
    if (vectors_) {
      add_sums(0, input(1));
      if (o.gate != kAbsent) add_sums(1, input(0));
    }
    const float *weight = weights_.vector(o.weight), *gate = weights_.vector(o.gate);
    if (!gate) {
      rows_.scale(dy_, weight, 1, adds(1), gradient(1));
      return pass_through();
    }
    rows_.scale_ungated(dy_, weight, gate, adds(1), gradient(1));
    rows_.scale(dy_, gate, 1, adds(0), gradient(0));
  }

  // y[p] = (1 - gate) * x[p] + gate * x[p-1]: dx[p] = (1 - gate) * dy[p] + gate * dy[p+1].
  void operator()(const op::Smear& o) const {
    const int64_t positions = pass_.batch_.positions;
    if (has_sums(0)) {
      const CudaView direction = scratch(0, dy_.columns);
      rows_.smear_direction(input(0), positions, direction);
      add_sums(0, direction);
    }
    rows_.smear(dy_, weights_.vector(o.gate), positions, adds(0), gradient(0));
  }

  void operator()(const op::Columns&) const {}  // what its readers left lies in place

 private:
  CudaView input(size_t i) const { return pass_.view(at_.inputs[i]); }
  bool adds(size_t i) const { return at_.input_gradients[i].adds; }
  CudaView gradient(size_t i) const { return pass_.view(at_.input_gradients[i].place); }
  // Where the output's gradient is that of input 0, as it is.
  void pass_through() const { rows_.scale(dy_, nullptr, 1, adds(0), gradient(0)); }
  static NodeRows<float> node_rows(CudaView x) { return {x.data, x.rows, x.columns, x.stride, x.columns}; }

  CudaView scratch(int i, int64_t columns) const { return {pass_.scratch_[i].data(), pass_.batch_.rows(), columns}; }
  // One, in every row.
  ConstCudaView ones() const { return {pass_.ones_.data(), dy_.rows, dy_.columns, 0}; }
  ConstCudaView weight_view(MatrixId id) const {
    const MatrixUse& use = pass_.network_.matrix(id);
    return {weights_.matrix(id).data.data(), use.rows, use.columns, weights_.matrix(id).columns};
  }

  bool has_sums(int kind) const { return vectors_ && vectors_->at(at_.node, kind); }
  // Adds sums over rows of dy * `factor`, where anybody asks for them.
  void add_sums(int kind, ConstCudaView factor) const {
    if (has_sums(kind)) pass_.dots_.add(dy_, factor, pass_.batch_, vectors_->at(at_.node, kind), {}, pass_.stream_);
  }

  CudaGradientPass& pass_;
  const CudaNetworkWeights<float>& weights_;
  const Instruction& at_;
  CudaGradientObserver& observer_;
  CudaVectorSums* vectors_;
  CudaGradientRows rows_;
  CudaView dy_;
};

void CudaGradientPass::backward(const CudaTargetRows& targets, CudaGradientObserver& observer,
                                CudaVectorSums* vectors) {
  backward_head(targets, observer);
  products_.forget();  // of the head's pieces
  for (size_t i = 0; i < plan_.backward.size(); ++i) {
    const Instruction& instruction = plan_.backward[i];
    const Operation& operation = network_.nodes[instruction.node].operation;
    expect_product(plan_.backward, i);
    switch (instruction.kind) {
      case Instruction::Kind::kForward: run(instruction); break;
      case Instruction::Kind::kZero:
        overwrite(instruction.output_gradient);
        CudaGradientRows(stream_).zero(view(instruction.output_gradient));
        break;
      case Instruction::Kind::kBackward:
        // Some scale or replace their output's gradient in place.
        if (!std::holds_alternative<op::Linear>(operation)) overwrite(instruction.output_gradient);
        for (const GradientPlace& to : instruction.input_gradients) overwrite(to.place);
        std::visit(CudaTranspose(*this, instruction, observer, vectors), operation);
        break;
    }
  }
}

}  // namespace thimble
