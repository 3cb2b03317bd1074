// cuda_hessians.cu: the forward pass on CUDA devices with CudaHessianCollector listening to its layers' inputs, part by
// part.
#include "gptq/statistics/cuda_hessians.h"

#include <algorithm>
#include <memory>

#include "gptq/statistics/hessian.cuh"
#include "gptq/statistics/hessian_sum.h"
#include "gptq/statistics/hessian_tree.h"
#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/cuda_window_batches.cuh"
#include "runtime/cuda/kernels/cuda_devices.h"

namespace thimble {
namespace {

constexpr int64_t kRowsPerTask = 64;

template <typename T>
class CollectingObserver final : public CudaInputObserver<T> {
 public:
  explicit CollectingObserver(int64_t first_sequence) : collector(kMostGramBytes, first_sequence) {}

  void on_linear_input(std::span<const std::string> weights, const T* x, int sequences, int positions, int columns,
                       cudaStream_t stream) override {
    collector.add(weights, x, columns, sequences, positions, columns, stream);
  }

  CudaHessianCollector collector;
};

// One device's share of the parts; on the current device.
template <typename T>
class PartCollector {
 public:
  PartCollector(const Weights& weights, Numerics numerics, const TokenSequences& sequences, int64_t batch,
                Progress& progress)
      : weights_(weights, numeric_policy(numerics), cuda_fusion_options(numeric_policy(numerics), sizeof(T))),
        sequences_(sequences),
        batch_(batch),
        progress_(progress) {}

  // The sums over the parts of a node.
  CudaHessianCollector collect(Share node) {
    return sum_of_node(
        node, [&](size_t part) { return collect_part(hessian_part(sequences_.count, part)); },
        [](CudaHessianCollector& left, CudaHessianCollector&& right) { left.merge(std::move(right)); });
  }

 private:
  CudaHessianCollector collect_part(Share part) {
    CudaHessianCollector collected = with_smaller_batches(batch_, [&](int64_t batch) {
      batch_ = batch;
      return run_part(part);
    });
    progress_.advance(static_cast<int64_t>(part.size()));
    return collected;
  }

  CudaHessianCollector run_part(Share part) {
    if (windows_ && windows_->windows() != batch_) windows_.reset();
    if (!windows_) windows_ = std::make_unique<CudaWindowBatches<T>>(weights_, sequences_.length, batch_);
    auto begin = static_cast<int64_t>(part.begin), count = static_cast<int64_t>(part.size());
    CollectingObserver<T> observer(begin);
    auto tokens = std::span(sequences_.tokens)
                      .subspan(part.begin * static_cast<size_t>(sequences_.length),
                               part.size() * static_cast<size_t>(sequences_.length));
    windows_->observe(tokens, count, sequences_.length - 1, sequences_.length, observer);
    observer.collector.free_workspace();
    return std::move(observer.collector);
  }

  CudaNetworkWeights<T> weights_;
  const TokenSequences& sequences_;
  int64_t batch_;
  Progress& progress_;
  std::unique_ptr<CudaWindowBatches<T>> windows_;
};

// The devices' sums of their nodes.
using NodeSums = std::vector<std::pair<Share, std::vector<SharedHessian>>>;

int64_t planned_batch(const Network& network, const Device& device, const TokenSequences& sequences, int ordinal,
                      size_t parts) {
  Share last = hessian_part(sequences.count, hessian_part_count(sequences.count) - 1);  // none is larger
  int64_t most = std::min(static_cast<int64_t>(last.size()), cuda_windows_per_batch(ordinal, sequences.length));
  uint64_t usable = usable_memory(CudaPlace(ordinal, device.memory_limit_bytes));
  return plan_hessians(network, device.numerics, sequences.length, most, live_sums(parts), usable).batch;
}

void add_sums(std::vector<SharedHessian>& left, std::vector<SharedHessian>&& right) {
  for (size_t i = 0; i < left.size(); ++i) {
    Hessian &sum = left[i].hessian, &added = right.at(i).hessian;
    parallel_chunks(sum.matrix.size(), kRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        for (int64_t c = 0; c <= r; ++c) sum.matrix.lower_row(r)[c] += added.matrix.lower_row(r)[c];
    });
    sum.token_count += added.token_count;
    sum.sequence_count += added.sequence_count;
  }
}

void divide_by_tokens(std::vector<SharedHessian>& hessians) {
  parallel_for(static_cast<int64_t>(hessians.size()), [&](int64_t i) {
    Hessian& hessian = hessians[static_cast<size_t>(i)].hessian;
    auto tokens = static_cast<double>(hessian.token_count);
    for (double& value : hessian.matrix.values()) value /= tokens;
  });
}

template <typename T>
HessianSet collect(const Weights& weights, const Device& device, const TokenSequences& sequences, Progress& progress) {
  size_t parts = hessian_part_count(sequences.count), devices = device.ordinals.size();
  std::vector<NodeSums> sums(devices);
  HessianSet whole;  // when one device has all parts
  run_in_threads(devices, [&](size_t d) {
    std::vector<Share> nodes = nodes_of_device(parts, d, devices);
    if (nodes.empty()) return;
    DeviceScope scope(device.ordinals[d]);
    int64_t batch =
        planned_batch(*weights.network, device, sequences, device.ordinals[d], share_of(parts, d, devices).size());
    PartCollector<T> collector(weights, device.numerics, sequences, batch, progress);
    for (Share node : nodes) {
      CudaHessianCollector sum = collector.collect(node);
      if (node.size() == parts)
        whole = std::move(sum).finish();
      else
        sums[d].emplace_back(node, std::move(sum).finish_sums());
    }
  });
  if (!whole.empty()) return whole;
  NodeSums all;
  for (NodeSums& of_device : sums) std::ranges::move(of_device, std::back_inserter(all));
  std::vector<SharedHessian> joined = join_nodes({0, parts}, all, add_sums);
  divide_by_tokens(joined);
  return share_hessians(std::move(joined));
}

}  // namespace

HessianSet collect_hessians_cuda(const std::shared_ptr<const Weights>& weights, const Device& device,
                                 const TokenSequences& sequences, Progress& progress) {
  progress.begin("collecting Hessians", sequences.count, "sequences");
  HessianSet hessians = with_cuda_type(
      device.numerics, [&]<typename T>(T*) { return collect<T>(*weights, device, sequences, progress); });
  progress.end();
  return hessians;
}

}  // namespace thimble
