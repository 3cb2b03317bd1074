// cuda_memory.cpp: adds up what cuda_sizes.h says that each class allocates.
#include "runtime/cuda/cuda_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "runtime/base/count_text.h"
#include "runtime/base/error.h"
#include "runtime/cuda/cuda_sizes.h"
#include "runtime/ops/vector_sums.h"
#include "runtime/tensor/host_device.h"

namespace thimble {
namespace {

// Arrays from this size on have pages of their own, smaller ones share them.
constexpr int64_t kPageBytes = int64_t{2} << 20, kOwnPagesFrom = int64_t{1} << 20, kSharedUnit = 512;
constexpr int64_t kRowsPerGradientBatch = 16384;          // two waves of tiles on the largest devices
constexpr int64_t kLoaderBytes = 2 * (int64_t{4} << 20);  // CudaWeightLoader's two pieces

// Adds up arrays under the name of what they are for.
class Counter {
 public:
  Counter(const Network& network, Numerics numerics)
      : network_(network),
        policy_(numeric_policy(numerics)),
        element_(cuda_element_bytes(numerics)),
        fusion_(fuse(network, cuda_fusion_options(policy_, element_))) {}

  void add(const std::string& what, int64_t count, int64_t element_bytes) {
    int64_t bytes = count * element_bytes;
    bytes = round_up(bytes, bytes < kOwnPagesFrom ? kSharedUnit : kPageBytes);
    auto found = std::ranges::find(uses_, what, &MemoryUse::what);
    if (found == uses_.end()) found = uses_.insert(uses_.end(), {what, kPageBytes});  // a page of small arrays
    found->bytes += static_cast<uint64_t>(bytes);
  }

  // CudaNetworkWeights, and what its loading takes.
  void add_weights() { add_weights(fusion_, element_); }
  void add_float_weights() { add_weights(fuse(network_, cuda_plain_options(sizeof(float))), sizeof(float)); }

  // CudaPass.
  void add_pass(const CudaPassShape& shape) {
    const CudaPassSizes sizes = cuda_pass_sizes(network_, fusion_, policy_, shape);
    const std::string what = "workspace";
    for (int64_t elements : sizes.slots) add(what, elements, element_);
    for (int64_t floats : sizes.squares) add(what, floats, sizeof(float));
    for (int64_t pairs : sizes.rotaries) add(what, pairs, 2 * sizeof(float));
    for (int64_t elements : {sizes.head_input, sizes.product_input}) add(what, elements, element_);
    for (int64_t floats : {sizes.head_squares, sizes.loss_rows, sizes.loss_rows}) add(what, floats, sizeof(float));
    add(what, sizes.loss_parts, 2 * sizeof(float));
  }

  // CudaCache.
  void add_cache(int64_t sequences, int64_t capacity, bool shares_one) {
    const CudaCacheSizes sizes = cuda_cache_sizes(network_, sequences, capacity, shares_one);
    for (int64_t elements : sizes.caches) add("key/value cache", elements, element_);
    for (int64_t elements : sizes.states)
      if (!shares_one) add("key/value cache", elements, element_);
  }

  // CudaWindowBatches.
  void add_windows(int64_t context, int64_t windows) {
    const int64_t rows = cuda_window_rows(context, windows);
    add_pass({context, rows, rows, /*stepping=*/false});
    add_cache(windows, context, /*shares_one=*/true);
    for (int slot = 0; slot < 2; ++slot)
      for (int64_t bytes : {sizeof(int32_t), sizeof(int32_t), sizeof(float)}) add("tokens and scores", rows, bytes);
  }

  // CudaSequences.
  void add_sequences(int64_t context, int64_t sequences) {
    add_pass({context, sequences, sequences, /*stepping=*/true});
    add_cache(sequences, context, /*shares_one=*/false);
    add("tokens and scores", cuda_text_tokens(context, sequences), sizeof(int32_t));
    add("tokens and scores", cuda_text_logits(network_, sequences), sizeof(float));
  }
  // Its pass over a prompt.
  void add_prompt(int64_t context, int64_t prompt) { add_pass({context, prompt, 1, /*stepping=*/false}); }

  // CudaHessianCollector: `live_sums` times the packed triangles, and products; and inputs that a pass shows.
  void add_hessians(int64_t length, int64_t sequences, int64_t live_sums) {
    for (const LinearInput& input : network_.linear_inputs()) {
      const int64_t columns = network_.width_of(input.value);
      for (int64_t copy = 0; copy < live_sums; ++copy) add("Hessians", columns * (columns + 1) / 2, sizeof(double));
    }
    add("products of activations", static_cast<int64_t>(gram_bytes(network_, length, sequences)), 1);
    add_shown(length, sequences);
    add("activations", sequences * length, sizeof(int32_t));  // tokens
  }
  void add_shown(int64_t length, int64_t sequences) {
    add("activations", cuda_shown_elements(network_, sequences * length), element_);
  }

