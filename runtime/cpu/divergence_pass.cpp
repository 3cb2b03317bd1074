// divergence_pass.cpp: one sequence after another through WindowGradients.
#include "runtime/cpu/divergence_pass.h"

#include <algorithm>
#include <numeric>

#include "runtime/base/parallel.h"
#include "runtime/cpu/gradient_ops.h"
#include "runtime/cpu/window_gradients.h"
#include "runtime/cuda/cuda_divergence_pass.h"
#include "runtime/ops/linear_layers.h"

namespace thimble {
namespace {

void add(const std::vector<double>& values, std::vector<double>& sums) {
  sums.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) sums[i] += values[i];
}

// Sums the gradients by the logarithms of gains.
class GainObserver final : public GradientObserver {
 public:
  GainObserver(const Model& student, GainGradients& sums)
      : student_(student), head_name_(head_name(student.config)), sums_(sums) {}

  void on_output_gradient(const std::string& weight, ConstMatrixView gradient, ConstMatrixView output) override {
    std::vector<double> dots = column_dots(gradient, output);
    if (weight == head_name_)
      sums_.head += std::accumulate(dots.begin(), dots.end(), 0.0);
    else
      add(dots, sums_.rows[weight]);
  }
  // A tied head's gain also scales what is looked up.
  void on_lookup_gradient(const std::string& table, std::span<const int32_t> rows, ConstMatrixView gradient) override {
    if (table != head_name_) return;
    for (int64_t p = 0; p < gradient.rows; ++p) {
      const float *d = gradient.row(p), *row = student_.head().row(rows[static_cast<size_t>(p)]);
      sums_.head += std::inner_product(d, d + gradient.cols, row, 0.0, std::plus<>{}, [](float a, float b) {
        return static_cast<double>(a) * static_cast<double>(b);
      });
    }
  }

 private:
  const Model& student_;
  std::string head_name_;
  GainGradients& sums_;
};

void scale_rows(const Matrix& from, const std::vector<float>& gains, Matrix& to) {
  parallel_chunks(from.rows(), 64, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      for (int64_t k = 0; k < from.cols(); ++k) to(r, k) = from(r, k) * gains[static_cast<size_t>(r)];
  });
}

class CpuDivergencePass final : public DivergencePass {
 public:
  CpuDivergencePass(const Model& teacher, const Model& student, const TokenSequences& sequences, Progress& progress)
      : base_(student), student_(student), sequences_(sequences), window_(student_, *backend_, sequences.length) {
    WindowGradients window(teacher, *backend_, sequences.length);
    progress.begin("reading calibration", sequences.count, "sequences");
    for (int64_t s = 0; s < sequences.count; ++s) {
      ConstMatrixView logits = window.logits(inputs(s));
      backend_->copy(logits, teacher_logits_.emplace_back(logits.rows, logits.cols));
      progress.advance(1);
    }
    progress.end();
  }

  void set(const Gains& gains) override {
    auto from = linear_layers(base_), to = linear_layers(student_);
    for (size_t i = 0; i < from.size(); ++i)
      if (auto found = gains.rows.find(from[i].first); found != gains.rows.end())
        scale_rows(*from[i].second, found->second, *to[i].second);
    const Matrix& head = head_matrix(base_);
    scale_rows(head, std::vector<float>(static_cast<size_t>(head.rows()), gains.head), head_matrix(student_));
    small_ = gains.small;
    set_small_tensors(student_, small_);
  }

  GainGradients gradients(int64_t first, int64_t count) override {
    GainGradients sums;
    GainObserver observer(student_, sums);
    for (int64_t s = first; s < first + count; ++s) {
      SmallGradients small;
      sums.divergence += window_.run_divergence(inputs(s), teacher_logits(s), observer, &small);
      for (const auto& [name, values] : stored_gradients(student_.config, small_, small)) add(values, sums.small[name]);
    }
    return sums;
  }

  double divergence(int64_t first, int64_t count) override {
    double sum = 0;
    for (int64_t s = first; s < first + count; ++s)
      sum += divergence_backward(window_.logits(inputs(s)), teacher_logits(s),
                                 static_cast<float>(student_.config.logit_softcap));
    return sum;
  }

 private:
  std::span<const uint16_t> inputs(int64_t s) const {
    return sequences_.sequence(s).first(static_cast<size_t>(sequences_.length - 1));
  }
  ConstMatrixView teacher_logits(int64_t s) const { return teacher_logits_[static_cast<size_t>(s)]; }

  Model base_, student_;
  FloatTensors small_;
  const TokenSequences& sequences_;
  std::unique_ptr<Backend> backend_ = make_cpu_backend();
  WindowGradients window_;
  std::vector<Matrix> teacher_logits_;
};

}  // namespace

int64_t divergence_sequences(const ModelConfig& config, int64_t length) {
  int64_t bytes = (length - 1) * config.vocab_size * static_cast<int64_t>(sizeof(float));
  return std::max<int64_t>(2, kMostTeacherBytes / bytes);
}

std::unique_ptr<DivergencePass> make_divergence_pass(const Model& teacher, const Model& student,
                                                     const TokenSequences& sequences, const Device& device,
                                                     Progress& progress) {
  if (device.is_cuda) return make_cuda_divergence_pass(teacher, student, sequences, device, progress);
  return std::make_unique<CpuDivergencePass>(teacher, student, sequences, progress);
}

}  // namespace thimble
