// cpu_divergence.cpp: see cpu_models.h.
#include "runtime/cpu/cpu_models.h"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "runtime/base/parallel.h"
#include "runtime/cpu/cpu_gradients.h"
#include "runtime/cpu/gemm.h"
#include "runtime/cpu/gradient_ops.h"

namespace thimble {
namespace {

void add(const std::vector<double>& values, std::vector<double>& sums) {
  sums.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) sums[i] += values[i];
}

// Sums the gradients by the logarithms of gains and, unless `matrices` is null, by those that it has.
class GainObserver final : public GradientObserver {
 public:
  GainObserver(const Weights& student, GainGradients& sums, MatrixGradients* matrices, ProductArithmetic arithmetic)
      : head_(student.matrix(student.network->head.weight)),
        head_name_(student.network->matrix(student.network->head.weight).name),
        sums_(sums),
        matrices_(matrices),
        arithmetic_(arithmetic) {}

  void on_output_gradient(const std::string& weight, int64_t, ConstMatrixView gradient,
                          ConstMatrixView output) override {
    if (output.rows == 0) return;
    std::vector<double> dots = column_dots(gradient, output);
    if (weight == head_name_)
      sums_.head += std::accumulate(dots.begin(), dots.end(), 0.0);
    else
      add(dots, sums_.rows[weight]);
  }
  void on_linear_gradient(const std::string& weight, ConstMatrixView gradient, ConstMatrixView input) override {
    if (Matrix* sum = summed(weight)) accumulate_cross(gradient, input, *sum, arithmetic_);
  }
  // A tied head's gain also scales what is looked up.
  void on_lookup_gradient(const std::string& table, std::span<const int32_t> rows, ConstMatrixView gradient) override {
    if (Matrix* sum = summed(table)) add_rows(gradient, rows, *sum);
    if (table != head_name_) return;
    std::vector<float> row(static_cast<size_t>(gradient.cols));
    for (int64_t p = 0; p < gradient.rows; ++p) {
      const float* d = gradient.row(p);
      head_.view().read_row(rows[static_cast<size_t>(p)], row.data());
      sums_.head += std::inner_product(d, d + gradient.cols, row.data(), 0.0, std::plus<>{}, [](float a, float b) {
        return static_cast<double>(a) * static_cast<double>(b);
      });
    }
  }

 private:
  Matrix* summed(const std::string& name) const {
    if (!matrices_) return nullptr;
    const auto found = matrices_->find(name);
    return found == matrices_->end() ? nullptr : &found->second;
  }
  // A row may be looked up many times: in order of positions.
  static void add_rows(ConstMatrixView from, std::span<const int32_t> rows, MatrixView to) {
    for (int64_t p = 0; p < from.rows; ++p) {
      float* sum = to.row(rows[static_cast<size_t>(p)]);
      for (int64_t c = 0; c < from.cols; ++c) sum[c] += from.row(p)[c];
    }
  }

  const StoredMatrix& head_;
  std::string head_name_;
  GainGradients& sums_;
  MatrixGradients* matrices_;
  ProductArithmetic arithmetic_;
};

class CpuDivergencePass final : public DevicePass {
 public:
  CpuDivergencePass(std::shared_ptr<const Weights> teacher, Weights student, const TokenSequences& sequences,
                    const DivergenceOptions& options, ProductArithmetic arithmetic)
      : network_(*student.network),
        base_(student.matrices),
        student_(std::move(student)),
        sequences_(sequences),
        options_(options),
        arithmetic_(arithmetic),
        window_(student_, sequences.length, student_options(sequences.length), arithmetic),
        teacher_(std::move(teacher)),
        teacher_pass_(*teacher_, sequences.length, gradient_policy(arithmetic)),
        teacher_hidden_(static_cast<size_t>(
            options.kept_sequences(*student_.network, sequences.count, sequences.length, sizeof(float)))) {}

  void set(const Gains& gains) override {
    for (MatrixId id : network_.linear_matrices()) {
      const auto found = gains.rows.find(network_.matrix(id).name);
      scale(id, found == gains.rows.end() ? same_gain(id, 1) : found->second);
    }
    scale(network_.head.weight, same_gain(network_.head.weight, gains.head));
    student_.set_small(gains.small);
  }

  void set_matrix(const std::string& name, const StoredMatrix& matrix) override {
    const auto at = static_cast<size_t>(network_.id_of(name));
    base_[at] = student_.matrices[at] = matrix;
  }

