// cuda_backend.cu: the operations of cuda_float_ops.cuh behind Backend, on one stream, and the few that only this
// needs. Views of activations point into managed memory, which kernels and, after finish(), the host read.
#include "runtime/cuda/cuda_backend.h"

#include <cassert>
#include <cmath>
#include <map>
#include <vector>

#include "runtime/cuda/cuda_float_ops.cuh"
#include "runtime/cuda/cuda_language_model.h"
#include "runtime/cuda/kernels/cuda_devices.h"
#include "runtime/cuda/kernels/cuda_float_attention.cuh"
#include "runtime/cuda/kernels/cuda_nvfp4_linear.cuh"
#include "runtime/cuda/kernels/cuda_row_kernel.cuh"

namespace thimble {
namespace {

// x[row] = function(x[row], column) for every element.
template <typename Function>
struct MapRows {
  float* x;
  int64_t columns;
  Function function;

  __device__ void operator()(int64_t row, int lane) const {
    for (int64_t c = lane; c < columns; c += 32) x[row * columns + c] = function(x[row * columns + c], c);
  }
};

struct AddBias {
  const float* bias;
  __device__ float operator()(float x, int64_t column) const { return x + bias[column]; }
};

struct Scale {
  float factor;
  __device__ float operator()(float x, int64_t) const { return x * factor; }
};

struct RoundTo {
  Rounding rounding;
  __device__ float operator()(float x, int64_t) const { return rounding(x); }
};

// As cpu_kernels.cpp: without the cancellation of 1 + tanh at large negative z.
struct Gelu {
  __device__ float operator()(float z, int64_t) const {
    return z / (1 + expf(-1.59576912f * (z + 0.044715f * (z * z * z))));
  }
};

struct LayerNorm {
  const float *x, *weight, *bias;
  float epsilon;
  float* y;
  int64_t columns;

  __device__ void operator()(int64_t row, int lane) const {
    const float* from = x + row * columns;
    const auto width = static_cast<float>(columns);
    const float mean = sum_over_row(columns, lane, [&](int64_t c) { return from[c]; }) / width;
    const float squares = sum_over_row(columns, lane, [&](int64_t c) { return (from[c] - mean) * (from[c] - mean); });
    const float inverse = 1 / sqrtf(squares / width + epsilon);
    for (int64_t c = lane; c < columns; c += 32)
      y[row * columns + c] = (from[c] - mean) * inverse * weight[c] + bias[c];
  }
};

struct LogSoftmax {
  float* x;
  int64_t columns;

  __device__ void operator()(int64_t row, int lane) const {
    float* at = x + row * columns;
    float peak = -INFINITY;
    for (int64_t c = lane; c < columns; c += 32) peak = fmaxf(peak, at[c]);
    peak = max_over_lanes<32>(peak);
    const float sum = sum_over_row(columns, lane, [&](int64_t c) { return expf(at[c] - peak); });
    const float log_sum = peak + logf(sum);
    for (int64_t c = lane; c < columns; c += 32) at[c] -= log_sum;
  }
};

// out[p] = (1 - gate) * x[p] + gate * x[p-1]; a sequence's first row uses its row of `before`.
struct SmearFrom {
  const float *x, *before, *gate;
  int64_t positions;
  float* out;
  int64_t columns;

  __device__ void operator()(int64_t row, int lane) const {
    const float* previous = row % positions == 0 ? before + row / positions * columns : x + (row - 1) * columns;
    for (int64_t c = lane; c < columns; c += 32)
      out[row * columns + c] = (1 - gate[c]) * x[row * columns + c] + gate[c] * previous[c];
  }
};

struct StoreRows {
  const float* rows;
  int64_t stride, positions, capacity, first;
  float* cache;
  int64_t columns;

  __device__ void operator()(int64_t row, int lane) const {
    const int64_t slot = row / positions * capacity + first + row % positions;
    for (int64_t c = lane; c < columns; c += 32) cache[slot * columns + c] = rows[row * stride + c];
  }
};

template <typename T, typename U>
BasicCudaView<T> dense(const BasicMatrixView<U>& view) {
  assert(view.rows <= 1 || view.stride == view.cols);
  return {view.data, view.rows, view.cols};
}
CudaView on_device(MatrixView view) { return dense<float>(view); }
ConstCudaView on_device(ConstMatrixView view) { return dense<const float>(view); }

class CudaBackend final : public Backend {
 public:
  // On the current device, which is the place's.
  explicit CudaBackend(const CudaPlace& place)
      : place_(place),
        stream_(std::make_unique<CudaStream>()),
        ops_(*stream_),
        nvfp4_(std::make_unique<CudaNvfp4Linear>(place.ordinal)) {}
  ~CudaBackend() override {
    DeviceScope scope(place_.ordinal);
    cudaStreamSynchronize(*stream_);
    weights_.clear();
    angles_.clear();
    index_ = {};
    attention_.reset();
    nvfp4_.reset();
    stream_.reset();
  }

