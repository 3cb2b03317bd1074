// cuda_divergence_pass.cu: batches of sequences through CudaGradients. Base weights, the student's, and the teacher's
// logits stay in device memory.
#include <algorithm>
#include <numeric>
#include <type_traits>

#include "runtime/base/memory_plan.h"
#include "runtime/cuda/cuda_divergence_pass.h"
#include "runtime/cuda/cuda_gradients.cuh"
#include "runtime/cuda/kernels/cuda_devices.h"
#include "runtime/ops/linear_layers.h"
#include "runtime/tensor/host_device.h"

namespace thimble {
namespace {

constexpr int kThreads = 256;

// One thread per element.
__global__ void scale_rows_kernel(const float* from, const float* gains, int64_t columns, int64_t count, float* to) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) to[i] = from[i] * gains[i / columns];
}

// Waits.
void scale_rows(const CudaFloatMatrix& from, const std::vector<float>& gains, CudaFloatMatrix& to,
                const CudaStream& stream) {
  DeviceArray<float> on_device{std::span<const float>(gains)};
  const int64_t count = from.view().count();
  launch_kernel(scale_rows_kernel, {dim3(static_cast<unsigned>(divide_up(count, kThreads))), kThreads}, stream,
                from.view().data, on_device.data(), from.view().columns, count, to.view().data);
  stream.wait();
}

// Sums of the gradients by the logarithms of gains, on the device: one for each output of each matrix, and for a tied
// head those of what is looked up, by columns.
class CudaGainObserver final : public CudaGradientObserver {
 public:
  CudaGainObserver(const CudaFloatModel& student, CudaGradients& gradients)
      : student_(student), gradients_(gradients), head_name_(head_name(student.config)) {
    int64_t count = 0;
    auto place = [&](const std::string& name, int64_t columns) {
      places_[name] = {count, columns};
      count += columns;
    };
    for (const auto& [name, matrix] : linear_layers(student)) place(name, matrix->view().rows);
    place(head_name_, student.config.vocab_size);
    place(kLookup, student.config.model_dim);
    sums_ = DeviceArray<double>(count);
    sums_.fill_zero();
  }

  void on_output_gradient(const std::string& weight, ConstCudaView gradient, ConstCudaView output,
                          const BatchShape& batch, cudaStream_t stream) override {
    gradients_.column_dots().add(gradient, output, batch, sums_.data() + places_.at(weight).first, {}, stream);
  }
  void on_lookup_gradient(const std::string& table, std::span<const int32_t> rows, ConstCudaView gradient,
                          const BatchShape& batch, cudaStream_t stream) override {
    if (table != head_name_) return;
    rows_.reserve(static_cast<int64_t>(rows.size()));
    check_cuda(cudaMemcpyAsync(rows_.data(), rows.data(), rows.size_bytes(), cudaMemcpyHostToDevice, stream));
    looked_up_.resize(gradient.rows, gradient.columns);
    CudaFloatOps(stream).gather_rows(student_.token_embedding, rows_.data(), looked_up_);
    gradients_.column_dots().add(gradient, looked_up_, batch, sums_.data() + places_.at(kLookup).first, {}, stream);
  }

  // Waits for the stream.
  void read(GainGradients& to, cudaStream_t stream) const {
    std::vector<double> sums(static_cast<size_t>(sums_.count()));
    check_cuda(cudaMemcpyAsync(sums.data(), sums_.data(), sums_.bytes(), cudaMemcpyDeviceToHost, stream));
    check_cuda(cudaStreamSynchronize(stream));
    for (const auto& [name, place] : places_) {
      auto first = sums.begin() + place.first, last = first + place.columns;
      if (name == head_name_ || name == kLookup)
        to.head += std::accumulate(first, last, 0.0);
      else
        to.rows[name].assign(first, last);
    }
  }

 private:
  static constexpr const char* kLookup = "";
  struct Place {
    int64_t first = 0, columns = 0;
  };
  const CudaFloatModel& student_;
  CudaGradients& gradients_;
  std::string head_name_;
  std::map<std::string, Place> places_;
  DeviceArray<double> sums_;
  DeviceArray<int32_t> rows_;
  CudaFloatMatrix looked_up_;
};

class CudaDivergencePass final : public DivergencePass {
 public:
  CudaDivergencePass(const Model& teacher, const Model& student, const TokenSequences& sequences, int ordinal,
                     int64_t batch, Progress& progress)
      : ordinal_(ordinal), sequences_(sequences), small_host_(student), batch_(batch) {
    DeviceScope scope(ordinal_);
    memory_ = std::make_unique<Memory>(sequences.count * window_logits(teacher.config), student);
    read_teacher(teacher, progress);
  }
  ~CudaDivergencePass() override {
    DeviceScope scope(ordinal_);
    memory_.reset();
  }