  // CudaInputPairs without its models: passes over `resident` sequences, of which `batch` work at a time.
  void add_input_pairs(int64_t length, int64_t batch, int64_t resident, int64_t sequences) {
    for (int model = 0; model < 2; ++model)
      for (int64_t first = 0; first < resident; first += batch) {
        const int64_t own = std::min(batch, resident - first);
        add_pass({length, own * length, 1, /*stepping=*/false});
        add_shown(length, own);
      }
    add_cache(batch, length, /*shares_one=*/true);
    const int64_t widest = cuda_shown_elements(network_, 1);
    add("activations", batch * length * 2 * widest, element_);  // of both models side by side
    add("activations", sequences * length, sizeof(int32_t));    // tokens
    add("Hessians", widest * (2 * widest + 1), sizeof(double));
    add("Hessians", widest * widest, sizeof(double));
    add("products of activations", static_cast<int64_t>(cuda_gram_bytes(2 * widest, length, batch, kMostGramBytes)), 1);
  }

  // CudaGradientPass over windows of `length` - 1 positions, CudaVectorSums, and those who collect statistics.
  void add_gradients(const PassOptions& options, int64_t length, int64_t windows) {
    const int64_t positions = length - 1, rows = windows * positions;
    const CudaGradientSizes sizes =
        cuda_gradient_sizes(network_, plan_pass(network_, options), length, windows, positions);
    for (int64_t floats : sizes.slots) add("activations", floats, sizeof(float));
    for (int64_t pairs : sizes.rotaries) add("workspace", pairs, 2 * sizeof(float));
    for (int copy = 0; copy < 2; ++copy) {
      add("workspace", sizes.logits, sizeof(float));
      add("attention scores", sizes.scores, sizeof(float));
      if (options.has_vector_gradients || options.reads_linear_outputs) add("workspace", sizes.scratch, sizeof(float));
    }
    for (int per_row = 0; per_row < 3; ++per_row) add("workspace", rows, sizeof(float));  // losses, tokens, targets
    const int64_t attended = widest_attention();
    add("workspace", rows * attended, sizeof(float));  // outputs before XSA
    add("sums", sizes.sums, sizeof(double));
    add("sums", VectorSumLayout(network_).count(), sizeof(double));
    int64_t of_outputs = network_.vocabulary();
    for (const Node& node : network_.nodes) of_outputs += network_.width_of(node.output);
    add("sums", of_outputs, sizeof(double));
    const int64_t width = network_.width_of(network_.head.hidden);
    add("sums", width * (width + 1) / 2, sizeof(double));
    add("sums", static_cast<int64_t>(cuda_gram_bytes(width, length, windows, kMostGramBytes)), 1);
  }

  std::vector<MemoryUse> take() { return std::move(uses_); }

 private:
  void add_weights(const Fusion& fusion, int64_t element) {
    const CudaWeightSizes sizes = cuda_weight_sizes(network_, fusion);
    for (const auto* matrices : {&sizes.matrices, &sizes.projections, &sizes.tables})
      for (const CudaMatrixSize& size : *matrices) add("weights", size.rows * size.columns, element);
    for (const auto* vectors : {&sizes.vectors, &sizes.biases, &sizes.scales})
      for (int64_t count : *vectors) add("weights", count, sizeof(float));
    add("weights", kLoaderBytes, 1);
  }

  int64_t widest_attention() const {
    int64_t widest = 0;
    for (const Node& node : network_.nodes)
      if (const auto* attention = std::get_if<op::Attention>(&node.operation); attention && attention->exclusive)
        widest = std::max(widest, network_.width_of(node.output));
    return widest;
  }

