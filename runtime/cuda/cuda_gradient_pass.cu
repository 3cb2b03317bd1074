// cuda_gradient_pass.cu: see cuda_gradient_pass.cuh. The transposes follow in cuda_transposes.cu.
#include "runtime/cuda/cuda_gradient_pass.cuh"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "runtime/cuda/cuda_gradient_products.cuh"
#include "runtime/cuda/kernels/cuda_row_kernel.cuh"
#include "runtime/ops/logit_pieces.h"

namespace thimble {
namespace {

// In place.
struct SoftcapRows {
  CudaView x;
  float cap;

  __device__ void operator()(int64_t row, int lane) const {
    for (int64_t c = lane; c < x.columns; c += 32) {
      float& z = x.data[row * x.stride + c];
      z = cap * tanhf(z * (1.0f / cap));
    }
  }
};

// rows x V = hidden w^T.
template <typename T>
void multiply_head(BasicCudaView<const T> hidden, const CudaMatrix<T>& head, CudaView out, cudaStream_t stream) {
  launch_gradient_product(ProductForm::kNT, BasicProductInput<T>(hidden),
                          BasicProductInput<T>(head.data.data(), out.columns, hidden.columns, head.columns),
                          ProductOutput(out), /*add=*/false, /*batch=*/1, stream);
}

template <typename T>
BasicCudaView<T> rows_of(BasicCudaView<T> x, int64_t first, int64_t rows) {
  return {x.data + first * x.stride, rows, x.columns, x.stride};
}

// The largest piece of a batch's logits.
BatchShape largest_piece(int64_t vocabulary, int64_t sequences, int64_t positions) {
  const int64_t most = logit_rows(vocabulary);
  return {std::clamp<int64_t>(most / positions, 1, sequences), std::min(most, positions)};
}

template <typename Body>
void for_each_attention(const Network& network, const Body& body) {
  for (size_t i = 0; i < network.nodes.size(); ++i)
    if (const auto* attention = std::get_if<op::Attention>(&network.nodes[i].operation)) body(i, *attention);
}

// The caller's options, and what this pass's attention asks for.
template <typename T>
PassOptions with_attention_outputs(PassOptions options, const Network& network) {
  for_each_attention(network, [&](size_t, const op::Attention& shape) {
    if (!std::is_same_v<T, float> && CudaBf16Attention::reads_outputs(shape)) options.reads_attention_outputs = true;
  });
  return options;
}

int64_t widest_value(const Network& network) { return std::ranges::max(network.value_widths); }

}  // namespace

CudaPassPlan plan_gradient_pass(const std::string& step, int64_t length, int64_t most, uint64_t usable_bytes,
                                const std::function<void(int64_t batch, Keeps keeps)>& allocate) {
  auto uses_of = [&](Keeps keeps) {
    return [&, keeps](int64_t batch) { return counted_allocations([&] { allocate(batch, keeps); }); };
  };
  const MemoryPlan all{step, "sequence", length, most, uses_of(Keeps::kAll)(most)};
  if (all.bytes() <= usable_bytes) return {all, Keeps::kAll};
  return {fit_memory_plan(step, "sequence", length, most, usable_bytes, uses_of(Keeps::kCostly)), Keeps::kCostly};
}

CudaVectorSums::CudaVectorSums(const Network& network)
    : network_(network), layout_(network), sums_(layout_.count(), "sums") {
  sums_.fill_zero();
}

void CudaVectorSums::set_zero(cudaStream_t stream) { sums_.fill_bytes(0, stream); }

VectorGradients CudaVectorSums::read(std::span<const std::vector<float>> vectors, cudaStream_t stream) const {
  std::vector<double> sums(static_cast<size_t>(sums_.count()));
  if (!sums.empty())
    check_cuda(cudaMemcpyAsync(sums.data(), sums_.data(), sums_.bytes(), cudaMemcpyDeviceToHost, stream));
  check_cuda(cudaStreamSynchronize(stream));
  return vector_gradients(network_, vectors, sums);
}

template <typename T>
CudaGradientPass<T>::CudaGradientPass(const CudaNetworkWeights<T>& weights, const PassOptions& options, int64_t context,
                                      int64_t sequences, int64_t positions)
    : weights_(weights),
      network_(weights.network()),
      options_(with_attention_outputs<T>(options, network_)),
      plan_(plan_pass(network_, options_)),
      context_(context),
      runner_(weights, rotaries_, /*rows=*/0, /*stepping=*/false),
      losses_(sequences * positions),
      device_tokens_(sequences * positions),
      zero_(1) {
  assert(weights.policy().is_exact());
  assert(!weights.fusion().options.fuses_products);
  const int64_t rows = sequences * positions, multiple = weights.fusion().options.column_multiple;
  for (const RotaryRule& rule : network_.rotaries) rotaries_.push_back(make_cuda_rotary_table(rule, context));
  for (int64_t width : plan_.slot_widths) slots_.emplace_back(rows * round_up(width, multiple), "activations");
  const BatchShape piece = largest_piece(network_.vocabulary(), sequences, positions);
  // Windows may be shorter, and then more of them fill a piece.
  const int64_t most_logit_rows = std::min(rows, logit_rows(network_.vocabulary()));
  logits_ = DeviceArray<float>(most_logit_rows * network_.vocabulary(), "logits");
  if (options.has_backward && (options.reads_head_output || !std::is_same_v<T, float>))
    dlogits_ = DeviceArray<T>(most_logit_rows * round_up(network_.vocabulary(), multiple), "logits");
  for_each_attention(network_, [&](size_t node, const op::Attention& shape) {
    attention_.reserve(shape, {sequences, positions});
    if constexpr (!std::is_same_v<T, float>) attention_of_[node].reserve(shape, {sequences, positions});
  });
  dots_.reserve({sequences, positions}, widest_value(network_));
  dots_.reserve(piece, network_.vocabulary());
  if (options.has_vector_gradients || options.reads_linear_outputs) {
    const int64_t widest = widest_value(network_);
    scratch_ = DeviceArray<T>(rows * round_up(widest, multiple));
    ones_ = DeviceArray<T>(std::span<const T>(std::vector<T>(static_cast<size_t>(widest), T(1.0f))));
  }
  zero_.fill_zero();
}

template <typename T>
BasicCudaView<T> CudaGradientPass<T>::view(const Place& place) const {
  const int64_t stride = round_up(place.stride, weights_.fusion().options.column_multiple);
  return {slots_[static_cast<size_t>(place.slot)].data() + place.first_column, batch_.rows(), place.width, stride};
}

template <typename T>
BasicCudaView<const T> CudaGradientPass<T>::view(MatrixId id) const {
  const MatrixUse& use = network_.matrix(id);
  const CudaMatrix<T>& matrix = weights_.matrix(id);
  return {matrix.data.data(), use.rows, use.columns, matrix.columns};
}

template <typename T>
void CudaGradientPass<T>::attend(const Instruction& instruction, const op::Attention& shape) {
  const ConstView q = view(instruction.inputs[0]), k = view(instruction.inputs[1]), v = view(instruction.inputs[2]);
  const View y = view(instruction.output);
  if constexpr (std::is_same_v<T, float>)
    attention_.forward(q, k, v, shape, batch_, y, stream_);
  else
    attention_.forward(q, k, v, shape, batch_, attention_of_.at(instruction.node), y, stream_);
}

template <typename T>
void CudaGradientPass<T>::run(const Instruction& instruction) {
  const Node& node = network_.nodes[instruction.node];
  if (std::holds_alternative<op::Columns>(node.operation)) return;  // a view
  if (const auto* attention = std::get_if<op::Attention>(&node.operation)) return attend(instruction, *attention);
  auto rows = [&](const Place& place) {
    const View at = view(place);
    return NodeRows<T>{at.data, at.rows, at.columns, at.stride, at.columns};
  };
  std::vector<NodeRows<T>> inputs;
  for (const Place& input : instruction.inputs) inputs.push_back(rows(input));
  const CudaBatch batch{{device_tokens_.data(), batch_.positions},
                        static_cast<int>(batch_.sequences),
                        static_cast<int>(batch_.positions),
                        static_cast<int>(batch_.positions),
                        zero_.data()};
  runner_.run(node, inputs, rows(instruction.output), batch, nullptr, stream_);
}

template <typename T>
bool CudaGradientPass<T>::run_activated(const Instruction& product, const Instruction& next) {
  const Node &maker = network_.nodes[product.node], &reader = network_.nodes[next.node];
  const auto* linear = std::get_if<op::Linear>(&maker.operation);
  const auto* activate = std::get_if<op::Activate>(&reader.operation);
  if (!linear || !activate || next.kind != Instruction::Kind::kForward || reader.inputs[0] != maker.output)
    return false;
  if (next.output.slot == product.inputs[0].slot) return false;  // which the product still reads
  const bool is_replaced = next.output.slot == product.output.slot;
  return launch_activated_product(BasicProductInput<T>(view(product.inputs[0])),
                                  BasicProductInput<T>(view(linear->weight)), weights_.vector(linear->bias),
                                  activate->activation, is_replaced ? View() : view(product.output), view(next.output),
                                  stream_);
}

template <typename T>
size_t CudaGradientPass<T>::run(std::span<const Instruction> rest) {
  if (rest.size() > 1 && run_activated(rest[0], rest[1])) return 2;
  run(rest[0]);
  return 1;
}

template <typename T>
void CudaGradientPass<T>::forward(std::span<const Token> tokens, int64_t stride, const BatchShape& batch) {
  assert(batch.first_position == 0 && batch.positions <= context_ && batch.rows() <= device_tokens_.count());
  batch_ = batch;
  tokens_ = {{}, {}, batch};
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const TokenBatch window =
        window_batch(tokens.subspan(static_cast<size_t>(s * stride), static_cast<size_t>(batch.positions)));
    tokens_.tokens.insert(tokens_.tokens.end(), window.tokens.begin(), window.tokens.end());
    tokens_.previous.insert(tokens_.previous.end(), window.previous.begin(), window.previous.end());
  }
  check_cuda(cudaMemcpyAsync(device_tokens_.data(), tokens_.tokens.data(), tokens_.tokens.size() * sizeof(Token),
                             cudaMemcpyHostToDevice, stream_));  // staged: pageable memory may change after this
  for (std::span<const Instruction> rest(plan_.forward); !rest.empty();) rest = rest.subspan(run(rest));
}

