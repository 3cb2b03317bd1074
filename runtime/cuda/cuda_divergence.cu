// cuda_divergence.cu: DivergencePass: batches of sequences through CudaGradientPass. The teacher's, as many sequences
// at a time as are kept (DivergenceOptions), of which its head and all inputs of it stay in device memory; and the
// student's, as it was at first and as it is.
#include <algorithm>
#include <cassert>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>

#include "runtime/cuda/cuda_gain_observer.cuh"
#include "runtime/cuda/cuda_gradient_pass.cuh"
#include "runtime/cuda/cuda_matrix_gradients.cuh"
#include "runtime/cuda/cuda_models.h"
#include "runtime/cuda/cuda_student.cuh"
#include "runtime/cuda/cuda_teacher.cuh"
#include "runtime/cuda/kernels/cuda_row_kernel.cuh"

namespace thimble {
namespace {

using FloatWeights = CudaNetworkWeights<float>;

PassOptions student_options(const DivergenceOptions& options, Keeps keeps) {
  return {.has_backward = true,
          .reads_linear_outputs = options.sums_rows,
          .reads_head_output = true,
          .has_vector_gradients = true,
          .reads_linear_inputs = !options.summed.empty(),
          .keeps = keeps};
}

int64_t rows_of_matrices(const Network& network) {
  return std::accumulate(network.matrices.begin(), network.matrices.end(), int64_t{0},
                         [](int64_t rows, const MatrixUse& use) { return rows + use.rows; });
}

// to row = from row * gains[row]; without gains: of 1.
template <typename T>
struct ScaleRows {
  const float *from, *gains;
  int64_t columns, from_stride, to_stride;
  T* to;

  __device__ void operator()(int64_t row, int lane) const {
    const float* in = from + row * from_stride;
    const float gain = gains ? gains[row] : 1;
    store_columns(to + row * to_stride, columns, lane, [&](int64_t c) { return from_float<T>(in[c] * gain); });
  }
};

template <typename T>
class CudaDivergence final : public DevicePass, public CudaStudent {
 public:
  // Of the weights that passes read.
  using PassWeights = CudaNetworkWeights<T>;

  CudaDivergence(const Weights& teacher, const Weights& student, const TokenSequences& sequences, int ordinal,
                 const CudaPassPlan& plan, const DivergenceOptions& options, Progress& progress)
      : network_(student.network),
        ordinal_(ordinal),
        sequences_(sequences),
        options_(options),
        kept_count_(options.kept_sequences(*network_, sequences.count, sequences.length, sizeof(T))),
        keeps_(plan.keeps),
        batch_(plan.memory.batch) {
    small_host_.network = network_;
    small_host_.set_small(student.small);
    DeviceScope scope(ordinal_);
    progress.begin("reading calibration", kept_count_, "sequences");
    auto of_teacher = std::make_unique<PassWeights>(teacher, NumericPolicy{}, cuda_plain_options(sizeof(T)));
    auto kept = std::make_unique<CudaTeacher<T>>(*network_, *of_teacher, kept_count_, positions(), batch_);
    read_teacher(*of_teacher, 0, *kept);
    progress.advance(kept_count_);
    progress.end();
    if (kept_count_ == sequences_.count) of_teacher.reset();
    memory_ = std::make_unique<Memory>(student, std::move(kept), std::move(of_teacher));
    if (!options_.summed.empty())
      memory_->gradients.emplace(network_, options_.summed, BatchShape{batch_, positions()}, options_.adds);
  }
  ~CudaDivergence() override {
    DeviceScope scope(ordinal_);
    memory_.reset();
  }

  void set(const Gains& gains) override {
    DeviceScope scope(ordinal_);
    RowGains wanted;
    for (MatrixId id : network_->linear_matrices()) {
      const auto found = gains.rows.find(network_->matrix(id).name);
      wanted[id] = found == gains.rows.end() ? std::vector<float>() : found->second;
    }
    const MatrixId head = network_->head.weight;
    wanted[head].assign(static_cast<size_t>(network_->matrix(head).rows), gains.head);
    for (MatrixId id : changed_) wanted.try_emplace(id);  // tables that are only looked up, too
    set_gains(std::move(wanted));
    small_host_.set_small(gains.small);
    memory_->student.set_vectors(small_host_.vectors);
  }

  void set_matrix(const std::string& name, const StoredMatrix& matrix) override {
    DeviceScope scope(ordinal_);
    const MatrixId id = network_->id_of(name);
    memory_->base.replace(id, matrix);
    gains_.erase(id);
    set_gains({{id, {}}});
  }

