// input_pairs.cpp: see input_pairs.h.
#include "gptq/factor/input_pairs.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/cpu/cpu_pass.h"
#include "runtime/cpu/cpu_plans.h"
#include "runtime/cpu/gemm.h"
#include "runtime/tensor/host_device.h"

namespace thimble {
namespace {

constexpr int64_t kPairRowsPerTask = 64, kPairColumns = 256;  // of products by a triangle

// One model at one node of its pass over every sequence.
class PausedPasses {
 public:
  PausedPasses(const Weights& weights, const TokenSequences& tokens, int64_t sequences, ProductArithmetic arithmetic)
      : pass_(weights, tokens.length, gradient_policy(arithmetic)) {
    for (int64_t s = 0; s < sequences; ++s)
      pauses_.push_back({0, window_batch(tokens.sequence(s).first(static_cast<size_t>(tokens.length) - 1)), {}});
  }

  // The input of the sequence, valid until the next call.
  ConstMatrixView advance(size_t sequence, const LinearInput& input) {
    pass_.resume(std::move(pauses_[sequence]));
    pass_.run_to(input.first_reader);
    pauses_[sequence] = pass_.pause();
    return pass_.value(input.value);
  }

 private:
  CpuPass pass_;
  std::vector<CpuPass::Pause> pauses_;
};

class CpuInputPairs final : public InputPairs {
 public:
  CpuInputPairs(std::shared_ptr<const Weights> original, Weights quantized, const TokenSequences& tokens,
                int64_t sequences, ProductArithmetic arithmetic)
      : original_(std::move(original)),
        quantized_(std::move(quantized)),
        sequences_(static_cast<size_t>(sequences)),
        arithmetic_(arithmetic),
        of_quantized_(quantized_, tokens, sequences, arithmetic),
        of_original_(*original_, tokens, sequences, arithmetic) {}

  InputPair collect(const LinearInput& input) override {
    const std::string& reader = original_->network->matrix(input.readers[0]).name;
    const int64_t columns = original_->network->width_of(input.value);
    InputPair pair{SymmetricMatrix(columns), MatrixF64(columns, columns)};
    int64_t tokens = 0;
    for (size_t s = 0; s < sequences_; ++s) {
      const auto sequence = static_cast<int64_t>(s);
      const ConstMatrixView x = of_original_.advance(s, input), y = of_quantized_.advance(s, input);
      add_gram(y, reader, sequence, pair.hessian, arithmetic_);
      difference_.resize(x.rows, columns);
      for_each_row(x.rows, columns, [&](int64_t t) {
        for (int64_t k = 0; k < columns; ++k) difference_(t, k) = x.row(t)[k] - y.row(t)[k];
      });
      add_cross_products(difference_, y, reader, sequence, pair.drift, arithmetic_);
      tokens += x.rows;
    }
    forget_replaced();
    for (const std::span<double> sums : {pair.hessian.values(), pair.drift.values()})
      for (double& value : sums) value /= static_cast<double>(tokens);
    return pair;
  }

  void replace(const std::string& name, const StoredMatrix& values) override {
    const MatrixId id = quantized_.network->id_of(name);
    quantized_.matrices[static_cast<size_t>(id)] = values;
    replaced_.push_back(id);
  }

 private:
  // Passes do not come back to what has read its input: its values need not stay in memory.
  void forget_replaced() {
    for (MatrixId id : replaced_) quantized_.matrices[static_cast<size_t>(id)] = original_->matrix(id);
    replaced_.clear();
  }

  const std::shared_ptr<const Weights> original_;
  Weights quantized_;
  const size_t sequences_;
  const ProductArithmetic arithmetic_;
  PausedPasses of_quantized_, of_original_;
  Matrix difference_;               // (T, K) x - x~ of a sequence
  std::vector<MatrixId> replaced_;  // since the last input
};

// The transpose of U, which is lower triangular.
MatrixF64 transposed(const MatrixF64& upper) {
  MatrixF64 lower(upper.cols(), upper.rows());
  for_each_row(upper.rows(), upper.cols(), [&](int64_t i) {
    for (int64_t j = 0; j <= i; ++j) lower(i, j) = upper(j, i);
  });
  return lower;
}

// w + strength w drift U^T U, whose products are subtracted one from the other's place: signs change each time.
Matrix shifted(ConstMatrixView weights, const InputPair& pair, const HessianFactor& factor, const MatrixF64& lower,
               double strength) {
  const int64_t columns = weights.cols;
  Matrix shifted(weights.rows, columns);
  parallel_chunks(weights.rows, kPairRowsPerTask, [&](int64_t begin, int64_t end) {
    const int64_t rows = end - begin;
    MatrixF64 w(rows, columns), product(rows, columns), ordered(rows, columns);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t k = 0; k < columns; ++k) w(r, k) = weights.row(begin + r)[k];
    subtract_product(w, pair.drift, product);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < columns; ++i) ordered(r, i) = -product(r, factor.order[static_cast<size_t>(i)]);
    std::ranges::fill(product.values(), 0.0);
    const auto columns_of = [](MatrixF64& m, int64_t first, int64_t count) {
      return m.view().block_cols(first, count);
    };
    const auto part = [](const MatrixF64& m, int64_t row, int64_t count, int64_t column, int64_t width) {
      return m.view().block_rows(row, count).block_cols(column, width);
    };
    for (int64_t j = 0; j < columns; j += kPairColumns) {  // below the diagonal of U^T
      const int64_t width = std::min(kPairColumns, columns - j);
      subtract_product(columns_of(ordered, j, columns - j), part(lower, j, columns - j, j, width),
                       columns_of(product, j, width));
    }
    std::ranges::fill(ordered.values(), 0.0);
    for (int64_t j = 0; j < columns; j += kPairColumns) {  // above the diagonal of U
      const int64_t width = std::min(kPairColumns, columns - j);
      subtract_product(columns_of(product, 0, j + width), part(factor.upper, 0, j + width, j, width),
                       columns_of(ordered, j, width));
    }
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < columns; ++i) {
        const int64_t k = factor.order[static_cast<size_t>(i)];
        shifted(begin + r, k) = static_cast<float>(w(r, k) + strength * ordered(r, i));
      }
  });
  return shifted;
}

