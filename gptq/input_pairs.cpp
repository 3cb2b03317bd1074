// input_pairs.cpp: see input_pairs.h.
#include "gptq/input_pairs.h"

#include <Eigen/Core>
#include <algorithm>

#include "gptq/cuda_input_pairs.h"
#include "gptq/hessian_factor.h"
#include "runtime/error.h"
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

SymmetricMatrix joint_hessian_on_cpu(const Model& original, const Model& quantized, const TokenSequences& tokens,
                                     int64_t sequences, std::span<const std::string> layers) {
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  WindowScorer original_scorer(original, *backend, tokens.length), quantized_scorer(quantized, *backend, tokens.length);
  HessianCollector collector;
  Matrix joint;
  for (int64_t s = 0; s < sequences; ++s) {
    const auto inputs = tokens.sequence(s).first(static_cast<size_t>(tokens.length) - 1);
    HalfKeeper first(layers, 0, joint), second(layers, 1, joint);
    quantized_scorer.observe(inputs, first);
    original_scorer.observe(inputs, second);
    collector.on_linear_input(layers, joint);
  }
  return std::move(collector).finish().at(layers[0])->matrix;
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

InputPair collect_input_pair(const Model& original, const Model& quantized, const Device& device,
                             const TokenSequences& tokens, int64_t sequences, std::span<const std::string> layers) {
  if (sequences < 1 || sequences > tokens.count)
    throw Error(ExitCode::kInternal, "input pairs of a number of sequences that there is not");
  return split_joint_hessian(device.is_cuda ? joint_hessian_cuda(original, quantized, device, tokens, sequences, layers)
                                            : joint_hessian_on_cpu(original, quantized, tokens, sequences, layers));
}

Matrix shifted_weights(ConstMatrixView weights, const InputPair& pair, double damping, double strength,
                       const std::string& layer) {
  const HessianFactor factor = factor_hessian(pair.hessian, damping, layer);
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

}  // namespace thimble
