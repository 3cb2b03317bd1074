// statistics_sum.cu: passes on CUDA devices, part by part. CudaHessianCollector listens to the inputs of layers on the
// way forward; on the way back from the loss FisherSums listens to gradients, and CudaHessianCollector to the head.
#include "gptq/statistics/statistics_sum.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>

#include "gptq/statistics/hessian.cuh"
#include "runtime/cuda/cuda_gradient_pass.cuh"
#include "runtime/cuda/cuda_models.h"
#include "runtime/cuda/cuda_window_batches.cuh"
#include "runtime/cuda/kernels/cuda_devices.h"

namespace thimble {
namespace {

template <typename T>
class CollectingObserver final : public CudaInputObserver<T> {
 public:
  // `first_layers`: of the inputs to collect. It must outlive the object.
  CollectingObserver(const std::set<std::string>& first_layers, int64_t first_sequence)
      : collector(kMostGramBytes, first_sequence), first_layers_(first_layers) {}

  void on_linear_input(std::span<const std::string> weights, const T* x, int sequences, int positions, int columns,
                       cudaStream_t stream) override {
    if (first_layers_.contains(weights[0])) collector.add(weights, x, columns, sequences, positions, columns, stream);
  }

  CudaHessianCollector collector;

 private:
  const std::set<std::string>& first_layers_;
};

// FisherCollector for gradients in device memory. Squares are summed in float64 over pieces of sequences, these in
// order: the same bits however the sequences are grouped into batches.
template <typename T>
class FisherSums final : public CudaGradientObserver<T> {
 public:
  using typename CudaGradientObserver<T>::ConstView;

  // `first_sequence`: the number in errors of the first sequence. `dots` lends its memory; both must outlive the
  // object.
  FisherSums(const Network& network, int64_t first_sequence, CudaColumnDots& dots)
      : network_(network), sequence_(first_sequence), dots_(dots) {}

  void on_output_gradient(const std::string& weight, ConstView gradient, ConstView, const BatchShape& batch,
                          cudaStream_t stream) override {
    add_squares(weight, /*is_lookup=*/false, gradient, batch, stream);
  }
  void on_head_gradient(const std::string& weight, ConstView gradient, ConstCudaView, const BatchShape& batch,
                        cudaStream_t stream) override {
    add_squares(weight, /*is_lookup=*/false, gradient, batch, stream);
  }
  void on_lookup_gradient(const std::string& table, std::span<const int32_t> rows, ConstView gradient,
                          const BatchShape& batch, cudaStream_t stream) override {
    add_squares(table, /*is_lookup=*/true, gradient, batch, stream);
    std::vector<int64_t>& counts = row_counts_[table];
    counts.resize(static_cast<size_t>(network_.matrix(network_.id_of(table)).rows));
    for (int32_t row : rows) ++counts[static_cast<size_t>(row)];
  }
  // After each batch.
  void end_batch(const BatchShape& batch) { sequence_ += batch.sequences; }

  // Waits for the stream. All but the head's Hessian. A gradient that was not finite is an Error (bad input). The
  // object is spent afterwards.
  LossStatistics finish(cudaStream_t stream) && {
    if (sums_.empty()) throw Error(ExitCode::kBadInput, "no calibration tokens reached the loss");
    require_finite(stream);
    LossStatistics statistics;
    for (const Sum& sum : sums_) {
      Fisher& fisher = (sum.is_lookup ? statistics.lookup_fisher : statistics.output_fisher)[sum.name];
      fisher.token_count = sum.token_count;
      fisher.mean_square.resize(static_cast<size_t>(sum.columns));
      download(std::span(fisher.mean_square), static_cast<const double*>(sum.squares.data()), stream);
    }
    check_cuda(cudaStreamSynchronize(stream));
    divide_by_tokens(statistics);
    statistics.row_counts = std::move(row_counts_);
    return statistics;
  }

 private:
  struct Sum {
    std::string name;
    bool is_lookup = false;
    int64_t columns = 0, token_count = 0;
    DeviceArray<double> squares;
    DeviceArray<unsigned long long> first_bad;
  };

