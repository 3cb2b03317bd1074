// input_pairs.cpp: see input_pairs.h.
#include "gptq/factor/input_pairs.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "gptq/statistics/statistics_sum.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/cpu/cpu_pass.h"
#include "runtime/cpu/cpu_plans.h"
#include "runtime/cpu/gemm.h"
#include "runtime/tensor/host_device.h"

namespace thimble {
namespace {

constexpr int64_t kPairRowsPerTask = 64, kPairColumns = 256;  // of products by a triangle
constexpr int64_t kAddedValuesPerTask = 1 << 16;

// One model at one node of its pass over each sequence of some parts.
class PausedPasses {
 public:
  PausedPasses(const Weights& weights, const TokenSequences& tokens, std::span<const Share> parts,
               ProductArithmetic arithmetic)
      : pass_(weights, tokens.length, gradient_policy(arithmetic)) {
    for (const Share& part : parts)
      for (size_t s = part.begin; s < part.end; ++s) {
        const std::span<const Token> sequence = tokens.sequence(static_cast<int64_t>(s));
        pauses_[s] = {0, window_batch(sequence.first(static_cast<size_t>(tokens.length) - 1)), {}};
      }
  }

  // The input of the sequence, valid until the next call.
  ConstMatrixView advance(size_t sequence, const LinearInput& input) {
    CpuPass::Pause& pause = pauses_.at(sequence);
    pass_.resume(std::move(pause));
    pass_.run_to(input.first_reader);
    pause = pass_.pause();
    return pass_.value(input.value);
  }

 private:
  CpuPass pass_;
  std::map<size_t, CpuPass::Pause> pauses_;  // by sequence
};

// sum += more, with `more` as float64 in memory's order.
void add_values(Bytes more, std::span<double> sum) {
  parallel_chunks(std::ssize(sum), kAddedValuesPerTask, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      double value = 0;
      std::memcpy(&value, more.data() + i * sizeof(value), sizeof(value));
      sum[i] += value;
    }
  });
}

// Of sums over so many tokens.
StoredPair means_of(InputPair pair, int64_t tokens) {
  for (const std::span<double> sums : {pair.hessian.values(), pair.drift.values()})
    parallel_chunks(std::ssize(sums), kAddedValuesPerTask, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) sums[static_cast<size_t>(i)] /= static_cast<double>(tokens);
    });
  return store_in_memory(std::move(pair));
}

InputPair empty_pair(int64_t columns) { return {SymmetricMatrix(columns), MatrixF64(columns, columns)}; }

class CpuPairReader final : public PairReader {
 public:
  CpuPairReader(std::shared_ptr<const Weights> original, Weights quantized, const TokenSequences& tokens,
                std::span<const Share> parts, ProductArithmetic arithmetic)
      : original_(std::move(original)),
        quantized_(std::move(quantized)),
        arithmetic_(arithmetic),
        parts_(parts.size()),
        of_quantized_(quantized_, tokens, parts, arithmetic),
        of_original_(*original_, tokens, parts, arithmetic) {}

  void read(const LinearInput& input, std::span<const Share> parts) override {
    for (const Share& part : parts) add(sum_of(input, part));
    parts_read_ += parts.size();
    if (parts_read_ == parts_) forget_replaced();
  }

  void add(PairReader& other) override { add(other.take()); }
  InputPair take() override { return std::exchange(sums_, {}); }
  StoredPair take_means(int64_t tokens) override { return means_of(take(), tokens); }

  void replace(const std::string& name, const StoredMatrix& values) override {
    const MatrixId id = quantized_.network->id_of(name);
    quantized_.matrices[static_cast<size_t>(id)] = values;
    replaced_.push_back(id);
  }

 private:
  void add(InputPair more) {
    if (sums_.hessian.size() == 0) {
      sums_ = std::move(more);
      return;
    }
    add_values(std::as_bytes(more.hessian.values()), sums_.hessian.values());
    add_values(std::as_bytes(more.drift.values()), sums_.drift.values());
  }

  InputPair sum_of(const LinearInput& input, const Share& part) {
    const std::string& reader = original_->network->matrix(input.readers[0]).name;
    const int64_t columns = original_->network->width_of(input.value);
    InputPair pair = empty_pair(columns);
    for (size_t s = part.begin; s < part.end; ++s) {
      const auto sequence = static_cast<int64_t>(s);
      const ConstMatrixView x = of_original_.advance(s, input), y = of_quantized_.advance(s, input);
      add_gram(y, reader, sequence, pair.hessian, arithmetic_);
      difference_.resize(x.rows, columns);
      for_each_row(x.rows, columns, [&](int64_t t) {
        for (int64_t k = 0; k < columns; ++k) difference_(t, k) = x.row(t)[k] - y.row(t)[k];
      });
      add_cross_products(difference_, y, reader, sequence, pair.drift, arithmetic_);
    }
    return pair;
  }

  // Passes do not come back to what has read its input: its values need not stay in memory.
  void forget_replaced() {
    parts_read_ = 0;
    for (MatrixId id : replaced_) quantized_.matrices[static_cast<size_t>(id)] = original_->matrix(id);
    replaced_.clear();
  }

