// cuda_gradient_pass.cu: see cuda_gradient_pass.cuh. The transposes follow in cuda_transposes.cu.
#include "runtime/cuda/cuda_gradient_pass.cuh"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "runtime/cuda/kernels/cuda_float_product.cuh"
#include "runtime/cuda/kernels/cuda_row_kernel.cuh"

namespace thimble {
namespace {

struct SoftcapRows {
  ConstCudaView x;
  float cap;  // 0: none
  CudaView y;

  __device__ void operator()(int64_t row, int lane) const {
    for (int64_t c = lane; c < x.columns; c += 32) {
      const float z = x.data[row * x.stride + c];
      y.data[row * y.stride + c] = cap == 0 ? z : cap * tanhf(z * (1.0f / cap));
    }
  }
};

// The room that attention takes of all layers, one after the other.
CudaFloatAttention make_attention(const Network& network, int64_t sequences, int64_t positions) {
  int64_t scores = 0, outputs = 0;
  for (const Node& node : network.nodes)
    if (const auto* attention = std::get_if<op::Attention>(&node.operation)) {
      scores = std::max(scores, sequences * attention->heads * positions * score_stride(positions));
      if (attention->exclusive) outputs = std::max(outputs, sequences * positions * network.width_of(node.output));
    }
  return CudaFloatAttention(scores, outputs);
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
                                   int64_t context, int64_t sequences, int64_t positions)
    : weights_(weights),
      network_(weights.network()),
      plan_(plan_pass(network_, options)),
      context_(context),
      runner_(weights, rotaries_, /*rows=*/0, /*stepping=*/false),
      attention_(make_attention(network_, sequences, positions)),
      dots_({sequences, positions}, std::max(network_.vocabulary(), widest_value(network_))),
      losses_(sequences * positions),
      device_tokens_(sequences * positions),
      zero_(1) {
  assert(options.has_backward && weights.policy().is_exact());
  assert(!weights.fusion().options.fuses_products);
  const int64_t rows = sequences * positions, multiple = weights.fusion().options.column_multiple;
  for (const RotaryRule& rule : network_.rotaries) rotaries_.push_back(make_cuda_rotary_table(rule, context));
  for (int64_t width : plan_.slot_widths) slots_.emplace_back(rows * round_up(width, multiple), "activations");
  for (DeviceArray<float>* logits : {&logits_, &dlogits_})
    *logits = DeviceArray<float>(rows * network_.vocabulary(), "logits");
  if (options.has_vector_gradients || options.reads_linear_outputs) {
    const int64_t widest = widest_value(network_);
    for (DeviceArray<float>& scratch : scratch_) scratch = DeviceArray<float>(rows * round_up(widest, multiple));
    ones_ = DeviceArray<float>(std::span<const float>(std::vector<float>(static_cast<size_t>(widest), 1.0f)));
  }
  zero_.fill_zero();
}

CudaView CudaGradientPass::view(const Place& place) const {
  const int64_t stride = round_up(place.stride, weights_.fusion().options.column_multiple);
  return {slots_[static_cast<size_t>(place.slot)].data() + place.first_column, batch_.rows(), place.width, stride};
}

void CudaGradientPass::run(const Instruction& instruction) {
  const Node& node = network_.nodes[instruction.node];
  if (std::holds_alternative<op::Columns>(node.operation)) return;  // a view
  if (const auto* attention = std::get_if<op::Attention>(&node.operation))
    return attention_.forward(view(instruction.inputs[0]), view(instruction.inputs[1]), view(instruction.inputs[2]),
                              *attention, batch_, view(instruction.output), stream_);
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
  stream_.wait();  // the list may change after this
  for (const Instruction& instruction : plan_.forward) run(instruction);
  const CudaMatrix<float>& head = weights_.matrix(network_.head.weight);
  const CudaView hidden = view(plan_.hidden);
  launch_product(ProductForm::kNT, {hidden.data, hidden.rows, hidden.columns, hidden.stride},
                 {head.data.data(), network_.vocabulary(), hidden.columns, head.columns}, logits_view(), /*add=*/false,
                 {}, ProductPart::kWhole, stream_);
}

void CudaGradientPass::logits(CudaView out) const {
  launch_rows(out.rows, SoftcapRows{logits_view(), network_.head.softcap, out}, stream_);
}

double CudaGradientPass::loss() const {
  std::vector<float> losses(static_cast<size_t>(batch_.rows()));
  check_cuda(
      cudaMemcpyAsync(losses.data(), losses_.data(), losses.size() * sizeof(float), cudaMemcpyDeviceToHost, stream_));
  stream_.wait();
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

double CudaGradientPass::forward_loss(const CudaTargets& targets) {
  launch_loss_backward(logits_view(), network_.head.softcap, targets, logit_gradients(), losses_.data(), stream_);
  return loss();
}

}  // namespace thimble
