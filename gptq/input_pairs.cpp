// input_pairs.cpp: see input_pairs.h.
#include "gptq/input_pairs.h"

#include <Eigen/Core>
#include <algorithm>
#include <map>

#include "gptq/cuda_input_pairs.h"
#include "runtime/error.h"
#include "runtime/linear_layers.h"
#include "runtime/parallel.h"
#include "runtime/window_scores.h"

namespace thimble {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr int64_t kRowsPerTask = 32;

// Keeps one input of a forward pass in half `half` of joint rows (T, 2 K).
class HalfKeeper final : public LinearObserver {
 public:
  HalfKeeper(std::span<const std::string> layers, int half, Matrix& joint)
      : layers_(layers), half_(half), joint_(joint) {}

  void on_linear_input(std::span<const std::string> layers, ConstMatrixView x) override {
    if (!std::ranges::equal(layers, layers_)) return;
    joint_.resize(x.rows, 2 * x.cols);
    for (int64_t t = 0; t < x.rows; ++t) std::copy_n(x.row(t), x.cols, joint_.row(t) + half_ * x.cols);
  }

 private:
  std::span<const std::string> layers_;
  int half_;
  Matrix& joint_;
};

// Every input anew: whole passes, sequence after sequence.
class CpuInputPairs final : public InputPairs {
 public:
  CpuInputPairs(const Model& original, Model quantized, const TokenSequences& tokens, int64_t sequences)
      : original_(original), quantized_(std::move(quantized)), tokens_(tokens), sequences_(sequences) {
    for (const auto& [name, matrix] : linear_layers(quantized_)) matrices_[name] = matrix;
  }

  InputPair collect(std::span<const std::string> layers) override {
    const std::unique_ptr<Backend> backend = make_cpu_backend();
    WindowScorer original_scorer(original_, *backend, tokens_.length),
        quantized_scorer(quantized_, *backend, tokens_.length);
    HessianCollector collector;
    Matrix joint;
    for (int64_t s = 0; s < sequences_; ++s) {
      const auto inputs = tokens_.sequence(s).first(static_cast<size_t>(tokens_.length) - 1);
      HalfKeeper first(layers, 0, joint), second(layers, 1, joint);
      quantized_scorer.observe(inputs, first);
      original_scorer.observe(inputs, second);
      collector.on_linear_input(layers, joint);
    }
    return split_joint_hessian(std::move(collector).finish().at(layers[0])->matrix);
  }

  void replace(const std::string& name, const Matrix& values) override { *matrices_.at(name) = values; }

 private:
  const Model& original_;
  Model quantized_;
  const TokenSequences& tokens_;
  int64_t sequences_;
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