  std::string name() const override { return cuda_arithmetic(place_.ordinal); }

  std::shared_ptr<float> allocate(int64_t floats) override {
    DeviceScope scope(place_.ordinal);
    const auto bytes = static_cast<size_t>(std::max<int64_t>(floats, 1)) * sizeof(float);
    count(bytes);
    void* memory = nullptr;
    check_cuda(cudaMallocManaged(&memory, bytes));
    std::shared_ptr<float> owner(static_cast<float*>(memory), [used = used_, bytes](float* at) {
      *used -= bytes;
      cudaFree(at);  // waits for the kernels that use it
    });
    check_cuda(cudaMemsetAsync(memory, 0, bytes, *stream_));
    stream_->wait();
    return owner;
  }
  void finish() override { stream_->wait(); }

  void copy(ConstMatrixView from, MatrixView to) override {
    run([&] { ops_.copy(on_device(from), on_device(to)); });
  }
  void gather_rows(ConstMatrixView table, std::span<const int32_t> index, MatrixView out) override {
    run([&] {
      if (static_cast<int64_t>(index.size()) > index_.count()) stream_->wait();
      index_.reserve(static_cast<int64_t>(index.size()));
      check_cuda(cudaMemcpyAsync(index_.data(), index.data(), index.size_bytes(), cudaMemcpyHostToDevice, *stream_));
      stream_->wait();  // the caller's list may go
      ops_.gather_rows(kept(table), index_.data(), on_device(out));
    });
  }
  void linear(ConstMatrixView x, ConstMatrixView w, MatrixView y) override {
    run([&] { ops_.linear(on_device(x), kept(w), on_device(y)); });
  }
  void linear_nvfp4(ConstMatrixView x, const Nvfp4Weight& w, MatrixView y) override {
    run([&] {
      count(nvfp4_->growth(x.rows, w));
      nvfp4_->multiply(on_device(x).data, x.rows, w, on_device(y).data, *stream_);
    });
  }
  void add_scaled(ConstMatrixView a, float scale, MatrixView x) override {
    run([&] { ops_.add_scaled(on_device(a), scale, on_device(x)); });
  }
  void rms_norm(ConstMatrixView x, float c, MatrixView y) override {
    run([&] { ops_.rms_norm(on_device(x), c, on_device(y)); });
  }
  void smear(ConstMatrixView x, ConstMatrixView before, std::span<const float> gate, const BatchShape& batch,
             MatrixView out) override {
    run([&] {
      launch_rows(x.rows, SmearFrom{x.data, before.data, kept(gate), batch.positions, out.data, x.cols}, *stream_);
    });
  }
  void add_skip(ConstMatrixView skip, std::span<const float> weight, std::span<const float> gate,
                MatrixView x) override {
    run([&] { ops_.add_skip(on_device(skip), kept(weight), kept(gate), on_device(x)); });
  }
  void mix_and_norm(ConstMatrixView x, ConstMatrixView x0, std::span<const float> mix_x, std::span<const float> mix_x0,
                    float c, MatrixView u, MatrixView normed) override {
    run([&] {
      ops_.mix(on_device(x), on_device(x0), kept(mix_x), kept(mix_x0), on_device(u));
      ops_.rms_norm(on_device(u), c, on_device(normed));
    });
  }
  void add_and_norm(ConstMatrixView a, std::span<const float> scale, float c, MatrixView x,
                    MatrixView normed) override {
    run([&] {
      ops_.add(on_device(a), kept(scale), on_device(x));
      ops_.rms_norm(on_device(x), c, on_device(normed));
    });
  }
  void add(ConstMatrixView a, std::span<const float> scale, MatrixView x) override {
    run([&] { ops_.add(on_device(a), kept(scale), on_device(x)); });
  }
  void add_bias(std::span<const float> bias, MatrixView y) override {
    run([&] { map(y, AddBias{kept(bias)}); });
  }
  void layer_norm(ConstMatrixView x, std::span<const float> weight, std::span<const float> bias, float epsilon,
                  MatrixView y) override {
    run([&] {
      launch_rows(x.rows, LayerNorm{x.data, kept(weight), kept(bias), epsilon, on_device(y).data, x.cols}, *stream_);
    });
  }
  void norm_and_rotate(MatrixView x, int64_t head_dim, const RotaryTable& rotary, std::span<const float> gain,
                       const BatchShape& batch) override {
    run([&] {
      const int64_t half = rotary.cosine.cols();
      const HeadRotation rotation{head_dim, batch.positions, kept(rotary) + batch.first_position * half, half};
      ops_.norm_and_rotate(on_device(x), rotation, kept(gain), on_device(x));
    });
  }
  void store_rows(ConstMatrixView rows, const BatchShape& batch, int64_t capacity, MatrixView cache) override {
    run([&] {
      launch_rows(
          rows.rows,
          StoreRows{rows.data, rows.stride, batch.positions, capacity, batch.first_position, cache.data, rows.cols},
          *stream_);
    });
  }
  void attention(ConstMatrixView q, const KeyValueView& cache, const AttentionShape& shape, const BatchShape& batch,
                 MatrixView y) override {
    run([&] {
      attention_->forward_cached(on_device(q), on_device(cache.keys), on_device(cache.values), cache.capacity, shape,
                                 batch, on_device(y), *stream_);
    });
  }
  void leaky_relu_squared(MatrixView z) override {
    run([&] { ops_.leaky_relu_squared(on_device(z), on_device(z)); });
  }
  void gelu(MatrixView z) override {
    run([&] { map(z, Gelu{}); });
  }
  void scale(float factor, MatrixView x) override {
    run([&] { map(x, Scale{factor}); });
  }
  void softcap(float cap, MatrixView logits) override {
    run([&] { ops_.softcap(on_device(logits), cap, on_device(logits)); });
  }
  void log_softmax(MatrixView logits) override {
    run([&] { launch_rows(logits.rows, LogSoftmax{on_device(logits).data, logits.cols}, *stream_); });
  }
  void round(const Rounding& rounding, MatrixView x) override {
    if (!rounding.is_exact()) run([&] { map(x, RoundTo{rounding}); });
  }

