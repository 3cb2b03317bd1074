// cuda_transposes.cu: the backward pass: cpu_backward.cpp on the device, the same order, the same names.
#include <cassert>

#include "runtime/cuda/cuda_gradient_pass.cuh"
#include "runtime/cuda/cuda_gradient_products.cuh"

namespace thimble {

// Runs the transpose of the operation of the first of some instructions.
template <typename T>
class CudaTranspose {
  using View = BasicCudaView<T>;
  using ConstView = BasicCudaView<const T>;

 public:
  CudaTranspose(CudaGradientPass<T>& pass, std::span<const Instruction> rest, CudaGradientObserver<T>& observer,
                CudaVectorSums* vectors)
      : pass_(pass),
        weights_(pass.weights_),
        rest_(rest),
        at_(rest[0]),
        observer_(observer),
        vectors_(vectors),
        rows_(pass.stream_),
        dy_(pass.view(at_.output_gradient)) {}

  // How many instructions have been run.
  size_t count() const { return count_; }

  void operator()(const op::Gather& o) const {
    const std::vector<int32_t> looked_up = looked_up_rows(o.index, pass_.tokens_);
    if (o.factor != 1) rows_.scale(dy_, nullptr, o.factor, /*adds=*/false, dy_);  // nobody reads it after this
    observer_.on_lookup_gradient(pass_.network_.matrix(o.table).name, looked_up, dy_, pass_.batch_, pass_.stream_);
  }

  void operator()(const op::Linear& o) {
    ConstView y = at_.output ? ConstView(pass_.view(at_.output)) : ConstView();
    if (y.data && o.bias != kAbsent) {  // what the matrix gave, before its bias
      const View product = scratch(y.columns);
      rows_.subtract(y, weights_.vector(o.bias), product);
      y = product;
    }
    const std::string& name = pass_.network_.matrix(o.weight).name;
    observer_.on_output_gradient(name, dy_, y, pass_.batch_, pass_.stream_);
    if (at_.inputs[0]) observer_.on_linear_gradient(name, dy_, input(0), pass_.batch_, pass_.stream_);
    add_sums(0, ones());
    if (!at_.input_gradients[0].place) return;
    if (rest_.size() > 1 && transposes_activation(o, rest_[1])) {
      count_ = 2;
      return;
    }
    const View dx = gradient(0);
    launch_gradient_product(ProductForm::kNN, BasicProductInput<T>(dy_), BasicProductInput<T>(pass_.view(o.weight)),
                            BasicProductOutput<T>(dx), adds(0), /*batch=*/1, pass_.stream_);
  }

  // y = x + scale * a.
  void operator()(const op::Add& o) const {
    if (o.scale != kAbsent) add_sums(0, at_.inputs[1] ? ConstView(input(1)) : ConstView());
    const bool is_vector = o.scale != kAbsent && weights_.vector_size(o.scale) > 1;
    const float factor = o.scale == kAbsent || is_vector ? 1.0f : weights_.scalar(o.scale);
    rows_.scale(dy_, is_vector ? weights_.vector(o.scale) : nullptr, factor, adds(1), gradient(1));
    pass_through();
  }

  void operator()(const op::RmsNorm& o) const {
    if (has_sums(0)) {
      const View normed = scratch(dy_.columns);
      CudaNodeRows<T>(pass_.stream_).rms_norm(node_rows(input(0)), nullptr, o.factor, o.epsilon, {}, node_rows(normed));
      add_sums(0, normed);
    }
    rows_.rms_norm(input(0), weights_.vector(o.gain), o.factor, o.epsilon, dy_, adds(0), gradient(0));
  }

  void operator()(const op::LayerNorm& o) const {
    if (has_sums(0)) {
      const View normed = scratch(dy_.columns);
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
    const View terms = has_sums(0) ? scratch(dy_.columns) : View();
    rows_.heads(input(0), o.head_dim, o.epsilon, weights_.vector(o.norm_gain), weights_.vector(o.head_gain), rotation,
                pass_.batch_.positions, dy_, adds(0), gradient(0), terms);
    if (has_sums(0))
      pass_.dots_.add(ConstView(terms), ones(), pass_.batch_, vectors_->at(at_.node, 0), {}, pass_.stream_);
  }

  // Overwrites the gradient of its output.
  void operator()(const op::Attention& o) const {
    View to[3];  // elsewhere where other operations read an input too
    for (size_t i = 0; i < 3; ++i) {
      to[i] = gradient(i);
      if (!adds(i)) continue;
      BasicCudaMatrix<T>& sum = pass_.attention_sums_[i];
      sum.resize(to[i].rows, to[i].columns);
      to[i] = sum;
    }
    const ConstView q = input(0), k = input(1), v = input(2);
    if constexpr (std::is_same_v<T, float>) {
      pass_.attention_.backward(q, k, v, o, pass_.batch_, dy_, to[0], to[1], to[2], pass_.stream_);
    } else {
      const ConstView y = at_.output ? ConstView(pass_.view(at_.output)) : ConstView();
      pass_.attention_.backward(q, k, v, y, dy_, o, pass_.batch_, pass_.attention_of_.at(at_.node), to[0], to[1], to[2],
                                pass_.stream_);
    }
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
      const View direction = scratch(dy_.columns);
      rows_.smear_direction(input(0), positions, direction);
      add_sums(0, direction);
    }
    rows_.smear(dy_, weights_.vector(o.gate), positions, adds(0), gradient(0));
  }

