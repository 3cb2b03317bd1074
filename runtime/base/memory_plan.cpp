// memory_plan.cpp: counts what CudaModel, CudaForward, CudaScorer, CudaGenerator, CudaHessianCollector, CudaInputPairs,
// CudaFloatModel, CudaGradients and CudaDivergencePass allocate; a buffer that is added there is added here
// (tests/runtime/cuda/cuda_memory_test.cpp, tests/gptq/statistics/cuda_loss_statistics_test.cpp and
// tests/gptq/factor/cuda_input_pairs_test.cpp compare the two).
#include "runtime/base/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "runtime/base/count_text.h"
#include "runtime/base/error.h"
#include "runtime/cuda/kernels/cuda_devices.h"
#include "runtime/cuda/kernels/cuda_shape.h"
#include "runtime/families/golf/golf_layout.h"
#include "runtime/tensor/host_device.h"

namespace thimble {
namespace {

// Arrays from this size on have pages of their own, smaller ones share them.
constexpr int64_t kPageBytes = int64_t{2} << 20, kOwnPagesFrom = int64_t{1} << 20, kSharedUnit = 512;
constexpr uint64_t kReserveBytes = uint64_t{128} << 20;
constexpr int64_t kGramTile = 128, kGramPieceTokens = 2048;
constexpr int64_t kDotPiece = 256;                // of CudaColumnDots
constexpr int64_t kRowsPerGradientBatch = 16384;  // two waves of tiles on the largest devices

// Products of `columns` columns that wait to be added; 0 without columns.
uint64_t gram_bytes_of(int64_t columns, int64_t length, int64_t sequences) {
  int64_t side = divide_up(columns, kGramTile), pieces = sequences * divide_up(length, kGramPieceTokens);
  auto piece_bytes = static_cast<uint64_t>(side * (side + 1) / 2 * kGramTile * kGramTile) * sizeof(float);
  if (piece_bytes == 0) return 0;
  auto affordable = std::max<uint64_t>(1, kMostGramBytes / piece_bytes);
  return piece_bytes * std::min(affordable, static_cast<uint64_t>(pieces));
}

// Adds up arrays under the name of what they are for.
class Counter {
 public:
  Counter(const ModelConfig& config, Numerics numerics)
      : c_(config), s_(cuda_shape(config)), element_(numerics == Numerics::kBf16 ? 2 : 4) {}

  void add(const std::string& what, int64_t count, int64_t element_bytes) {
    int64_t bytes = count * element_bytes;
    bytes = round_up(bytes, bytes < kOwnPagesFrom ? kSharedUnit : kPageBytes);
    auto found = std::ranges::find(uses_, what, &MemoryUse::what);
    if (found == uses_.end()) found = uses_.insert(uses_.end(), {what, kPageBytes});  // a page of small arrays
    found->bytes += static_cast<uint64_t>(bytes);
  }

  // CudaModel, and what its loading takes.
  void add_weights() {
    auto matrix = [&](int64_t rows, int64_t columns) { add("weights", rows * columns, element_); };
    for (int copies = c_.tie_embeddings ? 1 : 2; copies > 0; --copies) matrix(s_.vocabulary, s_.width);
    if (s_.bigram_width > 0) {
      matrix(c_.bigram_vocab_size, s_.bigram_width);
      matrix(s_.width, s_.bigram_width);
      matrix(c_.bigram_vocab_size, s_.width);
    }
    if (s_.value_width > 0) {
      matrix(c_.vocab_size, s_.value_width);
      matrix(s_.kv_columns, s_.value_width);
      matrix(c_.vocab_size, s_.kv_columns);
    }
    for (int64_t i = 0; i < c_.num_layers; ++i) {
      matrix(s_.query_columns + 2 * s_.kv_columns, s_.width);
      matrix(s_.width, s_.query_columns);
      matrix(s_.mlp_width, s_.width);
      matrix(s_.width, s_.mlp_width);
      for (int vector = 0; vector < 7; ++vector) add("weights", s_.width, sizeof(float));
    }
    for (int slot = 0; slot < 2; ++slot) add("weights", int64_t{4} << 20, 1);
  }