template <typename T>
void launch_logits(BasicCudaView<const T> hidden, const CudaMatrix<T>& head, float softcap, CudaView out,
                   cudaStream_t stream) {
  multiply_head(hidden, head, out, stream);
  if (softcap != 0) launch_rows(out.rows, SoftcapRows{out, softcap}, stream);
}

template <typename T>
template <typename Body>
void CudaGradientPass<T>::for_each_piece(const Body& body) const {
  const BatchShape most = largest_piece(network_.vocabulary(), batch_.sequences, batch_.positions);
  for (int64_t s = 0; s < batch_.sequences; s += most.sequences)
    for (int64_t p = 0; p < batch_.positions; p += most.positions)
      body(s * batch_.positions + p, BatchShape{std::min(most.sequences, batch_.sequences - s),
                                                std::min(most.positions, batch_.positions - p), p});
}

template <typename T>
CudaView CudaGradientPass<T>::make_logits(int64_t first_row, int64_t rows) {
  const CudaView out{logits_.data(), rows, network_.vocabulary()};
  multiply_head<T>(rows_of(view(plan_.hidden), first_row, rows), weights_.matrix(network_.head.weight), out, stream_);
  return out;
}

template <typename T>
BasicCudaView<T> CudaGradientPass<T>::logit_gradient(CudaView logits) {
  if constexpr (std::is_same_v<T, float>)
    if (dlogits_.count() == 0) return logits;
  return {dlogits_.data(), logits.rows, logits.columns,
          round_up(logits.columns, weights_.fusion().options.column_multiple)};
}