  const Network& network_;
  NumericPolicy policy_;
  int64_t element_;
  Fusion fusion_;
  std::vector<MemoryUse> uses_;
};

// The largest batch up to `most` whose uses fit.
MemoryPlan fit(const std::string& step, const std::string& unit, int64_t unit_tokens, int64_t most,
               uint64_t usable_bytes, const std::function<std::vector<MemoryUse>(int64_t batch)>& uses_of) {
  auto planned = [&](int64_t batch) { return MemoryPlan{step, unit, unit_tokens, batch, uses_of(batch)}; };
  MemoryPlan least = planned(1);
  if (least.bytes() > usable_bytes)
    throw DeviceError(fmt::format(
        "CUDA: out of device memory: {}; that is the smallest batch, and {} B may be used: what is free less a "
        "reserve, at most --device-memory",
        least.text(), count_text(usable_bytes)));
  // More never take less, so the answer is found by halving: `fits` does, what is above `beyond` does not.
  int64_t fits = 1, beyond = std::max<int64_t>(1, most) + 1;
  while (beyond - fits > 1) {
    int64_t middle = fits + (beyond - fits) / 2;
    (planned(middle).bytes() <= usable_bytes ? fits : beyond) = middle;
  }
  return planned(fits);
}

}  // namespace

uint64_t usable_memory(const CudaPlace& place) {
  return usable_memory(cuda_free_memory(place.ordinal), place.memory_limit_bytes);
}

MemoryPlan plan_scoring(const Network& network, Numerics numerics, int64_t context, int64_t windows,
                        uint64_t usable_bytes) {
  return fit("scoring", "window", context, windows, usable_bytes, [&](int64_t batch) {
    Counter counter(network, numerics);
    counter.add_weights();
    counter.add_windows(context, batch);
    return counter.take();
  });
}

MemoryPlan plan_generation(const Network& network, Numerics numerics, int64_t length, int64_t sequences,
                           uint64_t usable_bytes) {
  return fit("generation", "sequence", length, sequences, usable_bytes, [&](int64_t batch) {
    Counter counter(network, numerics);
    counter.add_weights();
    counter.add_sequences(length, batch);
    return counter.take();
  });
}

MemoryPlan plan_text(const Network& network, Numerics numerics, int64_t context, int64_t prompt,
                     uint64_t usable_bytes) {
  return fit("generation", "text", context, 1, usable_bytes, [&](int64_t) {
    Counter counter(network, numerics);
    counter.add_weights();
    counter.add_sequences(context, 1);
    counter.add_prompt(context, prompt);
    return counter.take();
  });
}

MemoryPlan plan_hessians(const Network& network, Numerics numerics, int64_t length, int64_t sequences,
                         int64_t live_sums, uint64_t usable_bytes) {
  return fit("Hessian collection", "sequence", length, sequences, usable_bytes, [&](int64_t batch) {
    Counter counter(network, numerics);
    counter.add_weights();
    counter.add_windows(length, batch);
    counter.add_hessians(length, batch, live_sums);
    return counter.take();
  });
}

MemoryPlan plan_input_pairs(const Network& network, Numerics numerics, int64_t length, int64_t sequences, int64_t most,
                            bool keeps, uint64_t usable_bytes) {
  return fit("reading two models' inputs", "sequence", length, most, usable_bytes, [&](int64_t batch) {
    Counter counter(network, numerics);
    for (int model = 0; model < 2; ++model) counter.add_weights();
    counter.add_input_pairs(length, batch, keeps ? sequences : batch, sequences);
    return counter.take();
  });
}

std::optional<MemoryPlan> plan_kept_input_pairs(const Network& network, Numerics numerics, int64_t length,
                                                int64_t sequences, int64_t most, uint64_t usable_bytes) {
  try {
    return plan_input_pairs(network, numerics, length, sequences, most, /*keeps=*/true, usable_bytes / 2);
  } catch (const DeviceError&) {
    return std::nullopt;
  }
}

uint64_t gram_bytes(const Network& network, int64_t length, int64_t sequences) {
  return cuda_gram_bytes(cuda_shown_elements(network, 1), length, sequences, kMostGramBytes);
}

PassOptions loss_statistics_options() { return {.has_backward = true}; }
PassOptions divergence_options() {
  return {.has_backward = true, .reads_linear_outputs = true, .has_vector_gradients = true};
}

MemoryPlan plan_divergence(const Network& network, int64_t length, int64_t sequences, uint64_t usable_bytes) {
  int64_t most = std::min(sequences, std::max<int64_t>(1, kRowsPerGradientBatch / length));
  return fit("distillation", "sequence", length, most, usable_bytes, [&](int64_t batch) {
    Counter counter(network, Numerics::kFp32);
    // The teacher, whose weights go once its logits are there; the student as it was and as it is.
    for (int model = 0; model < 3; ++model) counter.add_float_weights();
    counter.add("logits of the original", sequences * (length - 1) * network.vocabulary(), sizeof(float));
    counter.add_gradients(divergence_options(), length, batch);
    return counter.take();
  });
}

MemoryPlan plan_gradients(const Network& network, int64_t length, int64_t sequences, uint64_t usable_bytes) {
  int64_t most = std::min(sequences, std::max<int64_t>(1, kRowsPerGradientBatch / length));
  return fit("gradient collection", "sequence", length, most, usable_bytes, [&](int64_t batch) {
    Counter counter(network, Numerics::kFp32);
    counter.add_float_weights();
    counter.add_gradients(loss_statistics_options(), length, batch);
    return counter.take();
  });
}

}  // namespace thimble