  // CudaForward.
  void add_forward(int64_t context, int64_t rows, int64_t needed) {
    const std::string what = "workspace";
    int64_t parts = divide_up(s_.width, 64);
    add(what, context * (c_.rope_dims / 2), 8);
    for (int64_t stream = 0; stream < 2 + c_.encoder_layers(); ++stream) add(what, rows * s_.width, element_);
    add(what, rows * s_.query_columns, element_);
    add(what, rows * s_.mlp_width, element_);
    add(what, rows * parts, sizeof(float));
    add(what, needed * s_.width, element_);
    add(what, needed * parts, sizeof(float));
    for (int per_row = 0; per_row < 2; ++per_row) add(what, needed, sizeof(float));
    add(what, needed * divide_up(s_.vocabulary, 64), 8);
  }

  // CudaKeyValueCache.
  void add_cache(int64_t rows, int64_t layers) { add("key/value cache", rows * layers * 2 * s_.kv_columns, element_); }

  // CudaScorer.
  void add_scorer(int64_t context, int64_t windows) {
    int64_t rows = windows * context;
    add_forward(context, rows, rows);
    add_cache(rows, 1);
    for (int slot = 0; slot < 2; ++slot)
      for (int64_t bytes : {2, 2, 4}) add("tokens and scores", rows, bytes);
  }

  // CudaGenerator.
  void add_generator(int64_t context, int64_t sequences) {
    add_forward(context, sequences, sequences);
    add_cache(sequences * context, c_.num_layers);
    add("tokens and scores", sequences * context, 2);
    add("tokens and scores", sequences * s_.vocabulary, sizeof(float));
  }

  // CudaHessianCollector: `live_sums` times the packed triangles, and products.
  void add_hessians(int64_t length, int64_t sequences, int64_t live_sums) {
    std::vector<int64_t> inputs = {c_.bigram_vocab_size > 0 ? c_.bigram_dim : 0, c_.ve_layers.empty() ? 0 : c_.ve_dim};
    for (int64_t i = 0; i < c_.num_layers; ++i)
      inputs.insert(inputs.end(), {c_.model_dim, c_.model_dim, c_.model_dim, c_.mlp_dim()});
    for (int64_t columns : inputs)
      for (int64_t copy = 0; copy < (columns > 0 ? live_sums : 0); ++copy)
        add("Hessians", columns * (columns + 1) / 2, sizeof(double));
    add("products of activations", static_cast<int64_t>(gram_bytes(c_, length, sequences)), 1);
    add("activations", sequences * length * std::max({c_.model_dim, c_.mlp_dim(), c_.bigram_dim, c_.ve_dim}), element_);
    add("activations", sequences * length, 2);  // tokens
  }

  // CudaInputPairs without its models: passes over `resident` sequences, of which `batch` work at a time.
  void add_input_pairs(int64_t length, int64_t batch, int64_t resident, int64_t sequences) {
    const int64_t widest = std::max(c_.model_dim, c_.mlp_dim()), rows = batch * length;
    for (int model = 0; model < 2; ++model)
      for (int64_t first = 0; first < resident; first += batch) {
        const int64_t own = std::min(batch, resident - first) * length;
        add_forward(length, own, 1);
        add("activations", own * std::max({widest, c_.bigram_dim, c_.ve_dim}), element_);
      }
    add_cache(rows, 1);
    add("activations", rows * 2 * widest, element_);  // of both models side by side
    add("activations", sequences * length, 2);        // tokens
    add("Hessians", widest * (2 * widest + 1), sizeof(double));
    add("Hessians", widest * widest, sizeof(double));
    add("products of activations", static_cast<int64_t>(gram_bytes_of(2 * widest, length, batch)), 1);
  }

  // CudaFloatModel.
  void add_float_weights() {
    auto matrix = [&](int64_t rows, int64_t columns) { add("weights", rows * columns, sizeof(float)); };
    for (int copies = c_.tie_embeddings ? 1 : 2; copies > 0; --copies) matrix(c_.vocab_size, c_.model_dim);
    if (c_.bigram_vocab_size > 0) {
      matrix(c_.bigram_vocab_size, c_.bigram_dim);
      matrix(c_.model_dim, c_.bigram_dim);
    }
    if (!c_.ve_layers.empty()) {
      matrix(c_.vocab_size, c_.ve_dim);
      matrix(c_.kv_dim(), c_.ve_dim);
    }
    for (int64_t i = 0; i < c_.num_layers; ++i) {
      for (int square = 0; square < 2; ++square) matrix(c_.model_dim, c_.model_dim);
      for (int narrow = 0; narrow < 2; ++narrow) matrix(c_.kv_dim(), c_.model_dim);
      for (int wide = 0; wide < 2; ++wide) matrix(c_.mlp_dim(), c_.model_dim);
      for (int vector = 0; vector < 9; ++vector) matrix(1, c_.model_dim);
    }
  }