 private:
  // An operation is at home on the device, whichever thread asks for it.
  template <typename Body>
  void run(const Body& body) {
    DeviceScope scope(place_.ordinal);
    body();
  }

  template <typename Function>
  void map(MatrixView x, const Function& function) {
    launch_rows(x.rows, MapRows<Function>{on_device(x).data, x.cols, function}, *stream_);
  }

  void count(size_t bytes) {
    if (*used_ + bytes > place_.memory_limit_bytes)
      throw DeviceError("CUDA: " + std::to_string(*used_ + bytes) + " B of device memory are needed, " +
                        std::to_string(place_.memory_limit_bytes) + " B are allowed");
    *used_ += bytes;
  }

  // The device's copy of values in host memory, made when it is first asked for.
  const float* kept(std::span<const float> host) {
    if (host.empty()) return nullptr;
    auto found = weights_.find({host.data(), host.size()});
    if (found == weights_.end()) {
      count(host.size_bytes());
      found = weights_.try_emplace({host.data(), host.size()}, host).first;
    }
    return found->second.data();
  }
  ConstCudaView kept(ConstMatrixView host) {
    assert(host.stride == host.cols);
    return {kept(std::span(host.data, static_cast<size_t>(host.rows * host.cols))), host.rows, host.cols};
  }
  const float2* kept(const RotaryTable& host) {
    auto found = angles_.find(host.cosine.data());
    if (found == angles_.end()) {
      std::vector<float2> angles;
      for (size_t i = 0; i < host.cosine.values().size(); ++i)
        angles.push_back({host.cosine.values()[i], host.sine.values()[i]});
      count(angles.size() * sizeof(float2));
      found = angles_.try_emplace(host.cosine.data(), std::span<const float2>(angles)).first;
    }
    return found->second.data();
  }

  CudaPlace place_;
  std::shared_ptr<size_t> used_ = std::make_shared<size_t>(0);  // bytes
  std::unique_ptr<CudaStream> stream_;
  CudaFloatOps ops_;
  std::unique_ptr<CudaNvfp4Linear> nvfp4_;
  std::unique_ptr<CudaFloatAttention> attention_ = std::make_unique<CudaFloatAttention>();
  std::map<std::pair<const float*, size_t>, DeviceArray<float>> weights_;
  std::map<const float*, DeviceArray<float2>> angles_;
  DeviceArray<int32_t> index_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const CudaPlace& place) {
  DeviceScope scope(place.ordinal);
  return std::make_unique<CudaBackend>(place);
}

}  // namespace thimble
