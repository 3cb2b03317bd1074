// cuda_gradient_pass.cu: see cuda_gradient_pass.cuh. The transposes follow in cuda_transposes.cu.
#include "runtime/cuda/cuda_gradient_pass.cuh"

#include <algorithm>
#include <cassert>
#include <numeric>

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
void multiply_head(ConstCudaView hidden, const CudaMatrix<float>& head, CudaGradientProducts& products, CudaView out,
                   cudaStream_t stream) {
  products.multiply(ProductForm::kNT, hidden, {head.data.data(), out.columns, hidden.columns, head.columns}, out,
                    /*add=*/false, /*batch=*/1, stream);
}

CudaView rows_of(CudaView x, int64_t first, int64_t rows) {
  return {x.data + first * x.stride, rows, x.columns, x.stride};
}

// The largest piece of a batch's logits.
BatchShape largest_piece(int64_t vocabulary, int64_t sequences, int64_t positions) {
  const int64_t most = logit_rows(vocabulary);
  return {std::clamp<int64_t>(most / positions, 1, sequences), std::min(most, positions)};
}

std::vector<op::Attention> attention_shapes(const Network& network) {
  std::vector<op::Attention> shapes;
  for (const Node& node : network.nodes)
    if (const auto* attention = std::get_if<op::Attention>(&node.operation)) shapes.push_back(*attention);
  return shapes;
}

// With the room that all layers take, one after the other.
CudaFloatAttention make_attention(const Network& network, const BatchShape& batch, ProductArithmetic arithmetic) {
  CudaFloatAttention attention(arithmetic);
  attention.reserve(attention_shapes(network), batch);
  return attention;
}

// The caller's options, and what this pass's attention asks for.
PassOptions with_attention_outputs(PassOptions options, const Network& network, ProductArithmetic arithmetic) {
  const CudaFloatAttention attention(arithmetic);
  options.reads_attention_outputs = std::ranges::any_of(
      attention_shapes(network), [&](const op::Attention& shape) { return attention.keeps_scores_on_chip(shape); });
  return options;
}

int64_t widest_value(const Network& network) { return std::ranges::max(network.value_widths); }

}  // namespace

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

CudaGradientPass::CudaGradientPass(const CudaNetworkWeights<float>& weights, const PassOptions& options,
                                   int64_t context, int64_t sequences, int64_t positions, ProductArithmetic arithmetic)
    : weights_(weights),
      network_(weights.network()),
      options_(with_attention_outputs(options, network_, arithmetic)),
      plan_(plan_pass(network_, options_)),
      products_(arithmetic),
      context_(context),
      rounds_([this](ConstCudaView out) {
        const bool is_next = out.data == next_left_.data && out.columns == next_left_.columns;
        return is_next ? products_.round_ahead(out) : RoundedRows();
      }),
      runner_(weights, rotaries_, /*rows=*/0, /*stepping=*/false, &products_, &rounds_),
      attention_(make_attention(network_, {sequences, positions}, arithmetic)),
      losses_(sequences * positions),
      device_tokens_(sequences * positions),
      zero_(1) {
  assert(options.has_backward && weights.policy().is_exact());
  assert(!weights.fusion().options.fuses_products);
  const int64_t rows = sequences * positions, multiple = weights.fusion().options.column_multiple;
  for (const RotaryRule& rule : network_.rotaries) rotaries_.push_back(make_cuda_rotary_table(rule, context));
  for (int64_t width : plan_.slot_widths) slots_.emplace_back(rows * round_up(width, multiple), "activations");
  const BatchShape piece = largest_piece(network_.vocabulary(), sequences, positions);
  // Windows may be shorter, and then more of them fill a piece.
  logits_ = DeviceArray<float>(std::min(rows, logit_rows(network_.vocabulary())) * network_.vocabulary(), "logits");
  if (options.reads_linear_outputs) dlogits_ = DeviceArray<float>(logits_.count(), "logits");
  reserve_products(rows);
  for (size_t i = 0; i < network_.nodes.size(); ++i)
    if (const auto* attention = std::get_if<op::Attention>(&network_.nodes[i].operation))
      attention_of_[i].reserve(*attention, {sequences, positions});
  dots_.reserve({sequences, positions}, widest_value(network_));
  dots_.reserve(piece, network_.vocabulary());
  if (options.has_vector_gradients || options.reads_linear_outputs) {
    const int64_t widest = widest_value(network_);
    for (DeviceArray<float>& scratch : scratch_) scratch = DeviceArray<float>(rows * round_up(widest, multiple));
    ones_ = DeviceArray<float>(std::span<const float>(std::vector<float>(static_cast<size_t>(widest), 1.0f)));
  }
  zero_.fill_zero();
}

void CudaGradientPass::reserve_products(int64_t rows) {
  auto reserve = [&](int64_t batch_rows, const MatrixUse& use) {
    products_.reserve(ProductForm::kNN, {batch_rows, std::max(use.rows, use.columns)}, {use.rows, use.columns});
    if (options_.reads_linear_inputs)
      products_.reserve(ProductForm::kTN, {batch_rows, use.rows}, {batch_rows, use.columns});
  };
  for (const Node& node : network_.nodes)
    if (const auto* linear = std::get_if<op::Linear>(&node.operation)) reserve(rows, network_.matrix(linear->weight));
  reserve(logits_.count() / network_.vocabulary(), network_.matrix(network_.head.weight));
}

CudaView CudaGradientPass::view(const Place& place) const {
  const int64_t stride = round_up(place.stride, weights_.fusion().options.column_multiple);
  return {slots_[static_cast<size_t>(place.slot)].data() + place.first_column, batch_.rows(), place.width, stride};
}

