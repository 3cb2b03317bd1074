// input_pairs.cpp: see input_pairs.h.
#include "gptq/factor/input_pairs.h"

#include <Eigen/Core>
#include <algorithm>
#include <map>

#include "gptq/factor/cuda_input_pairs.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/cpu/forward.h"
#include "runtime/families/golf/golf_layout.h"
#include "runtime/ops/linear_layers.h"

namespace thimble {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr int64_t kRowsPerTask = 32;

// Keeps the input that it is shown in half `half` of joint rows (T, 2 K).
class HalfKeeper final : public LinearObserver {
 public:
  HalfKeeper(int half, Matrix& joint) : half_(half), joint_(joint) {}

  void on_linear_input(std::span<const std::string>, ConstMatrixView x) override {
    joint_.resize(x.rows, 2 * x.cols);
    for (int64_t t = 0; t < x.rows; ++t) std::copy_n(x.row(t), x.cols, joint_.row(t) + half_ * x.cols);
  }

 private:
  int half_;
  Matrix& joint_;
};

// A pass of its own for every sequence and model.
class CpuInputPairs final : public InputPairs {
 public:
  CpuInputPairs(const Model& original, Model quantized, const TokenSequences& tokens, int64_t sequences)
      : original_(original),
        quantized_(std::move(quantized)),
        cache_(*backend_, cache_shape(original.config), 1, tokens.length, /*shared_layers=*/true) {
    for (const auto& [name, matrix] : linear_layers(quantized_)) matrices_[name] = matrix;
    for (int64_t s = 0; s < sequences; ++s) {
      const TokenBatch batch = window_batch(tokens.sequence(s).first(static_cast<size_t>(tokens.length) - 1));
      for (const Model* model : std::initializer_list<const Model*>{&quantized_, &original_}) {
        std::ranges::fill(cache_.smear_state().values(), 0.0F);
        passes_.emplace_back(std::make_unique<ForwardPass>(*model, *backend_, tokens.length))->begin(batch, cache_);
      }
    }
  }

  InputPair collect(std::span<const std::string> layers) override {
    const int64_t input = input_of(original_.config, layers[0]);
    HessianCollector collector;
    Matrix joint;
    HalfKeeper first(0, joint), second(1, joint);
    for (size_t s = 0; s < passes_.size(); s += 2) {
      show(*passes_[s], input, first);
      show(*passes_[s + 1], input, second);
      collector.on_linear_input(layers, joint);
    }
    at_hand_ = input;
    return split_joint_hessian(std::move(collector).finish().at(layers[0])->matrix);
  }

  void replace(const std::string& name, const Matrix& values) override { *matrices_.at(name) = values; }

 private:
  void show(ForwardPass& pass, int64_t input, LinearObserver& observer) {
    for (int64_t i = at_hand_; i < input; ++i) pass.advance(i, cache_);
    pass.show_input(input, observer);
  }

  const std::unique_ptr<Backend> backend_ = make_cpu_backend();
  const Model& original_;
  Model quantized_;
  KeyValueCache cache_;
  std::vector<std::unique_ptr<ForwardPass>> passes_;  // of each sequence through the quantized model and the original
  int64_t at_hand_ = 0;                               // the input that all have reached
  std::map<std::string, Matrix*> matrices_;
};

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

std::vector<std::vector<std::string>> inputs_of_blocks(const ModelConfig& config) {
  std::vector<std::vector<std::string>> inputs;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const LayerNames layer(i);
    inputs.insert(inputs.end(), {{layer.query, layer.key, layer.value}, {layer.output}, {layer.up}, {layer.down}});
  }
  static_assert(ForwardPass::kInputsOfLayer == 4);
  return inputs;
}

int64_t input_of(const ModelConfig& config, const std::string& layer) {
  const std::vector<std::vector<std::string>> inputs = inputs_of_blocks(config);
  const auto found =
      std::ranges::find_if(inputs, [&](const std::vector<std::string>& readers) { return readers[0] == layer; });
  if (found != inputs.end()) return found - inputs.begin();
  throw Error(ExitCode::kInternal, "layer '" + layer + "' is not the first that reads an input of a block");
}

std::unique_ptr<InputPairs> make_input_pairs(const Model& original, Model quantized, const Device& device,
                                             const TokenSequences& tokens, int64_t sequences) {
  if (sequences < 1 || sequences > tokens.count)
    throw Error(ExitCode::kInternal, "input pairs of a number of sequences that there is not");
  if (device.is_cuda) return make_cuda_input_pairs(original, quantized, device, tokens, sequences);
  return std::make_unique<CpuInputPairs>(original, std::move(quantized), tokens, sequences);
}

Matrix InputShift::shifted(ConstMatrixView weights, double strength) const {
  const int64_t columns = weights.cols;
  const Eigen::Map<const RowMajor> drift(pair_.drift.row(0), columns, columns);
  const Eigen::Map<const RowMajor> upper(factor_.upper.row(0), columns, columns);
  Matrix shifted(weights.rows, columns);
  parallel_chunks(weights.rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
    RowMajor w(end - begin, columns);
    for (int64_t r = begin; r < end; ++r)
      for (int64_t k = 0; k < columns; ++k) w(r - begin, k) = weights.row(r)[k];
    const RowMajor cross = w * drift;
    RowMajor ordered(end - begin, columns);
    for (int64_t i = 0; i < columns; ++i) ordered.col(i) = cross.col(factor_.order[static_cast<size_t>(i)]);
    const RowMajor half = ordered * upper.transpose();
    const RowMajor shift = half * upper;
    for (int64_t r = begin; r < end; ++r)
      for (int64_t i = 0; i < columns; ++i) {
        const int64_t k = factor_.order[static_cast<size_t>(i)];
        shifted(r, k) = static_cast<float>(w(r - begin, k) + strength * shift(r - begin, i));
      }
  });
  return shifted;
}

}  // namespace thimble