  void set(const Gains& gains) override {
    DeviceScope scope(ordinal_);
    CudaStream stream;
    auto from = linear_layers(memory_->base), to = linear_layers(student());
    for (size_t i = 0; i < from.size(); ++i)
      if (auto found = gains.rows.find(from[i].first); found != gains.rows.end())
        scale_rows(*from[i].second, found->second, *to[i].second, stream);
    const std::vector<float> head(static_cast<size_t>(student().config.vocab_size), gains.head);
    scale_rows(head_matrix(memory_->base), head, head_matrix(student()), stream);
    small_ = gains.small;
    set_small_tensors(small_host_, small_);
    student().set_small_tensors(small_host_);
  }

  GainGradients gradients(int64_t first, int64_t count) override {
    return with_pass([&](CudaGradients& pass) {
      CudaSmallGradients small(small_host_);
      CudaGainObserver observer(student(), pass);
      GainGradients sums;
      sums.divergence = sum_over_batches(pass, first, count, [&](const CudaTargets& teacher) {
        pass.backward(teacher, observer, &small);
        return pass.loss();
      });
      observer.read(sums, pass.stream());
      sums.small = stored_gradients(student().config, small_, small.read(pass.stream()));
      return sums;
    });
  }

  double divergence(int64_t first, int64_t count) override {
    return with_pass([&](CudaGradients& pass) {
      return sum_over_batches(pass, first, count,
                              [&](const CudaTargets& teacher) { return pass.forward_loss(teacher); });
    });
  }

 private:
  // All that lies in device memory, made and freed with the device current.
  struct Memory {
    Memory(int64_t logits, const Model& student) : teacher_logits(logits), base(student), student(student) {}
    DeviceArray<float> teacher_logits;  // (sequences, positions, V)
    CudaFloatModel base, student;
    std::unique_ptr<CudaGradients> pass;
  };

  CudaFloatModel& student() const { return memory_->student; }
  int64_t positions() const { return sequences_.length - 1; }
  int64_t window_logits(const ModelConfig& config) const { return positions() * config.vocab_size; }

  std::span<const uint16_t> tokens(int64_t first) const {
    return std::span(sequences_.tokens).subspan(static_cast<size_t>(first * sequences_.length));
  }

  void read_teacher(const Model& teacher, Progress& progress) {
    progress.begin("reading calibration", sequences_.count, "sequences");
    const CudaFloatModel on_device(teacher);
    with_smaller_batches(batch_, [&](int64_t batch) {
      CudaGradients pass(on_device, sequences_.length);
      for (int64_t first = 0; first < sequences_.count; first += batch) {
        const BatchShape shape{std::min(batch, sequences_.count - first), positions()};
        pass.forward(tokens(first), sequences_.length, shape);
        pass.logits({memory_->teacher_logits.data() + first * window_logits(teacher.config), shape.rows(),
                     teacher.config.vocab_size});
        check_cuda(cudaStreamSynchronize(pass.stream()));
      }
      return 0;
    });
    progress.advance(sequences_.count);
    progress.end();
  }

  // Calls the body with the student's pass, on its device and with batches as large as its memory allows.
  template <typename Body>
  std::invoke_result_t<Body, CudaGradients&> with_pass(const Body& body) {
    DeviceScope scope(ordinal_);
    return with_smaller_batches(batch_, [&](int64_t batch) {
      std::unique_ptr<CudaGradients>& pass = memory_->pass;
      if (batch != batch_) pass.reset();  // with its memory
      batch_ = batch;
      if (!pass) pass = std::make_unique<CudaGradients>(student(), sequences_.length);
      return body(*pass);
    });
  }

  // Forward passes over sequences [first, first + count); the sum of what `loss` says of each batch after its own.
  template <typename Loss>
  double sum_over_batches(CudaGradients& pass, int64_t first, int64_t count, const Loss& loss) const {
    double sum = 0;
    for (int64_t s = first; s < first + count; s += batch_) {
      pass.forward(tokens(s), sequences_.length, {std::min(batch_, first + count - s), positions()});
      sum += loss(CudaTargets::teacher(memory_->teacher_logits.data() + s * window_logits(student().config)));
    }
    return sum;
  }

  int ordinal_;
  const TokenSequences& sequences_;
  Model small_host_;
  FloatTensors small_;
  int64_t batch_;
  std::unique_ptr<Memory> memory_;
};

}  // namespace

std::unique_ptr<DivergencePass> make_cuda_divergence_pass(const Model& teacher, const Model& student,
                                                          const TokenSequences& sequences, const Device& device,
                                                          Progress& progress) {
  const int ordinal = device.ordinals[0];
  const uint64_t usable = usable_memory(cuda_free_memory(ordinal), device.memory_limit_bytes);
  const int64_t batch = plan_divergence(teacher.config, sequences.length, sequences.count, usable).batch;
  return std::make_unique<CudaDivergencePass>(teacher, student, sequences, ordinal, batch, progress);
}

}  // namespace thimble