  void operator()(const op::Columns&) const {}  // what its readers left lies in place

 private:
  View input(size_t i) const { return pass_.view(at_.inputs[i]); }
  bool adds(size_t i) const { return at_.input_gradients[i].adds; }
  View gradient(size_t i) const { return pass_.view(at_.input_gradients[i].place); }
  // Where the output's gradient is that of input 0, as it is.
  void pass_through() const { rows_.scale(dy_, nullptr, 1, adds(0), gradient(0)); }
  static NodeRows<T> node_rows(View x) { return {x.data, x.rows, x.columns, x.stride, x.columns}; }

  View scratch(int64_t columns) const { return {pass_.scratch_.data(), pass_.batch_.rows(), columns}; }
  // One, in every row.
  ConstView ones() const { return {pass_.ones_.data(), dy_.rows, dy_.columns, 0}; }
  // The gradient by the input is that of an activation's output: goes on to its input's, if that is all that happens to
  // it and one kernel does both.
  bool transposes_activation(const op::Linear& product, const Instruction& next) const {
    const Node& maker = pass_.network_.nodes[next.node];
    const auto* activate = std::get_if<op::Activate>(&maker.operation);
    if (!activate || next.kind != Instruction::Kind::kBackward ||
        maker.output != pass_.network_.nodes[at_.node].inputs[0])
      return false;
    const GradientPlace& to = next.input_gradients[0];
    if (adds(0) || to.adds || !to.place || to.place.slot == at_.output_gradient.slot) return false;
    return launch_activation_gradient(BasicProductInput<T>(dy_), BasicProductInput<T>(pass_.view(product.weight)),
                                      activate->activation, pass_.view(next.inputs[0]), pass_.view(to.place),
                                      pass_.stream_);
  }

  bool has_sums(int kind) const { return vectors_ && vectors_->at(at_.node, kind); }
  // Adds sums over rows of dy * `factor`, where anybody asks for them.
  void add_sums(int kind, ConstView factor) const {
    if (has_sums(kind))
      pass_.dots_.add(ConstView(dy_), factor, pass_.batch_, vectors_->at(at_.node, kind), {}, pass_.stream_);
  }

  CudaGradientPass<T>& pass_;
  const CudaNetworkWeights<T>& weights_;
  std::span<const Instruction> rest_;
  const Instruction& at_;
  size_t count_ = 1;
  CudaGradientObserver<T>& observer_;
  CudaVectorSums* vectors_;
  CudaGradientRows<T> rows_;
  View dy_;
};

template <typename T>
size_t CudaGradientPass<T>::transpose(std::span<const Instruction> rest, CudaGradientObserver<T>& observer,
                                      CudaVectorSums* vectors) {
  CudaTranspose visitor(*this, rest, observer, vectors);
  std::visit(visitor, network_.nodes[rest[0].node].operation);
  return visitor.count();
}

template <typename T>
void CudaGradientPass<T>::backward(const CudaTargetRows& targets, CudaGradientObserver<T>& observer,
                                   CudaVectorSums* vectors) {
  assert(options_.has_backward);
  backward_head(targets, observer);
  for (std::span<const Instruction> rest(plan_.backward); !rest.empty();) {
    size_t count = 1;
    switch (rest[0].kind) {
      case Instruction::Kind::kForward: count = run(rest); break;
      case Instruction::Kind::kZero: CudaGradientRows<T>(stream_).zero(view(rest[0].output_gradient)); break;
      case Instruction::Kind::kBackward: count = transpose(rest, observer, vectors); break;
    }
    rest = rest.subspan(count);
  }
  dots_.finish(stream_);
}

template void CudaGradientPass<float>::backward(const CudaTargetRows&, CudaGradientObserver<float>&, CudaVectorSums*);
template void CudaGradientPass<__nv_bfloat16>::backward(const CudaTargetRows&, CudaGradientObserver<__nv_bfloat16>&,
                                                        CudaVectorSums*);

}  // namespace thimble