  using DivergencePass::gradients;
  GainGradients gradients(int64_t first, int64_t count, bool sums_matrices) override {
    assert(!options_.summed.empty() || !sums_matrices);
    GainGradients sums;
    if (sums_matrices) set_zero(part_);
    if (sums_matrices) gives_sum_ = false;
    GainObserver observer(student_, sums, sums_matrices ? &part_ : nullptr, arithmetic_);
    for (int64_t s = first; s < first + count; ++s) {
      VectorGradients vectors;
      sums.divergence += window_.run_divergence(inputs(s), teacher(s), observer, &vectors);
      for (const auto& [name, values] : stored_gradients(network_, student_.small, vectors))
        add(values, sums.small[name]);
    }
    return sums;
  }

  MatrixGradients& matrix_gradients() override { return gives_sum_ ? sum_ : part_; }
  void add_part(bool begins) override {
    gives_sum_ = true;
    if (begins) return std::swap(sum_, part_);
    for (const auto& [name, values] : part_) add_matrix(name, values, /*begins=*/false);
  }
  void add_part_of(DevicePass& other, bool begins) override {
    Matrix none;
    for (const std::string& name : options_.summed) add_matrix(name, other.part(name, none), begins);
  }
  void add_matrix(const std::string& name, ConstMatrixView values, bool begins) override {
    gives_sum_ = true;
    Matrix& sum = sum_[name];
    if (begins) {
      sum.resize(values.rows, values.cols);
      return copy_rows(values, sum);
    }
    for_each_row(values.rows, values.cols, [&](int64_t r) {
      for (int64_t k = 0; k < values.cols; ++k) sum(r, k) += values.row(r)[k];
    });
  }
  ConstMatrixView part(const std::string& name, Matrix&) override { return part_.at(name); }
  void give_changes_to(std::span<DevicePass* const>) override {}

  double divergence(int64_t first, int64_t count) override {
    double sum = 0;
    for (int64_t s = first; s < first + count; ++s) sum += window_.divergence(inputs(s), teacher(s));
    return sum;
  }

  TemperatureSlope temperature_slope(int64_t first, int64_t count, double temperature) override {
    TemperatureSlope sums;
    for (int64_t s = first; s < first + count; ++s) window_.add_temperature_slopes(teacher(s), temperature, sums);
    return sums;
  }

 private:
  PassOptions student_options(int64_t length) const {
    PassOptions pass = cpu_gradient_options(network_, length, /*for_gains=*/true, !options_.summed.empty());
    pass.reads_linear_outputs = options_.sums_rows;
    return pass;
  }
  std::span<const Token> inputs(int64_t s) const {
    return sequences_.sequence(s).first(static_cast<size_t>(sequences_.length - 1));
  }
  // Computed when they are first asked for: what goes on after a kill reads few sequences.
  TeacherRows teacher(int64_t s) {
    const bool is_kept = s < std::ssize(teacher_hidden_);
    Matrix& hidden = is_kept ? teacher_hidden_[static_cast<size_t>(s)] : last_hidden_;
    if (!is_kept || hidden.rows() == 0) {
      const ConstMatrixView computed = teacher_pass_.run(window_batch(inputs(s)));
      hidden.resize(computed.rows, computed.cols);
      copy_rows(computed, hidden);
    }
    return {teacher_pass_, hidden, sequences_.sequence(s).subspan(1), options_.data_share, options_.temperature};
  }
  void set_zero(MatrixGradients& matrices) const {
    for (const std::string& name : options_.summed) {
      const MatrixUse& use = network_.matrix(network_.id_of(name));
      Matrix& sum = matrices[name];
      sum.resize(use.rows, use.columns);
      std::ranges::fill(sum.values(), 0.0f);
    }
  }
  std::vector<float> same_gain(MatrixId id, float gain) const {
    return std::vector<float>(static_cast<size_t>(network_.matrix(id).rows), gain);
  }
  void scale(MatrixId id, const std::vector<float>& gains) {
    const auto at = static_cast<size_t>(id);
    student_.matrices[at] = base_[at].with_gains(gains);
  }

  const Network& network_;
  std::vector<StoredMatrix> base_;  // the student's without gains
  Weights student_;
  const TokenSequences& sequences_;
  const DivergenceOptions options_;
  const ProductArithmetic arithmetic_;
  CpuGradients window_;
  const std::shared_ptr<const Weights> teacher_;
  CpuPass teacher_pass_;
  std::vector<Matrix> teacher_hidden_;  // by sequence, the input of its head; empty: not asked for yet
  Matrix last_hidden_;                  // of the last sequence that is not kept
  MatrixGradients part_, sum_;          // of matrices
  bool gives_sum_ = false;              // else the part
};

}  // namespace

std::unique_ptr<DevicePass> make_cpu_divergence_pass(std::shared_ptr<const Weights> teacher, Weights student,
                                                     const TokenSequences& sequences, const DivergenceOptions& options,
                                                     ProductArithmetic arithmetic) {
  return std::make_unique<CpuDivergencePass>(std::move(teacher), std::move(student), sequences, options, arithmetic);
}

}  // namespace thimble
