// cuda_node_runner.cu: see cuda_node_runner.cuh.
#include "runtime/cuda/cuda_node_runner.cuh"

#include <algorithm>
#include <cassert>
#include <type_traits>

namespace thimble {

template <typename T>
CudaNodeRunner<T>::CudaNodeRunner(const CudaNetworkWeights<T>& weights,
                                  const std::vector<DeviceArray<float2>>& rotaries, int64_t rows, bool stepping)
    : weights_(weights),
      rotaries_(rotaries),
      stepping_(stepping),
      products_(stepping),
      input_(rows * copied_width(weights)) {
  input_.fill_zero();  // products read what pads a row: it must be finite
}

template <typename T>
int64_t CudaNodeRunner<T>::copied_width(const CudaNetworkWeights<T>& weights) {
  const Fusion& fusion = weights.fusion();
  int64_t width = 0;
  for (const Composite& composite : fusion.composites) {
    const auto* single = std::get_if<fused::Single>(&composite.work);
    if (!single) continue;
    const Node& node = weights.network().nodes[single->node];
    if (!std::holds_alternative<op::Linear>(node.operation)) continue;
    const Place& input = fusion.places[static_cast<size_t>(node.inputs[0])];
    const int64_t padded = round_up(input.width, fusion.options.column_multiple);
    if (input.first_column > 0 || padded != input.stride) width = std::max(width, padded);
  }
  if (weights.policy().nvfp4)
    for (const Place& place : fusion.places)
      if (place) width = std::max(width, int64_t{place.stride});
  return width;
}

template <typename T>
void CudaNodeRunner<T>::run(const Node& node, std::span<const NodeRows<T>> inputs, const NodeRows<T>& y,
                            const CudaBatch& batch, const CudaCache<T>* cache, cudaStream_t stream) {
  const CudaNodeRows<T> rows(stream);
  const CudaNetworkWeights<T>& w = weights_;
  const RowPositions positions = batch.row_positions();
  auto visit = [&](const auto& o) {
    using Op = std::decay_t<decltype(o)>;
    if constexpr (std::is_same_v<Op, op::Gather>) {
      const CudaMatrix<T>& table = w.matrix(o.table);
      launch_gather<T>({table.data.data(), table.columns, o.index, o.factor, y.columns, y.padded, y.data, y.stride,
                        rounding(Boundary::kEmbedding)},
                       batch.tokens, positions, y.rows, stream);
    } else if constexpr (std::is_same_v<Op, op::Linear>) {
      linear(o, inputs[0], y, stream);
    } else if constexpr (std::is_same_v<Op, op::Add>) {
      const NumericPolicy& policy = w.policy();
      float factor = o.sum == Sum::kAttention ? policy.attention_scale : o.sum == Sum::kMlp ? policy.mlp_scale : 1;
      const bool is_scalar = o.scale != kAbsent && w.vector_size(o.scale) == 1;
      if (is_scalar) factor *= w.scalar(o.scale);
      rows.add(inputs[0], inputs[1], is_scalar ? nullptr : w.vector(o.scale), factor,
               rounding(o.sum == Sum::kEmbedding ? Boundary::kEmbedding : Boundary::kResidual), y);
    } else if constexpr (std::is_same_v<Op, op::RmsNorm>) {
      rows.rms_norm(inputs[0], w.vector(o.gain), o.factor, o.epsilon, rounding(Boundary::kNorm), y);
    } else if constexpr (std::is_same_v<Op, op::LayerNorm>) {
      rows.layer_norm(inputs[0], w.vector(o.weight), w.vector(o.bias), o.epsilon, rounding(Boundary::kNorm), y);
    } else if constexpr (std::is_same_v<Op, op::Heads>) {
      NodeRotation rotation;
      if (o.rotary != kAbsent)
        rotation = {rotaries_[static_cast<size_t>(o.rotary)].data(),
                    w.network().rotaries[static_cast<size_t>(o.rotary)].dims / 2};
      rows.heads(inputs[0], o.head_dim, o.epsilon, w.vector(o.norm_gain), w.vector(o.head_gain), rotation, positions,
                 rounding(Boundary::kNorm), y);
    } else if constexpr (std::is_same_v<Op, op::Activate>) {
      rows.activate(o.activation, inputs[0], rounding(Boundary::kActivation), y);
    } else if constexpr (std::is_same_v<Op, op::Gate>) {
      rows.gate(o.activation, inputs[0], inputs[1], rounding(Boundary::kActivation), y);
    } else if constexpr (std::is_same_v<Op, op::Mix>) {
      rows.mix(inputs[0], inputs[1], w.vector(o.first), w.vector(o.second), rounding(Boundary::kResidual), y);
    } else if constexpr (std::is_same_v<Op, op::Skip>) {
      rows.skip(inputs[0], inputs[1], w.vector(o.weight), w.vector(o.gate), rounding(Boundary::kResidual), y);
    } else if constexpr (std::is_same_v<Op, op::Smear>) {
      rows.smear(inputs[0], w.vector(o.gate), cache ? cache->state(o.state) : nullptr, positions,
                 rounding(Boundary::kResidual), y);
    } else {
      static_assert(std::is_same_v<Op, op::Columns> || std::is_same_v<Op, op::Attention>);
      assert(!"a view, and what is always fused");
    }
  };
  std::visit(visit, node.operation);
}

template <typename T>
void CudaNodeRunner<T>::linear(const op::Linear& o, const NodeRows<T>& x, const NodeRows<T>& y, cudaStream_t stream) {
  const Rounding& r = rounding(Boundary::kLinear);
  const float* bias = weights_.vector(o.bias);
  if constexpr (!std::is_same_v<T, __half>) {
    if (!weights_.fusion().options.fuses_products && weights_.policy().is_exact()) {
      const CudaMatrix<T>& w = weights_.matrix(o.weight);
      launch_gradient_product(ProductForm::kNT, BasicProductInput<T>(x.data, x.rows, x.columns, x.stride),
                              BasicProductInput<T>(w.data.data(), y.columns, x.columns, w.columns),
                              BasicProductOutput<T>(y.data, y.rows, y.columns, y.stride), /*add=*/false, /*batch=*/1,
                              stream);
      if (bias) CudaNodeRows<T>(stream).add_bias(bias, y);
      return;
    }
  }
  const CudaMatrix<T>& w = weights_.matrix(o.weight);
  const NodeRows<T> a = product_input(x, stream);
  assert(a.stride >= w.columns && y.stride >= w.rows);
  products_.linear({a.data, a.stride, w.data.data(), y.rows, w.rows, w.columns}, {y.data, y.stride, r, bias}, stream);
}

template <typename T>
NodeRows<T> CudaNodeRunner<T>::product_input(const NodeRows<T>& x, cudaStream_t stream) {
  const int64_t multiple = weights_.fusion().options.column_multiple, padded = round_up(x.columns, multiple);
  const bool has_whole_pieces = x.padded % multiple == 0 && x.stride % multiple == 0;
  const bool is_aligned = has_whole_pieces && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  if (is_aligned && !weights_.policy().nvfp4) return x;
  assert(x.rows * padded <= input_.count());
  const NodeRows<T> copy{input_.data(), x.rows, x.columns, padded, padded};
  CudaNodeRows<T>(stream).copy(x, copy);
  if (weights_.policy().nvfp4)
    launch_stage_nvfp4<T>(copy.data, padded, x.rows, {1, static_cast<int>(x.columns), static_cast<int>(padded)}, {},
                          copy.data, stream);
  return copy;
}

template <typename T>
const T* CudaNodeRunner<T>::staged(const T* x, int64_t stride, int64_t rows, const HeadColumns& columns,
                                   const RowNorm& norm, cudaStream_t stream) {
  assert(rows * stride <= input_.count());
  launch_stage_nvfp4(x, stride, rows, columns, norm, input_.data(), stream);
  return input_.data();
}

template class CudaNodeRunner<float>;
template class CudaNodeRunner<__nv_bfloat16>;
template class CudaNodeRunner<__half>;

}  // namespace thimble