  const std::shared_ptr<const Weights> original_;
  Weights quantized_;
  const ProductArithmetic arithmetic_;
  const size_t parts_;
  size_t parts_read_ = 0;  // up to the last input
  PausedPasses of_quantized_, of_original_;
  Matrix difference_;               // (T, K) x - x~ of a sequence
  std::vector<MatrixId> replaced_;  // since the last input
  InputPair sums_;                  // empty once they are taken
};

// The pairs of a model from those that readers have of parts.
class SharedInputPairs final : public InputPairs {
 public:
  SharedInputPairs(std::vector<std::unique_ptr<PairReader>> readers, const WorkersOfRanks& of_ranks,
                   std::shared_ptr<const Network> network, int64_t sequences, int64_t length, Ranks& ranks)
      : readers_(std::move(readers)),
        of_ranks_(of_ranks),
        network_(std::move(network)),
        parts_(parts_of_reader(sequences, 0, 1)),
        tokens_(sequences * (length - 1)),
        ranks_(ranks) {}

  StoredPair collect(const LinearInput& input) override {
    if (ranks_.size() > 1) return means_of(collect_from_ranks(input), tokens_);
    for_each_round(input, [&](size_t turns) {
      for (size_t i = 1; i < turns; ++i) readers_[0]->add(*readers_[i]);
    });
    return readers_[0]->take_means(tokens_);
  }

  void replace(const std::string& name, const StoredMatrix& values) override {
    run_in_threads(readers_.size(), [&](size_t i) { readers_[i]->replace(name, values); });
  }

 private:
  // Calls body(turns) once each of so many readers of all has read a part: as many at a time as there are readers, in
  // whose order they are to be added.
  template <typename Body>
  void for_each_round(const LinearInput& input, const Body& body) {
    for (size_t first = 0; first < parts_.size(); first += of_ranks_.all()) {
      const std::span<const Share> round =
          std::span(parts_).subspan(first, std::min(of_ranks_.all(), parts_.size() - first));
      run_in_threads(readers_.size(), [&](size_t i) {
        const size_t turn = of_ranks_.first() + i;
        if (turn < round.size()) readers_[i]->read(input, round.subspan(turn, 1));
      });
      body(round.size());
    }
  }

  // On the host there is one part at a time besides the sum.
  InputPair collect_from_ranks(const LinearInput& input) {
    InputPair sum = empty_pair(network_->width_of(input.value));
    for_each_round(input, [&](size_t turns) {
      for (size_t turn = 0; turn < turns; ++turn) add_part(turn, sum);
    });
    return sum;
  }

  // What reader `reader` of all has, on every rank.
  void add_part(size_t reader, InputPair& sum) {
    const int from = of_ranks_.rank_of(reader);
    InputPair part;
    if (from == ranks_.rank()) part = readers_[reader - of_ranks_.first()]->take();
    for (const auto& [values, sums] :
         {std::pair(part.hessian.values(), sum.hessian.values()), std::pair(part.drift.values(), sum.drift.values())}) {
      const Bytes mine = std::as_bytes(values);
      if (ranks_.size() == 1) {
        add_values(mine, sums);
        continue;
      }
      ByteVector bytes(mine.begin(), mine.end());
      ranks_.broadcast(bytes, from);
      add_values(bytes, sums);
    }
  }