// Of one input: its pair, and what collects it or shifts weights by it.
uint64_t pair_bytes(const Network& network, const LinearInput& input, int64_t length) {
  const int64_t columns = network.width_of(input.value);
  int64_t rows = 0;
  for (MatrixId id : input.readers) rows += network.matrix(id).rows;
  const auto floats = [](int64_t count) { return static_cast<uint64_t>(count) * sizeof(float); };
  const uint64_t collecting = floats(columns * columns + columns * length);  // products; differences
  const int64_t tasks = std::min<int64_t>(thread_count(), divide_up(rows, kPairRowsPerTask));
  const uint64_t shifting =
      static_cast<uint64_t>((2 * columns + 3 * tasks * kPairRowsPerTask) * columns) * sizeof(double) +
      floats(2 * rows * columns);
  return factor_bytes(columns) + std::max(collecting, shifting);  // H's triangle, and the drift
}

}  // namespace

MemoryPlan plan_cpu_input_pairs(const Network& network, int64_t length, int64_t sequences, uint64_t weight_bytes) {
  uint64_t widest = 0;
  for (const LinearInput& input : inputs_of_layers(network))
    widest = std::max(widest, pair_bytes(network, input, length));
  const uint64_t paused = static_cast<uint64_t>(2 * sequences) * cpu_pause_bytes(network, length - 1);
  return {"cross terms",
          "sequence",
          length,
          sequences,
          {{"weights", weight_bytes},
           {"activations of two models", 2 * cpu_pass_bytes(network, length - 1, length) + paused},
           {"Hessian, drift, factor", widest}},
          /*is_host=*/true};
}

std::vector<LinearInput> inputs_of_layers(const Network& network) {
  std::vector<LinearInput> inputs = network.linear_inputs();
  std::erase_if(inputs, [&](const LinearInput& input) { return network.nodes[input.first_reader].layer == kAbsent; });
  return inputs;
}

std::unique_ptr<InputPairs> make_input_pairs(const std::shared_ptr<const Weights>& original,
                                             const std::shared_ptr<const Weights>& quantized, const Device& device,
                                             const TokenSequences& tokens, int64_t sequences) {
  if (sequences < 1 || sequences > tokens.count)
    throw Error(ExitCode::kInternal, "input pairs of a number of sequences that there is not");
  if (device.is_cuda) return make_cuda_input_pairs(original, quantized, device, tokens, sequences);
  return std::make_unique<CpuInputPairs>(original, *quantized, tokens, sequences, gradient_arithmetic(device.numerics));
}

std::optional<MemoryPlan> plan_kept_input_pairs(const std::shared_ptr<const Network>& network, Numerics numerics,
                                                int64_t length, int64_t sequences, int64_t most,
                                                uint64_t usable_bytes) {
  try {
    return plan_input_pairs(network, numerics, length, sequences, most, /*keeps=*/true, usable_bytes / 2);
  } catch (const DeviceError&) {
    return std::nullopt;
  }
}

std::vector<Matrix> shift_weights(std::span<const ConstMatrixView> weights, const InputPair& pair, double damping,
                                  double strength, const std::string& layer, const Device& device) {
  if (device.is_cuda)
    return shift_weights_cuda(weights, pair, damping, strength, layer, {device.ordinals[0], device.memory_limit_bytes});
  const HessianFactor factor = factor_hessian(pair.hessian, damping, layer);
  std::vector<Matrix> result;
  const MatrixF64 lower = transposed(factor.upper);
  for (const ConstMatrixView& matrix : weights) result.push_back(shifted(matrix, pair, factor, lower, strength));
  return result;
}

}  // namespace thimble