  void add_squares(const std::string& name, bool is_lookup, ConstView gradient, const BatchShape& batch,
                   cudaStream_t stream) {
    auto found = std::ranges::find_if(sums_, [&](const Sum& s) { return s.name == name && s.is_lookup == is_lookup; });
    if (found == sums_.end()) {
      found = sums_.insert(sums_.end(), {name, is_lookup, gradient.columns, 0, DeviceArray<double>(gradient.columns),
                                         DeviceArray<unsigned long long>(1)});
      check_cuda(cudaMemsetAsync(found->squares.data(), 0, found->squares.bytes(), stream));
      check_cuda(cudaMemsetAsync(found->first_bad.data(), 0xff, found->first_bad.bytes(), stream));
    }
    if (found->columns != gradient.columns)
      throw Error(ExitCode::kInternal, "layer '" + name + "': the shape of its gradients changed");
    dots_.add(gradient, gradient, batch, found->squares.data(), {found->first_bad.data(), sequence_}, stream);
    found->token_count += gradient.rows;
  }

  // Of the matrices with such gradients, the error names the first one that the pass comes to in the first sequence
  // that has any.
  void require_finite(cudaStream_t stream) const {
    const Sum* first = nullptr;
    int64_t sequence = 0, place = 0;  // the latter within the sequence
    for (const Sum& sum : sums_) {
      unsigned long long bad = 0;
      download(std::span(&bad, 1), static_cast<const unsigned long long*>(sum.first_bad.data()), stream);
      check_cuda(cudaStreamSynchronize(stream));
      if (bad == CudaBadTerm::kNone) continue;
      const int64_t number = static_cast<int64_t>(bad), per_sequence = CudaBadTerm::kPositions * sum.columns;
      if (first && sequence <= number / per_sequence) continue;
      first = &sum;
      sequence = number / per_sequence;
      place = number % per_sequence;
    }
    if (first)
      throw Error(ExitCode::kBadInput, "layer '" + first->name + "': the gradient is not finite at sequence " +
                                           std::to_string(sequence) + ", position " +
                                           std::to_string(place % CudaBadTerm::kPositions) + ", output " +
                                           std::to_string(place / CudaBadTerm::kPositions));
  }

