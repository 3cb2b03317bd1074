// cuda_small_gradients.cu: one array for all sums, so that one copy brings them to the host.
#include <numeric>

#include "runtime/cuda/kernels/cuda_small_gradients.cuh"

namespace thimble {

CudaSmallGradients::CudaSmallGradients(const Model& model) : config_(model.config), layers_(model.layers.size()) {
  // First the places, as multiples of a double from null; then the array, when its length is known.
  std::vector<std::pair<double**, int64_t>> places;
  int64_t count = 0;
  auto place = [&](double*& at, int64_t columns, bool exists = true) {
    if (!exists) return;
    places.emplace_back(&at, count);
    count += columns;
  };
  int64_t width = config_.model_dim;
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    for (double** at : {&layer.q_gain, &layer.attn_scale, &layer.mlp_scale, &layer.mix_x, &layer.mix_x0})
      place(*at, width);
    place(layer.skip_weight, width, !model.layers[i].skip_weight.empty());
    place(layer.skip_gate, width, !model.layers[i].skip_gate.empty());
    place(layer.value_embedding, config_.kv_dim(), model.layers[i].value_embedding_scale != 0);
  }
  place(bigram_scale_, width, config_.bigram_vocab_size > 0);
  place(smear_gate_, width, config_.smear_gate);
  sums_ = DeviceArray<double>(count);
  for (auto [at, first] : places) *at = sums_.data() + first;
  sums_.fill_zero();
}

void CudaSmallGradients::set_zero(cudaStream_t stream) {
  check_cuda(cudaMemsetAsync(sums_.data(), 0, sums_.bytes(), stream));
}

SmallGradients CudaSmallGradients::read(cudaStream_t stream) const {
  std::vector<double> sums(static_cast<size_t>(sums_.count()));
  check_cuda(cudaMemcpyAsync(sums.data(), sums_.data(), sums_.bytes(), cudaMemcpyDeviceToHost, stream));
  check_cuda(cudaStreamSynchronize(stream));
  auto values = [&](const double* at, int64_t columns) {
    if (!at) return std::vector<double>();
    auto first = sums.begin() + (at - sums_.data());
    return std::vector<double>(first, first + columns);
  };
  auto total = [&](const double* at, int64_t columns) {
    std::vector<double> of_columns = values(at, columns);
    return std::accumulate(of_columns.begin(), of_columns.end(), 0.0);
  };
  int64_t width = config_.model_dim, head_dim = config_.head_dim();
  SmallGradients read;
  for (const Layer& from : layers_) {
    LayerGradients& to = read.layers.emplace_back();
    for (int64_t head = 0; head < config_.num_heads; ++head)
      to.q_gain.push_back(total(from.q_gain + head * head_dim, head_dim));
    to.attn_scale = values(from.attn_scale, width);
    to.mlp_scale = values(from.mlp_scale, width);
    to.mix_x = values(from.mix_x, width);
    to.mix_x0 = values(from.mix_x0, width);
    to.skip_weight = values(from.skip_weight, width);
    to.skip_gate = values(from.skip_gate, width);
    to.value_embedding_scale = total(from.value_embedding, config_.kv_dim());
  }
  read.bigram_scale = total(bigram_scale_, width);
  read.smear_gate = values(smear_gate_, width);
  return read;
}

}  // namespace thimble