template <typename T>
void CudaGradientPass<T>::backward_head(const CudaTargetRows& targets, CudaGradientObserver<T>& observer) {
  const MatrixUse& use = network_.matrix(network_.head.weight);
  for_each_piece([&](int64_t first, const BatchShape& piece) {
    const CudaView logits = make_logits(first, piece.rows());
    const View gradient = logit_gradient(logits);
    launch_loss_backward(ConstCudaView(logits), network_.head.softcap, targets(first, logits.rows, stream_), gradient,
                         losses_.data() + first, stream_);
    observer.on_head_gradient(use.name, gradient, options_.reads_head_output ? logits : CudaView(), piece, stream_);
    if (options_.reads_linear_inputs)
      observer.on_linear_gradient(use.name, gradient, rows_of(view(plan_.hidden), first, logits.rows), piece, stream_);
    launch_gradient_product(ProductForm::kNN, BasicProductInput<T>(gradient),
                            BasicProductInput<T>(view(network_.head.weight)),
                            BasicProductOutput<T>(rows_of(view(plan_.hidden_gradient), first, logits.rows)),
                            /*add=*/false, /*batch=*/1, stream_);
  });
}

template <typename T>
double CudaGradientPass<T>::loss() const {
  std::vector<float> losses(static_cast<size_t>(batch_.rows()));
  check_cuda(
      cudaMemcpyAsync(losses.data(), losses_.data(), losses.size() * sizeof(float), cudaMemcpyDeviceToHost, stream_));
  stream_.wait();
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

template <typename T>
double CudaGradientPass<T>::forward_loss(const CudaTargetRows& targets) {
  for_each_piece([&](int64_t first, const BatchShape& piece) {
    const CudaView logits = make_logits(first, piece.rows());
    launch_loss_backward(ConstCudaView(logits), network_.head.softcap, targets(first, logits.rows, stream_), logits,
                         losses_.data() + first, stream_);
  });
  return loss();
}

#define THIMBLE_INSTANTIATE(T)        \
  template class CudaGradientPass<T>; \
  template void launch_logits(BasicCudaView<const T>, const CudaMatrix<T>&, float, CudaView, cudaStream_t);
THIMBLE_INSTANTIATE(float)
THIMBLE_INSTANTIATE(__nv_bfloat16)
#undef THIMBLE_INSTANTIATE

}  // namespace thimble
