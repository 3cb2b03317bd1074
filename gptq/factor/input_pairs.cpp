// input_pairs.cpp: see input_pairs.h.
#include "gptq/factor/input_pairs.h"

#include <Eigen/Core>
#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/cpu/cpu_pass.h"

namespace thimble {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr int64_t kRowsPerTask = 32;

// One model at one node of its pass over every sequence.
class PausedPasses {
 public:
  PausedPasses(const Weights& weights, const TokenSequences& tokens, int64_t sequences)
      : pass_(weights, tokens.length) {
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

void copy_half(ConstMatrixView x, int half, Matrix& joint) {
  for (int64_t t = 0; t < x.rows; ++t) std::copy_n(x.row(t), x.cols, joint.row(t) + half * x.cols);
}

class CpuInputPairs final : public InputPairs {
 public:
  CpuInputPairs(std::shared_ptr<const Weights> original, Weights quantized, const TokenSequences& tokens,
                int64_t sequences)
      : original_(std::move(original)),
        quantized_(std::move(quantized)),
        sequences_(static_cast<size_t>(sequences)),
        of_quantized_(quantized_, tokens, sequences),
        of_original_(*original_, tokens, sequences) {}

  InputPair collect(const LinearInput& input) override {
    std::vector<std::string> readers;
    for (MatrixId id : input.readers) readers.push_back(original_->network->matrix(id).name);
    HessianCollector collector;
    for (size_t s = 0; s < sequences_; ++s) {
      const ConstMatrixView first = of_quantized_.advance(s, input);
      joint_.resize(first.rows, 2 * first.cols);
      copy_half(first, 0, joint_);
      copy_half(of_original_.advance(s, input), 1, joint_);
      collector.on_linear_input(readers, joint_);
    }
    return split_joint_hessian(std::move(collector).finish().at(readers[0])->matrix);
  }

  void replace(const std::string& name, const StoredMatrix& values) override {
    quantized_.matrices[static_cast<size_t>(quantized_.network->id_of(name))] = values;
  }

 private:
  const std::shared_ptr<const Weights> original_;
  Weights quantized_;
  const size_t sequences_;
  PausedPasses of_quantized_, of_original_;
  Matrix joint_;  // (T, 2 K)
};

Matrix shifted(ConstMatrixView weights, const InputPair& pair, const HessianFactor& factor, double strength) {
  const int64_t columns = weights.cols;
  const Eigen::Map<const RowMajor> drift(pair.drift.row(0), columns, columns);
  const Eigen::Map<const RowMajor> upper(factor.upper.row(0), columns, columns);
  Matrix shifted(weights.rows, columns);
  parallel_chunks(weights.rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
    RowMajor w(end - begin, columns);
    for (int64_t r = begin; r < end; ++r)
      for (int64_t k = 0; k < columns; ++k) w(r - begin, k) = weights.row(r)[k];
    const RowMajor cross = w * drift;
    RowMajor ordered(end - begin, columns);
    for (int64_t i = 0; i < columns; ++i) ordered.col(i) = cross.col(factor.order[static_cast<size_t>(i)]);
    const RowMajor half = ordered * upper.transpose();
    const RowMajor shift = half * upper;
    for (int64_t r = begin; r < end; ++r)
      for (int64_t i = 0; i < columns; ++i) {
        const int64_t k = factor.order[static_cast<size_t>(i)];
        shifted(r, k) = static_cast<float>(w(r - begin, k) + strength * shift(r - begin, i));
      }
  });
  return shifted;
}

}  // namespace

InputPair split_joint_hessian(const SymmetricMatrix& joint) {
  const int64_t columns = joint.size() / 2;
  InputPair pair{SymmetricMatrix(columns), MatrixF64(columns, columns)};
  for (int64_t i = 0; i < columns; ++i) {
    std::copy_n(joint.lower_row(i), i + 1, pair.hessian.lower_row(i));
    for (int64_t j = 0; j < columns; ++j) pair.drift(i, j) = joint(columns + i, j) - joint(i, j);
  }
  return pair;
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
  return std::make_unique<CpuInputPairs>(original, *quantized, tokens, sequences);
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
  for (const ConstMatrixView& matrix : weights) result.push_back(shifted(matrix, pair, factor, strength));
  return result;
}

}  // namespace thimble