  const std::vector<std::unique_ptr<PairReader>> readers_;
  const WorkersOfRanks of_ranks_;
  const std::shared_ptr<const Network> network_;
  const std::vector<Share> parts_;  // of all readers
  const int64_t tokens_;
  Ranks& ranks_;
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
Matrix shifted(const StoredMatrixView& weights, const MatrixF64& drift, const HessianFactor& factor,
               const MatrixF64& lower, double strength) {
  const int64_t columns = weights.cols;
  Matrix shifted(weights.rows, columns);
  parallel_chunks(weights.rows, kPairRowsPerTask, [&](int64_t begin, int64_t end) {
    const int64_t rows = end - begin;
    MatrixF64 w(rows, columns), product(rows, columns), ordered(rows, columns);
    for (int64_t r = 0; r < rows; ++r) {
      weights.read_row(begin + r, shifted.row(begin + r));
      std::copy_n(shifted.row(begin + r), columns, w.row(r));
    }
    subtract_product(w, drift, product);
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

// Of one input: its pair, and what collects it or shifts weights by it. `waits`: its pair is a sum of parts, of which
// one waits to be added; `is_sent`: and half of one is on the way to other ranks, or from them.
uint64_t pair_bytes(const Network& network, const LinearInput& input, int64_t length, bool waits, bool is_sent) {
  const int64_t columns = network.width_of(input.value);
  int64_t rows = 0;
  for (MatrixId id : input.readers) rows += network.matrix(id).rows;
  const auto floats = [](int64_t count) { return static_cast<uint64_t>(count) * sizeof(float); };
  const uint64_t products = floats(columns * columns + columns * length);  // of x and of its differences
  const uint64_t sent = is_sent ? static_cast<uint64_t>(columns * columns) * sizeof(double) : 0;
  const uint64_t collecting = (waits ? factor_bytes(columns) : 0) + std::max(products, sent);
  const int64_t tasks = std::min<int64_t>(thread_count(), divide_up(rows, kPairRowsPerTask));
  const uint64_t shifting =
      static_cast<uint64_t>((2 * columns + 3 * tasks * kPairRowsPerTask) * columns) * sizeof(double) +
      floats(2 * rows * columns);
  return factor_bytes(columns) + std::max(collecting, shifting);  // H's triangle, and the drift
}

int64_t count_sequences(std::span<const Share> parts) {
  int64_t count = 0;
  for (const Share& part : parts) count += static_cast<int64_t>(part.size());
  return count;
}

}  // namespace

std::vector<Share> parts_of_reader(int64_t sequences, size_t reader, size_t readers) {
  std::vector<Share> parts;
  for (size_t part = reader; part < hessian_part_count(sequences); part += readers)
    parts.push_back(hessian_part(sequences, part));
  return parts;
}

std::vector<Share> most_parts_of_reader(int64_t sequences, size_t readers) {
  std::vector<Share> most;
  for (size_t reader = 0; reader < readers; ++reader)
    if (std::vector<Share> parts = parts_of_reader(sequences, reader, readers);
        count_sequences(parts) > count_sequences(most))
      most = std::move(parts);
  return most;
}

MemoryPlan plan_cpu_input_pairs(const Network& network, int64_t length, int64_t sequences, int ranks,
                                uint64_t weight_bytes) {
  uint64_t widest = 0;
  for (const LinearInput& input : inputs_of_layers(network))
    widest = std::max(widest, pair_bytes(network, input, length, sequences > 1, ranks > 1));
  const int64_t own = count_sequences(most_parts_of_reader(sequences, static_cast<size_t>(ranks)));
  const uint64_t paused = static_cast<uint64_t>(2 * own) * cpu_pause_bytes(network, length - 1);
  return {"cross terms",
          "sequence",
          length,
          own,
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
                                             const TokenSequences& tokens, int64_t sequences, Ranks& ranks) {
  if (sequences < 1 || sequences > tokens.count)
    throw Error(ExitCode::kInternal, "input pairs of a number of sequences that there is not");
  std::vector<std::unique_ptr<PairReader>> readers(device.is_cuda ? device.ordinals.size() : 1);
  const WorkersOfRanks of_ranks(readers.size(), ranks);
  run_in_threads(readers.size(), [&](size_t i) {
    const std::vector<Share> parts = parts_of_reader(sequences, of_ranks.first() + i, of_ranks.all());
    if (parts.empty()) return;
    if (device.is_cuda)
      readers[i] = make_cuda_pair_reader(*original, *quantized, {device.ordinals[i], device.memory_limit_bytes},
                                         device.numerics, tokens, parts);
    else
      readers[i] =
          std::make_unique<CpuPairReader>(original, *quantized, tokens, parts, gradient_arithmetic(device.numerics));
  });
  std::erase(readers, nullptr);  // those without parts are the last
  return std::make_unique<SharedInputPairs>(std::move(readers), of_ranks, original->network, sequences, tokens.length,
                                            ranks);
}

std::optional<MemoryPlan> plan_kept_input_pairs(const std::shared_ptr<const Network>& network, Numerics numerics,
                                                int64_t length, std::span<const Share> parts, int64_t most,
                                                uint64_t usable_bytes) {
  try {
    return plan_input_pairs(network, numerics, length, parts, most, /*keeps=*/true, usable_bytes / 2);
  } catch (const DeviceError&) {
    return std::nullopt;
  }
}

InputPair StoredPair::on_host() const {
  InputPair pair{*hessian->load(), {}};
  if (const auto* known = std::get_if<std::shared_ptr<const MatrixF64>>(&drift)) {
    pair.drift = **known;
  } else {
    pair.drift = MatrixF64(hessian->size(), hessian->size());
    std::get<DeviceValues>(drift).copy_to_host(pair.drift.values());
  }
  return pair;
}

StoredPair store_in_memory(InputPair pair) {
  return {store_in_memory(std::move(pair.hessian)), std::make_shared<const MatrixF64>(std::move(pair.drift))};
}

std::vector<Matrix> shift_weights(std::span<const StoredMatrixView> weights, const StoredPair& pair, double damping,
                                  double strength, const std::string& layer, const Device& device) {
  if (device.is_cuda)
    return shift_weights_cuda(weights, pair, damping, strength, layer, {device.ordinals[0], device.memory_limit_bytes});
  const HessianFactor factor = factor_hessian(*pair.hessian->load(), damping, layer);
  const MatrixF64& drift = *std::get<std::shared_ptr<const MatrixF64>>(pair.drift);
  std::vector<Matrix> result;
  const MatrixF64 lower = transposed(factor.upper);
  for (const StoredMatrixView& matrix : weights) result.push_back(shifted(matrix, drift, factor, lower, strength));
  return result;
}

}  // namespace thimble