  CudaStudent* on_device() override { return this; }
  int ordinal() const override { return ordinal_; }
  CudaView matrix(const std::string& name) override {
    const MatrixId id = network_->id_of(name);
    gains_.erase(id);
    changed_.insert(id);
    const CudaMatrix<float>& matrix = memory_->base.matrix(id);
    const MatrixUse& use = network_->matrix(id);
    return {matrix.data.data(), use.rows, use.columns, matrix.columns};
  }
  ConstCudaView gradient(const std::string& name) const override {
    return memory_->gradients->gradient(network_->id_of(name));
  }

  using DivergencePass::gradients;
  GainGradients gradients(int64_t first, int64_t count, bool sums_matrices) override {
    assert(!options_.summed.empty() || !sums_matrices);
    keep_teacher(first, count);
    return with_pass([&](CudaGradientPass<T>& pass) {
      CudaVectorSums& vectors = memory_->vectors;
      vectors.set_zero(pass.stream());
      CudaMatrixGradients* sums_of_matrices = sums_matrices ? &*memory_->gradients : nullptr;
      if (sums_of_matrices) sums_of_matrices->set_zero(pass.stream());
      CudaGainObserver<T>& observer = *memory_->observer;
      observer.set_zero(pass.stream());
      observer.sum_matrices(sums_of_matrices);
      GainGradients sums;
      sums.divergence = sum_over_batches(pass, first, count, [&](const CudaTargetRows& teacher) {
        pass.backward(teacher, observer, &vectors);
        return pass.loss();
      });
      if (sums_of_matrices) sums_of_matrices->finish(pass.stream());
      observer.read(sums, pass.stream());
      sums.small =
          stored_gradients(*network_, small_host_.small, vectors.read(memory_->student.host_vectors(), pass.stream()));
      return sums;
    });
  }

  MatrixGradients& matrix_gradients() override {
    DeviceScope scope(ordinal_);
    memory_->gradients->read(on_host_, memory_->stream);
    return on_host_;
  }
  void add_part(bool begins) override {
    DeviceScope scope(ordinal_);
    memory_->gradients->add_part(begins, memory_->stream);
  }
  void add_part_of(DevicePass& other, bool begins) override {
    const auto& from = static_cast<const CudaDivergence&>(other);
    DeviceScope scope(ordinal_);
    memory_->gradients->add_part_of(*from.memory_->gradients, from.ordinal_, ordinal_, begins, memory_->stream);
  }
  void add_matrix(const std::string& name, ConstMatrixView values, bool begins) override {
    DeviceScope scope(ordinal_);
    memory_->gradients->add_matrix(network_->id_of(name), values, begins, memory_->stream);
  }
  ConstMatrixView part(const std::string& name, Matrix& buffer) override {
    DeviceScope scope(ordinal_);
    memory_->gradients->read_part(network_->id_of(name), buffer, memory_->stream);
    return buffer;
  }
  void give_changes_to(std::span<DevicePass* const> others) override {
    DeviceScope scope(ordinal_);
    CudaStream& stream = memory_->stream;
    for (DevicePass* other : others) {
      CudaStudent& student = *other->on_device();
      for (MatrixId id : changed_) {
        const CudaView to = student.matrix(network_->matrix(id).name);
        const CudaMatrix<float>& from = memory_->base.matrix(id);
        copy_between_devices(to.data, student.ordinal(), from.data.data(), ordinal_,
                             static_cast<size_t>(to.rows * to.stride) * sizeof(float), stream);
      }
    }
    stream.wait();
  }

  double divergence(int64_t first, int64_t count) override {
    keep_teacher(first, count);
    return with_pass([&](CudaGradientPass<T>& pass) {
      return sum_over_batches(pass, first, count,
                              [&](const CudaTargetRows& teacher) { return pass.forward_loss(teacher); });
    });
  }

  TemperatureSlope temperature_slope(int64_t first, int64_t count, double temperature) override {
    keep_teacher(first, count);
    DeviceScope scope(ordinal_);
    CudaStream& stream = memory_->stream;
    TemperatureSlope sums;
    for (int64_t s = first; s < first + count; ++s) {
      upload_next(s, {1, positions()});
      const int64_t sequence_row = (s - first_kept_) * positions();
      for_each_logit_piece(positions(), network_->vocabulary(), [&](int64_t first_row, int64_t rows) {
        const DeviceArray<float3> terms(rows);
        launch_rows(
            rows,
            FindTemperatureSlopes{memory_->teacher->logits_of(sequence_row + first_row, rows, stream),
                                  memory_->next.data() + first_row, static_cast<float>(1 / temperature), terms.data()},
            stream);
        std::vector<float3> of_rows(static_cast<size_t>(rows));
        check_cuda(cudaMemcpyAsync(of_rows.data(), terms.data(), terms.bytes(), cudaMemcpyDeviceToHost, stream));
        stream.wait();
        for (const float3& row : of_rows) sums.add(row.x, row.y, row.z);
      });
    }
    return sums;
  }