  // What CudaGradients keeps of a forward pass over windows of `positions`.
  void add_tape(int64_t positions, int64_t windows) {
    int64_t rows = windows * positions, ve = c_.ve_layers.empty() ? 0 : 1, bigrams = c_.bigram_vocab_size > 0 ? 1 : 0;
    auto matrices = [&](int64_t count, int64_t columns) {
      for (; count > 0; --count) add("activations", rows * columns, sizeof(float));
    };
    matrices(4 * c_.num_layers, c_.model_dim);
    matrices(2 * c_.num_layers, c_.kv_dim());
    matrices(c_.num_layers, c_.mlp_dim());
    matrices(4 + bigrams + c_.encoder_layers(), c_.model_dim);
    matrices(ve, c_.kv_dim());
    matrices(1, c_.vocab_size);
  }

  // What else CudaGradients needs, and those who collect statistics from it.
  void add_gradients(int64_t length, int64_t windows) {
    const std::string what = "workspace";
    int64_t positions = length - 1, rows = windows * positions, ve = c_.ve_layers.empty() ? 0 : 1;
    add(what, length * (c_.rope_dims / 2), 8);
    for (int64_t matrix = 0; matrix < (c_.xsa_last_n > 0 ? 10 : 9); ++matrix)
      add(what, rows * c_.model_dim, sizeof(float));
    for (int64_t matrix = 0; matrix < 4 + ve; ++matrix) add(what, rows * c_.kv_dim(), sizeof(float));
    for (int64_t columns : {c_.mlp_dim(), std::max(c_.bigram_dim, c_.ve_dim), c_.vocab_size, int64_t{1}})
      add(what, rows * columns, sizeof(float));
    for (int indices = 0; indices < 3; ++indices) add(what, rows, sizeof(int32_t));
    for (int scores = 0; scores < 2; ++scores)
      add("attention scores", windows * c_.num_heads * positions * round_up(positions, 4), sizeof(float));
    int64_t widest = std::max({c_.vocab_size, c_.mlp_dim(), c_.model_dim, c_.bigram_dim, c_.ve_dim});
    add("sums", windows * divide_up(positions, kDotPiece) * widest, sizeof(double));
    for (int64_t columns : {c_.vocab_size, 3 * c_.model_dim, c_.bigram_dim, c_.kv_dim(), c_.ve_dim})
      add("sums", columns, sizeof(double));
    for (int64_t i = 0; i < c_.num_layers; ++i)
      for (int64_t columns : {c_.model_dim, c_.model_dim, c_.model_dim, c_.kv_dim(), c_.kv_dim(), c_.mlp_dim()})
        add("sums", columns, sizeof(double));
    add("sums", c_.model_dim * (c_.model_dim + 1) / 2, sizeof(double));
    add("sums", static_cast<int64_t>(gram_bytes_of(c_.model_dim, length, windows)), 1);
  }

  std::vector<MemoryUse> take() { return std::move(uses_); }