  const Network& network_;
  int64_t sequence_;
  CudaColumnDots& dots_;
  std::vector<Sum> sums_;  // in the order of the pass
  RowCounts row_counts_;
};

// collect(part) for one part of the sequences after another, on the current device: what run(pass, batch, the part's
// sequences) gives with up to `batch` sequences at a time, fewer where memory is scarce. The pass is made when it is
// needed, by make_pass(batch).
template <typename MakePass, typename Run>
auto part_collector(const TokenSequences& sequences, int64_t batch, Progress& progress, MakePass make_pass, Run run) {
  return [=, &sequences, &progress, pass = decltype(make_pass(batch))()](size_t part) mutable {
    const Share share = hessian_part(sequences.count, part);
    auto collected = with_smaller_batches(batch, [&](int64_t fewer) {
      if (fewer != batch) pass.reset();  // with its memory
      batch = fewer;
      if (!pass) pass = make_pass(batch);
      return run(*pass, batch, share);
    });
    progress.advance(static_cast<int64_t>(share.size()));
    return collected;
  };
}

// Of the largest part.
int64_t most_sequences(const TokenSequences& sequences) {
  return static_cast<int64_t>(hessian_part(sequences.count, hessian_part_count(sequences.count) - 1).size());
}

std::span<const Token> tokens_of(const TokenSequences& sequences, int64_t first, int64_t count) {
  return std::span(sequences.tokens)
      .subspan(static_cast<size_t>(first * sequences.length), static_cast<size_t>(count * sequences.length));
}

template <typename T>
CudaHessianCollector hessians_of(CudaWindowBatches<T>& pass, const std::set<std::string>& first_layers,
                                 const TokenSequences& sequences, Share part) {
  const auto first = static_cast<int64_t>(part.begin), count = static_cast<int64_t>(part.size());
  CollectingObserver<T> observer(first_layers, first);
  pass.observe(tokens_of(sequences, first, count), count, sequences.length - 1, sequences.length, observer);
  observer.collector.free_workspace();
  return std::move(observer.collector);
}

PassOptions loss_statistics_options(Keeps keeps) { return {.has_backward = true, .keeps = keeps}; }

CudaPassPlan plan_loss_statistics(const std::shared_ptr<const Network>& network, Numerics numerics, int64_t length,
                                  int64_t sequences, uint64_t usable_bytes) {
  auto allocate = [&]<typename T>(T*, int64_t batch, Keeps keeps) {
    const CudaNetworkWeights<T> weights(network, {}, cuda_plain_options(sizeof(T)));
    const CudaGradientPass<T> pass(weights, loss_statistics_options(keeps), length, batch, length - 1);
    const int64_t width = network->width_of(network->head.hidden);
    const std::string names[] = {network->matrix(network->head.weight).name};
    CudaHessianCollector head;
    head.reserve_sum(names, width);
    head.reserve_products(width, batch, length - 1);
  };
  const int64_t most = std::min(sequences, gradient_batch(length));
  return plan_gradient_pass("gradient collection", length, most, usable_bytes, [&](int64_t batch, Keeps keeps) {
    with_gradient_type(numerics, [&]<typename T>(T* type) { allocate(type, batch, keeps); });
  });
}

void merge(CudaHessianCollector& left, CudaHessianCollector&& right) { left.merge(std::move(right)); }

// The devices' sums of their nodes.
using NodeSums = std::vector<std::pair<Share, CudaHessianCollector>>;

// Those of one device, which is the current one.
template <typename T>
NodeSums sums_of_nodes(const Weights& weights, const Device& device, const TokenSequences& sequences,
                       std::span<const LinearInput> inputs, std::span<const Share> nodes, const CudaPlace& place,
                       Progress& progress) {
  const int64_t most = std::min(most_sequences(sequences), cuda_windows_per_batch(place.ordinal, sequences.length));
  const int64_t live = live_sums(nodes);
  const int64_t planned =
      plan_hessians(weights.network, device.numerics, sequences.length, inputs, most, live, usable_memory(place)).batch;
  std::set<std::string> first_layers;
  for (const LinearInput& input : inputs) first_layers.insert(weights.network->matrix(input.readers[0]).name);
  const NumericPolicy policy = numeric_policy(device.numerics);
  const CudaNetworkWeights<T> on_device(weights, policy, cuda_fusion_options(policy, sizeof(T)));
  auto collect = part_collector(
      sequences, planned, progress,
      [&](int64_t batch) { return std::make_unique<CudaWindowBatches<T>>(on_device, sequences.length, batch); },
      [&](CudaWindowBatches<T>& pass, int64_t, Share part) {
        return hessians_of(pass, first_layers, sequences, part);
      });
  NodeSums sums;
  for (Share node : nodes)
    sums.emplace_back(node, sum_of_node(
                                node, [&](size_t part) { return collect(part); }, merge));
  return sums;
}

template <typename T>
void run_batch(CudaGradientPass<T>& pass, const Network& network, const TokenSequences& sequences, int64_t first,
               const BatchShape& batch, FisherSums<T>& fisher, CudaHessianCollector& head) {
  const int64_t length = sequences.length;
  const std::span<const Token> tokens = tokens_of(sequences, first, batch.sequences);
  pass.forward(tokens, length, batch);
  const std::string names[] = {network.matrix(network.head.weight).name};
  const BasicCudaView<const T> input = pass.head_input();
  head.add(names, input.data, input.stride, batch.sequences, batch.positions, input.columns, pass.stream());
  std::vector<int32_t> next;
  for (int64_t s = 0; s < batch.sequences; ++s) {
    auto of_sequence = tokens.subspan(static_cast<size_t>(s * length + 1), static_cast<size_t>(batch.positions));
    next.insert(next.end(), of_sequence.begin(), of_sequence.end());
  }
  DeviceArray<int32_t> targets{std::span<const int32_t>(next)};
  pass.backward(next_token_targets(targets.data()), fisher, nullptr);
  fisher.end_batch(batch);
  check_cuda(cudaStreamSynchronize(pass.stream()));  // `targets` goes
}

template <typename T>
LossStatistics losses_of(CudaGradientPass<T>& pass, const Network& network, const TokenSequences& sequences,
                         int64_t batch, Share part) {
  auto first = static_cast<int64_t>(part.begin), end = static_cast<int64_t>(part.end);
  FisherSums<T> fisher(network, first, pass.column_dots());
  CudaHessianCollector head(kMostGramBytes, first);
  for (int64_t s = first; s < end; s += batch)
    run_batch(pass, network, sequences, s, {std::min(batch, end - s), sequences.length - 1}, fisher, head);
  LossStatistics statistics = std::move(fisher).finish(pass.stream());
  statistics.head = std::move(head).finish();
  return statistics;
}

// Those of one device, which is the current one.
template <typename T>
void collect_parts(const Weights& weights, Numerics numerics, const TokenSequences& sequences, Share share,
                   const CudaPlace& place, Progress& progress, std::vector<CalibrationStatistics>& parts) {
  const CudaPassPlan plan = plan_loss_statistics(weights.network, numerics, sequences.length, most_sequences(sequences),
                                                 usable_memory(place));
  const CudaNetworkWeights<T> on_device(weights, {}, cuda_plain_options(sizeof(T)));
  auto collect = part_collector(
      sequences, plan.memory.batch, progress,
      [&](int64_t batch) {
        return std::make_unique<CudaGradientPass<T>>(on_device, loss_statistics_options(plan.keeps), sequences.length,
                                                     batch, sequences.length - 1);
      },
      [&](CudaGradientPass<T>& pass, int64_t batch, Share part) {
        return losses_of(pass, *weights.network, sequences, batch, part);
      });
  for (size_t part = share.begin; part < share.end; ++part) parts[part].loss = collect(part);
}

}  // namespace

MemoryPlan plan_hessians(const std::shared_ptr<const Network>& network, Numerics numerics, int64_t length,
                         std::span<const LinearInput> inputs, int64_t sequences, int64_t live_sums,
                         uint64_t usable_bytes) {
  const NumericPolicy policy = numeric_policy(numerics);
  auto allocate = [&]<typename T>(T*, int64_t batch) {
    const CudaNetworkWeights<T> weights(network, policy, cuda_fusion_options(policy, sizeof(T)));
    CudaWindowBatches<T> pass(weights, length, batch);
    pass.reserve_shown();
    const DeviceArray<Token> tokens(batch * length, "tokens and scores");
    std::vector<CudaHessianCollector> live(static_cast<size_t>(live_sums));
    int64_t widest = 0;
    for (const LinearInput& input : inputs) {
      const std::string names[] = {network->matrix(input.readers[0]).name};
      const int64_t columns = network->width_of(input.value);
      for (CudaHessianCollector& collector : live) collector.reserve_sum(names, columns);
      widest = std::max(widest, columns);
    }
    if (!inputs.empty()) live[0].reserve_products(widest, batch, length);
  };
  return fit_memory_plan("Hessian collection", "sequence", length, sequences, usable_bytes, [&](int64_t batch) {
    return counted_allocations([&] { with_cuda_type(numerics, [&]<typename T>(T* type) { allocate(type, batch); }); });
  });
}

MemoryPlan plan_gradients(const std::shared_ptr<const Network>& network, Numerics numerics, int64_t length,
                          int64_t sequences, uint64_t usable_bytes) {
  return plan_loss_statistics(network, numerics, length, sequences, usable_bytes).memory;
}

HessianSet collect_hessians_cuda(const std::shared_ptr<const Weights>& weights, const Device& device,
                                 const TokenSequences& sequences, std::span<const LinearInput> inputs,
                                 Progress& progress) {
  const size_t parts = hessian_part_count(sequences.count), devices = device.ordinals.size();
  progress.begin("collecting Hessians", sequences.count, "sequences");
  std::vector<NodeSums> sums(devices);
  run_in_threads(devices, [&](size_t d) {
    const std::vector<Share> nodes = nodes_of_device(parts, d, devices);
    if (nodes.empty()) return;
    const CudaPlace place(device.ordinals[d], device.memory_limit_bytes);
    DeviceScope scope(place.ordinal);
    sums[d] = with_cuda_type(device.numerics, [&]<typename T>(T*) {
      return sums_of_nodes<T>(*weights, device, sequences, inputs, nodes, place, progress);
    });
  });
  NodeSums all;
  for (NodeSums& of_device : sums) std::ranges::move(of_device, std::back_inserter(all));
  HessianSet hessians = join_nodes({0, parts}, all, merge).finish();
  progress.end();
  return hessians;
}

LossStatistics collect_loss_statistics_cuda(const std::shared_ptr<const Weights>& weights, const Device& device,
                                            const TokenSequences& sequences, Progress& progress) {
  const size_t parts = hessian_part_count(sequences.count), devices = device.ordinals.size();
  progress.begin("collecting gradients", sequences.count, "sequences");
  std::vector<CalibrationStatistics> of_parts(parts);
  run_in_threads(devices, [&](size_t d) {
    const Share share = share_of(parts, d, devices);
    if (share.size() == 0) return;
    const CudaPlace place(device.ordinals[d], device.memory_limit_bytes);
    DeviceScope scope(place.ordinal);
    with_gradient_type(device.numerics, [&]<typename T>(T*) {
      collect_parts<T>(*weights, device.numerics, sequences, share, place, progress, of_parts);
    });
  });
  StatisticsSum sum;
  for (const CalibrationStatistics& part : of_parts) sum.add(part);
  progress.end();
  return std::move(sum).finish().loss;
}

}  // namespace thimble