 private:
  // All that lies in device memory, made and freed with the device current.
  struct Memory {
    Memory(const Weights& weights, std::unique_ptr<CudaTeacher<T>> kept, std::unique_ptr<const PassWeights> of_teacher)
        : teacher(std::move(kept)),
          teacher_weights(std::move(of_teacher)),
          base(weights, {}, cuda_plain_options(sizeof(float))),
          student(weights, {}, cuda_plain_options(sizeof(T))),
          gains(rows_of_matrices(*weights.network), "gains"),
          vectors(*weights.network) {}
    void reset_pass() {
      observer.reset();
      pass.reset();
    }
    std::unique_ptr<CudaTeacher<T>> teacher;
    std::unique_ptr<const PassWeights> teacher_weights;  // null where all sequences are kept
    FloatWeights base;                                   // to change, and to make the student of
    PassWeights student;
    DeviceArray<float> gains;  // of matrices that are made anew, one after the other
    CudaVectorSums vectors;
    DeviceArray<Token> next;  // of a batch, where it counts
    std::optional<CudaMatrixGradients> gradients;
    std::unique_ptr<CudaGradientPass<T>> pass;
    std::optional<CudaGainObserver<T>> observer;  // of the pass
    CudaStream stream;                            // of what no pass does
  };

  using RowGains = std::map<MatrixId, std::vector<float>>;  // empty: all 1

  int64_t positions() const { return sequences_.length - 1; }

  std::span<const Token> tokens(int64_t first) const {
    return std::span(sequences_.tokens).subspan(static_cast<size_t>(first * sequences_.length));
  }

  // Makes matrices of the student of what they were at first, but for those that are that already. Waits.
  void set_gains(RowGains wanted) {
    std::erase_if(wanted, [&](const auto& item) {
      changed_.erase(item.first);
      const auto found = gains_.find(item.first);
      return found != gains_.end() && found->second == item.second;
    });
    if (wanted.empty()) return;
    std::vector<float> all;
    for (const auto& [id, gains] : wanted) all.insert(all.end(), gains.begin(), gains.end());
    memory_->gains.copy(all);
    CudaStream& stream = memory_->stream;
    const float* at = memory_->gains.data();
    for (auto& [id, gains] : wanted) {
      const CudaMatrix<float>& from = memory_->base.matrix(id);
      const CudaMatrix<T>& to = memory_->student.matrix(id);
      const MatrixUse& use = network_->matrix(id);
      launch_rows(use.rows,
                  ScaleRows<T>{from.data.data(), gains.empty() ? nullptr : at, use.columns, from.columns, to.columns,
                               to.data.data()},
                  stream);
      at += gains.size();
      gains_[id] = std::move(gains);
    }
    stream.wait();
  }

  // Of as many sequences from `first` on as are kept.
  void read_teacher(const PassWeights& weights, int64_t first, CudaTeacher<T>& kept) {
    const int64_t count = std::min(kept_count_, sequences_.count - first);
    with_smaller_batches(batch_, [&](int64_t batch) {
      CudaGradientPass<T> pass(weights, PassOptions{}, sequences_.length, batch, positions());
      for (int64_t s = 0; s < count; s += batch) {
        const BatchShape shape{std::min(batch, count - s), positions()};
        pass.forward(tokens(first + s), sequences_.length, shape);
        kept.copy_rows(pass.head_input(), s * positions(), pass.stream());
        check_cuda(cudaStreamSynchronize(pass.stream()));
      }
      kept.copy_head(weights.matrix(network_->head.weight), pass.stream());
      check_cuda(cudaStreamSynchronize(pass.stream()));
      return 0;
    });
    first_kept_ = first;
  }

  // Before sequences [first, first + count) are read. The student's pass gives its memory to the teacher's meanwhile.
  void keep_teacher(int64_t first, int64_t count) {
    if (first >= first_kept_ && first + count <= first_kept_ + kept_count_) return;
    DeviceScope scope(ordinal_);
    memory_->reset_pass();
    kept_count_ = std::max(kept_count_, count);
    memory_->teacher->reserve(kept_count_ * positions());
    read_teacher(*memory_->teacher_weights, first, *memory_->teacher);
  }

  // What follows each row of a batch. Waits for that.
  void upload_next(int64_t first, const BatchShape& batch) const {
    std::vector<Token> next;
    for (int64_t s = first; s < first + batch.sequences; ++s) {
      const std::span<const Token> sequence = sequences_.sequence(s);
      next.insert(next.end(), sequence.begin() + 1, sequence.end());
    }
    memory_->next.reserve(std::ssize(next));
    memory_->next.copy(next);
  }