 private:
  const ModelConfig& c_;
  CudaShape s_;
  int64_t element_;
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

uint64_t MemoryPlan::bytes() const {
  uint64_t sum = 0;
  for (const MemoryUse& use : uses) sum += use.bytes;
  return sum;
}

std::string MemoryPlan::text() const {
  std::string text = fmt::format("{} takes {} B of device memory at most: {} of {} tokens at a time", step,
                                 count_text(bytes()), counted(batch, unit), unit_tokens);
  for (const MemoryUse& use : uses) text += fmt::format(", {} {} B", use.what, count_text(use.bytes));
  return text;
}

Json to_json(const MemoryPlan& plan) {
  Json uses = Json::object();
  for (const MemoryUse& use : plan.uses) uses[use.what] = use.bytes;
  return {{"step", plan.step},
          {"unit", fmt::format("{}s of {} tokens", plan.unit, plan.unit_tokens)},
          {"batch", plan.batch},
          {"bytes", plan.bytes()},
          {"uses", uses}};
}

uint64_t usable_memory(uint64_t free_bytes, uint64_t limit_bytes) {
  uint64_t reserve = std::max(kReserveBytes, free_bytes / 20);
  uint64_t unreserved = free_bytes > reserve ? free_bytes - reserve : 0;
  return limit_bytes == kNoMemoryLimit ? unreserved : std::min(unreserved, limit_bytes);
}

uint64_t usable_memory(const Device& device) {
  uint64_t least = UINT64_MAX;
  for (int ordinal : device.ordinals)
    least = std::min(least, usable_memory(cuda_free_memory(ordinal), device.memory_limit_bytes));
  return least;
}

MemoryPlan plan_scoring(const ModelConfig& config, Numerics numerics, int64_t context, int64_t windows,
                        uint64_t usable_bytes) {
  return fit("scoring", "window", context, windows, usable_bytes, [&](int64_t batch) {
    Counter counter(config, numerics);
    counter.add_weights();
    counter.add_scorer(context, batch);
    return counter.take();
  });
}

MemoryPlan plan_generation(const ModelConfig& config, Numerics numerics, int64_t length, int64_t sequences,
                           uint64_t usable_bytes) {
  return fit("generation", "sequence", length, sequences, usable_bytes, [&](int64_t batch) {
    Counter counter(config, numerics);
    counter.add_weights();
    counter.add_generator(length, batch);
    return counter.take();
  });
}

MemoryPlan plan_text(const ModelConfig& config, Numerics numerics, int64_t context, int64_t prompt,
                     uint64_t usable_bytes) {
  return fit("generation", "text", context, 1, usable_bytes, [&](int64_t) {
    Counter counter(config, numerics);
    counter.add_weights();
    counter.add_generator(context, 1);
    counter.add_forward(context, prompt, 1);
    return counter.take();
  });
}

MemoryPlan plan_hessians(const ModelConfig& config, Numerics numerics, int64_t length, int64_t sequences,
                         int64_t live_sums, uint64_t usable_bytes) {
  return fit("Hessian collection", "sequence", length, sequences, usable_bytes, [&](int64_t batch) {
    Counter counter(config, numerics);
    counter.add_weights();
    counter.add_scorer(length, batch);
    counter.add_hessians(length, batch, live_sums);
    return counter.take();
  });
}

MemoryPlan plan_input_pairs(const ModelConfig& config, Numerics numerics, int64_t length, int64_t sequences,
                            int64_t most, bool keeps, uint64_t usable_bytes) {
  return fit("reading two models' inputs", "sequence", length, most, usable_bytes, [&](int64_t batch) {
    Counter counter(config, numerics);
    for (int model = 0; model < 2; ++model) counter.add_weights();
    counter.add_input_pairs(length, batch, keeps ? sequences : batch, sequences);
    return counter.take();
  });
}

std::optional<MemoryPlan> plan_kept_input_pairs(const ModelConfig& config, Numerics numerics, int64_t length,
                                                int64_t sequences, int64_t most, uint64_t usable_bytes) {
  try {
    return plan_input_pairs(config, numerics, length, sequences, most, /*keeps=*/true, usable_bytes / 2);
  } catch (const DeviceError&) {
    return std::nullopt;
  }
}

uint64_t gram_bytes(const ModelConfig& config, int64_t length, int64_t sequences) {
  uint64_t most = 0;
  for (int64_t columns : {config.model_dim, config.mlp_dim(), config.bigram_dim, config.ve_dim})
    most = std::max(most, gram_bytes_of(columns, length, sequences));
  return most;
}

MemoryPlan plan_divergence(const ModelConfig& config, int64_t length, int64_t sequences, uint64_t usable_bytes) {
  int64_t most = std::min(sequences, std::max<int64_t>(1, kRowsPerGradientBatch / length));
  return fit("distillation", "sequence", length, most, usable_bytes, [&](int64_t batch) {
    Counter counter(config, Numerics::kFp32);
    // The teacher, whose weights go once its logits are there; the student as it was and as it is.
    for (int model = 0; model < 3; ++model) counter.add_float_weights();
    counter.add("logits of the original", sequences * (length - 1) * config.vocab_size, sizeof(float));
    counter.add_tape(length - 1, batch);
    counter.add_gradients(length, batch);
    return counter.take();
  });
}

MemoryPlan plan_gradients(const ModelConfig& config, int64_t length, int64_t sequences, uint64_t usable_bytes) {
  int64_t most = std::min(sequences, std::max<int64_t>(1, kRowsPerGradientBatch / length));
  return fit("gradient collection", "sequence", length, most, usable_bytes, [&](int64_t batch) {
    Counter counter(config, Numerics::kFp32);
    counter.add_float_weights();
    counter.add_tape(length - 1, batch);
    counter.add_gradients(length, batch);
    return counter.take();
  });
}

}  // namespace thimble