void CudaGradientPass::overwrite(const Place& place) {
  if (!place) return;
  const DeviceArray<float>& slot = slots_[static_cast<size_t>(place.slot)];
  products_.forget(slot.data(), slot.count());
}

void CudaGradientPass::expect_product(std::span<const Instruction> instructions, size_t at) {
  next_left_ = {};
  for (const Instruction& next : instructions.subspan(at + 1)) {
    if (!std::holds_alternative<op::Linear>(network_.nodes[next.node].operation)) continue;
    next_left_ = view(next.kind == Instruction::Kind::kForward ? next.inputs[0] : next.output_gradient);
    return;
  }
}

void CudaGradientPass::run(const Instruction& instruction) {
  const Node& node = network_.nodes[instruction.node];
  if (std::holds_alternative<op::Columns>(node.operation)) return;  // a view
  overwrite(instruction.output);
  if (const auto* attention = std::get_if<op::Attention>(&node.operation))
    return attention_.forward(view(instruction.inputs[0]), view(instruction.inputs[1]), view(instruction.inputs[2]),
                              *attention, batch_, attention_of_.at(instruction.node), view(instruction.output),
                              stream_);
  auto rows = [&](const Place& place) {
    const CudaView at = view(place);
    return NodeRows<float>{at.data, at.rows, at.columns, at.stride, at.columns};
  };
  std::vector<NodeRows<float>> inputs;
  for (const Place& input : instruction.inputs) inputs.push_back(rows(input));
  const CudaBatch batch{{device_tokens_.data(), batch_.positions},
                        static_cast<int>(batch_.sequences),
                        static_cast<int>(batch_.positions),
                        static_cast<int>(batch_.positions),
                        zero_.data()};
  runner_.run(node, inputs, rows(instruction.output), batch, nullptr, stream_);
}

void CudaGradientPass::forward(std::span<const Token> tokens, int64_t stride, const BatchShape& batch) {
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
                             cudaMemcpyHostToDevice, stream_));
  stream_.wait();      // the list may change after this
  products_.forget();  // weights may have changed
  for (size_t i = 0; i < plan_.forward.size(); ++i) {
    expect_product(plan_.forward, i);
    run(plan_.forward[i]);
  }
}

void launch_logits(ConstCudaView hidden, const CudaMatrix<float>& head, float softcap, CudaGradientProducts& products,
                   CudaView out, cudaStream_t stream) {
  products.forget();
  multiply_head(hidden, head, products, out, stream);
  if (softcap != 0) launch_rows(out.rows, SoftcapRows{out, softcap}, stream);
}

template <typename Body>
void CudaGradientPass::for_each_piece(const Body& body) const {
  const BatchShape most = largest_piece(network_.vocabulary(), batch_.sequences, batch_.positions);
  for (int64_t s = 0; s < batch_.sequences; s += most.sequences)
    for (int64_t p = 0; p < batch_.positions; p += most.positions)
      body(s * batch_.positions + p, BatchShape{std::min(most.sequences, batch_.sequences - s),
                                                std::min(most.positions, batch_.positions - p), p});
}

CudaView CudaGradientPass::make_logits(int64_t first_row, int64_t rows) {
  products_.forget();  // of the piece before
  const CudaView out{logits_.data(), rows, network_.vocabulary()};
  multiply_head(rows_of(view(plan_.hidden), first_row, rows), weights_.matrix(network_.head.weight), products_, out,
                stream_);
  return out;
}

void CudaGradientPass::backward_head(const CudaTargetRows& targets, CudaGradientObserver& observer) {
  const MatrixUse& use = network_.matrix(network_.head.weight);
  const CudaMatrix<float>& head = weights_.matrix(network_.head.weight);
  for_each_piece([&](int64_t first, const BatchShape& piece) {
    const CudaView logits = make_logits(first, piece.rows());
    const bool keeps_logits = dlogits_.count() > 0;
    const CudaView gradient = keeps_logits ? CudaView{dlogits_.data(), logits.rows, logits.columns} : logits;
    launch_loss_backward(logits, network_.head.softcap, targets(first, logits.rows, stream_), gradient,
                         losses_.data() + first, stream_);
    observer.on_output_gradient(use.name, gradient, keeps_logits ? ConstCudaView(logits) : ConstCudaView(), piece,
                                stream_);
    if (options_.reads_linear_inputs)
      observer.on_linear_gradient(use.name, gradient, rows_of(view(plan_.hidden), first, logits.rows), piece, stream_);
    products_.multiply(ProductForm::kNN, ConstCudaView(gradient),
                       ConstCudaView(head.data.data(), use.rows, use.columns, head.columns),
                       rows_of(view(plan_.hidden_gradient), first, logits.rows), /*add=*/false, /*batch=*/1, stream_);
  });
}

double CudaGradientPass::loss() const {
  std::vector<float> losses(static_cast<size_t>(batch_.rows()));
  check_cuda(
      cudaMemcpyAsync(losses.data(), losses_.data(), losses.size() * sizeof(float), cudaMemcpyDeviceToHost, stream_));
  stream_.wait();
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

double CudaGradientPass::forward_loss(const CudaTargetRows& targets) {
  for_each_piece([&](int64_t first, const BatchShape& piece) {
    const CudaView logits = make_logits(first, piece.rows());
    launch_loss_backward(logits, network_.head.softcap, targets(first, logits.rows, stream_), logits,
                         losses_.data() + first, stream_);
  });
  return loss();
}

}  // namespace thimble
