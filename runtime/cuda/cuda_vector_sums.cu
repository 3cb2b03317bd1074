// cuda_vector_sums.cu: see cuda_vector_sums.cuh.
#include "runtime/cuda/cuda_vector_sums.cuh"

#include <numeric>
#include <type_traits>

#include "runtime/cuda/cuda_sizes.h"

namespace thimble {
namespace {

using Sums = std::vector<double>;

double total(const Sums& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

void add_to(std::vector<double>& sums, const Sums& values) {
  sums.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) sums[i] += values[i];
}

}  // namespace

CudaVectorSums::CudaVectorSums(const Network& network) : network_(network) {
  int64_t count = 0;
  for (size_t i = 0; i < network.nodes.size(); ++i) {
    first_.emplace_back();
    for (int64_t columns : cuda_vector_sum_columns(network, i)) {
      first_.back().push_back(columns > 0 ? count : -1);
      count += columns;
    }
  }
  sums_ = DeviceArray<double>(count);
  if (count > 0) sums_.fill_zero();
}

double* CudaVectorSums::at(size_t node, int kind) const {
  const std::vector<int64_t>& of_node = first_[node];
  const auto k = static_cast<size_t>(kind);
  return k < of_node.size() && of_node[k] >= 0 ? sums_.data() + of_node[k] : nullptr;
}

void CudaVectorSums::set_zero(cudaStream_t stream) {
  if (sums_.count() > 0) check_cuda(cudaMemsetAsync(sums_.data(), 0, sums_.bytes(), stream));
}

std::vector<std::vector<double>> CudaVectorSums::read(const CudaNetworkWeights<float>& weights,
                                                      cudaStream_t stream) const {
  std::vector<double> all(static_cast<size_t>(sums_.count()));
  if (!all.empty())
    check_cuda(cudaMemcpyAsync(all.data(), sums_.data(), sums_.bytes(), cudaMemcpyDeviceToHost, stream));
  check_cuda(cudaStreamSynchronize(stream));
  std::vector<std::vector<double>> vectors(network_.vectors.size());
  auto sums_of = [&](size_t node, size_t kind) {
    const auto first = all.begin() + first_[node][kind];
    return Sums(first, first + cuda_vector_sum_columns(network_, node)[kind]);
  };
  auto of = [&](VectorId id) -> std::vector<double>& { return vectors[static_cast<size_t>(id)]; };
  for (size_t i = 0; i < network_.nodes.size(); ++i) {
    auto visit = [&](const auto& o) {
      using Op = std::decay_t<decltype(o)>;
      if constexpr (std::is_same_v<Op, op::Linear>) {
        if (o.bias != kAbsent) add_to(of(o.bias), sums_of(i, 0));
      } else if constexpr (std::is_same_v<Op, op::Add>) {
        if (o.scale == kAbsent) return;
        const Sums dots = sums_of(i, 0);
        add_to(of(o.scale), network_.vector(o.scale).count > 1 ? dots : Sums{total(dots)});
      } else if constexpr (std::is_same_v<Op, op::RmsNorm>) {
        if (o.gain != kAbsent) add_to(of(o.gain), sums_of(i, 0));
      } else if constexpr (std::is_same_v<Op, op::LayerNorm>) {
        add_to(of(o.weight), sums_of(i, 0));
        add_to(of(o.bias), sums_of(i, 1));
      } else if constexpr (std::is_same_v<Op, op::Mix>) {
        add_to(of(o.first), sums_of(i, 0));
        add_to(of(o.second), sums_of(i, 1));
      } else if constexpr (std::is_same_v<Op, op::Smear>) {
        add_to(of(o.gate), sums_of(i, 0));
      } else if constexpr (std::is_same_v<Op, op::Skip>) {
        // y = gate * x + (1 - gate) * (weight * a), or x + weight * a.
        Sums along = sums_of(i, 0);
        if (o.gate != kAbsent) {
          Sums by_gate = sums_of(i, 1);
          for (size_t c = 0; c < along.size(); ++c) {
            by_gate[c] -= static_cast<double>(weights.host_vector(o.weight)[c]) * along[c];
            along[c] *= static_cast<double>(1.0f - weights.host_vector(o.gate)[c]);
          }
          add_to(of(o.gate), by_gate);
        }
        add_to(of(o.weight), along);
      } else if constexpr (std::is_same_v<Op, op::Heads>) {
        if (o.head_gain == kAbsent && o.norm_gain == kAbsent) return;
        const Sums dots = sums_of(i, 0);
        const auto d = static_cast<size_t>(o.head_dim), heads = dots.size() / d;
        Sums of_heads(heads), of_columns(d);
        for (size_t h = 0; h < heads; ++h)
          for (size_t c = 0; c < d; ++c) {
            const double norm_gain =
                o.norm_gain == kAbsent ? 1 : static_cast<double>(weights.host_vector(o.norm_gain)[c]);
            const double head_gain =
                o.head_gain == kAbsent ? 1 : static_cast<double>(weights.host_vector(o.head_gain)[h]);
            of_heads[h] += dots[h * d + c] * norm_gain;
            of_columns[c] += dots[h * d + c] * head_gain;
          }
        if (o.head_gain != kAbsent) add_to(of(o.head_gain), of_heads);
        if (o.norm_gain != kAbsent) add_to(of(o.norm_gain), of_columns);
      }
    };
    std::visit(visit, network_.nodes[i].operation);
  }
  return vectors;
}

}  // namespace thimble