  // Calls the body with the student's pass, on its device and with batches as large as its memory allows.
  template <typename Body>
  std::invoke_result_t<Body, CudaGradientPass<T>&> with_pass(const Body& body) {
    DeviceScope scope(ordinal_);
    return with_smaller_batches(batch_, [&](int64_t batch) {
      std::unique_ptr<CudaGradientPass<T>>& pass = memory_->pass;
      if (batch != batch_) memory_->reset_pass();  // with its memory
      batch_ = batch;
      if (!pass) {
        pass = std::make_unique<CudaGradientPass<T>>(memory_->student, student_options(options_, keeps_),
                                                     sequences_.length, batch_, positions());
        memory_->observer.emplace(memory_->student, *pass, options_.sums_rows);
      }
      return body(*pass);
    });
  }

  // Forward passes over sequences [first, first + count); the sum of what `loss` says of each batch after its own.
  template <typename Loss>
  double sum_over_batches(CudaGradientPass<T>& pass, int64_t first, int64_t count, const Loss& loss) const {
    double sum = 0;
    for (int64_t s = first; s < first + count; s += batch_) {
      const BatchShape batch{std::min(batch_, first + count - s), positions()};
      pass.forward(tokens(s), sequences_.length, batch);
      if (options_.data_share > 0) upload_next(s, batch);
      sum += loss(memory_->teacher->targets((s - first_kept_) * positions(), memory_->next.data(), options_));
    }
    return sum;
  }

  std::shared_ptr<const Network> network_;
  int ordinal_;
  const TokenSequences& sequences_;
  const DivergenceOptions options_;
  Weights small_host_;                   // without matrices
  int64_t first_kept_ = 0, kept_count_;  // of the teacher's sequences
  const Keeps keeps_;                    // of the student's values
  int64_t batch_;
  // Of the student's matrices, as they are; and those whose values at first were changed since.
  RowGains gains_;
  std::set<MatrixId> changed_;
  MatrixGradients on_host_;  // for who asks for them there
  std::unique_ptr<Memory> memory_;
};

CudaPassPlan plan_pass_of_divergence(const std::shared_ptr<const Network>& network, Numerics numerics, int64_t length,
                                     int64_t sequences, uint64_t usable_bytes, const DivergenceOptions& divergence) {
  auto allocate = [&]<typename T>(T*, int64_t batch, Keeps keeps) {
    using PassWeights = CudaNetworkWeights<T>;
    const FusionOptions options = cuda_plain_options(sizeof(T));
    // The teacher's pass, which takes less, has gone by then, and its weights where it is not asked again.
    const FloatWeights base(network, {}, cuda_plain_options(sizeof(float)));
    const PassWeights student(network, {}, options);
    const int64_t of_teacher = divergence.kept_sequences(*network, sequences, length, sizeof(T));
    std::optional<PassWeights> teacher;
    if (of_teacher < sequences) teacher.emplace(network, NumericPolicy{}, options);
    const CudaTeacher<T> kept(*network, student, of_teacher, length - 1, batch);
    CudaGradientPass<T> pass(student, student_options(divergence, keeps), length, batch, length - 1);
    const DeviceArray<float> gains(rows_of_matrices(*network), "gains");
    const CudaVectorSums vectors(*network);
    std::optional<CudaMatrixGradients> gradients;
    if (!divergence.summed.empty())
      gradients.emplace(network, divergence.summed, BatchShape{batch, length - 1}, divergence.adds);
    CudaGainObserver<T>(student, pass, divergence.sums_rows).reserve_lookups(batch * (length - 1));
  };
  const int64_t most = std::min(sequences, gradient_batch(length));
  return plan_gradient_pass("distillation", length, most, usable_bytes, [&](int64_t batch, Keeps keeps) {
    with_gradient_type(numerics, [&]<typename T>(T* type) { allocate(type, batch, keeps); });
  });
}

}  // namespace

MemoryPlan plan_divergence(const std::shared_ptr<const Network>& network, Numerics numerics, int64_t length,
                           int64_t sequences, uint64_t usable_bytes, const DivergenceOptions& divergence) {
  return plan_pass_of_divergence(network, numerics, length, sequences, usable_bytes, divergence).memory;
}

std::unique_ptr<DevicePass> make_cuda_divergence_pass(std::shared_ptr<const Weights> teacher,
                                                      std::shared_ptr<const Weights> student,
                                                      const TokenSequences& sequences, const CudaPlace& place,
                                                      Numerics numerics, Progress& progress,
                                                      const DivergenceOptions& options) {
  const CudaPassPlan plan = plan_pass_of_divergence(student->network, numerics, sequences.length, sequences.count,
                                                    usable_memory(place), options);
  return with_gradient_type(numerics, [&]<typename T>(T*) -> std::unique_ptr<DevicePass> {
    return std::make_unique<CudaDivergence<T>>(*teacher, *student, sequences, place.ordinal, plan, options, progress);
  });
}

}  // namespace thimble
