// cuda_gradient_bench.cu: the backward pass of a 30M-parameter golf-gpt with random weights on CUDA device 0, its
// products, and loss statistics of 64 x 2048 tokens; each in float32 and in bf16.
#include <benchmark/benchmark.h>

#include "bench/runtime/golf30m_shape.h"
#include "gptq/statistics/statistics_sum.h"
#include "runtime/cuda/cuda_gradient_pass.cuh"
#include "runtime/cuda/cuda_gradient_products.cuh"
#include "runtime/cuda/cuda_matrix_gradients.cuh"

namespace thimble {
namespace {

constexpr int64_t kSequences = 64, kLength = 2048;
constexpr BatchShape kBatch{8, kLength - 1};  // of a part of 8 sequences

const std::shared_ptr<const Weights>& model() {
  static const std::shared_ptr<const Weights> model = random_golf30m();
  return model;
}

const TokenSequences& sequences() {
  static const TokenSequences all{kSequences, kLength,
                                  random_tokens(kSequences * kLength, model()->network->vocabulary())};
  return all;
}

constexpr Numerics kNumerics[] = {Numerics::kFp32, Numerics::kBf16};

// Calls body(T*) for argument `bf16` of a benchmark, the i-th.
template <typename Body>
void with_storage(const benchmark::State& state, size_t i, const Body& body) {
  with_gradient_type(kNumerics[state.range(i)], body);
}

// From a model and tokens in host memory to statistics there; the first call of a process besides loads the kernels.
void loss_statistics(benchmark::State& state) {
  SilentProgress progress;
  model();
  sequences();
  check_cuda(cudaFree(nullptr));  // makes the context
  for (auto _ : state)
    benchmark::DoNotOptimize(
        collect_loss_statistics_cuda(model(), {true, {0}, kNumerics[state.range(0)]}, sequences(), progress));
}
BENCHMARK(loss_statistics)
    ->Name("first_loss_statistics")
    ->Arg(1)
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK(loss_statistics)
    ->ArgName("bf16")
    ->DenseRange(0, 1)
    ->Iterations(5)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

// Gradients of matrices, or none.
template <typename T>
class MatrixObserver final : public CudaGradientObserver<T> {
 public:
  using typename CudaGradientObserver<T>::ConstView;

  explicit MatrixObserver(CudaMatrixGradients* matrices) : matrices_(matrices) {}
  void on_output_gradient(const std::string&, ConstView, ConstView, const BatchShape&, cudaStream_t) override {}
  void on_head_gradient(const std::string&, ConstView, ConstCudaView, const BatchShape&, cudaStream_t) override {}
  void on_lookup_gradient(const std::string&, std::span<const int32_t>, ConstView, const BatchShape&,
                          cudaStream_t) override {}
  void on_linear_gradient(const std::string& weight, ConstView gradient, ConstView input, const BatchShape& batch,
                          cudaStream_t stream) override {
    if (matrices_) matrices_->add_products(model()->network->id_of(weight), gradient, input, batch, stream);
  }

 private:
  CudaMatrixGradients* matrices_;
};

// 8 sequences; `back`: 1 the backward pass too, with the gradients of vectors; 2 with those of matrices as well; -1 a
// forward pass that keeps nothing for one, as that of an original to learn from.
void pass(benchmark::State& state) {
  with_storage(state, 1, [&]<typename T>(T*) {
    const CudaNetworkWeights<T> on_device(*model(), {}, cuda_plain_options(sizeof(T)));
    const bool has_matrices = state.range(0) > 1;
    PassOptions options;
    if (state.range(0) >= 0)
      options = {.has_backward = true,
                 .has_vector_gradients = true,
                 .reads_linear_inputs = has_matrices,
                 .keeps = Keeps::kAll};
    CudaGradientPass<T> gradients(on_device, options, kLength, kBatch.sequences, kBatch.positions);
    CudaVectorSums vectors(on_device.network());
    CudaMatrixGradients matrices(model()->network, model()->network->matrix_names(), kBatch,
                                 DivergenceOptions::Adds::kNothing);
    matrices.set_zero(gradients.stream());
    MatrixObserver<T> observer(has_matrices ? &matrices : nullptr);
    std::vector<int32_t> next(static_cast<size_t>(kBatch.rows()), 3);
    DeviceArray<int32_t> targets{std::span<const int32_t>(next)};
    auto run = [&] {
      gradients.forward(sequences().tokens, kLength, kBatch);
      if (state.range(0) > 0) gradients.backward(next_token_targets(targets.data()), observer, &vectors);
      check_cuda(cudaStreamSynchronize(gradients.stream()));
    };
    run();
    for (auto _ : state) run();
  });
}
BENCHMARK(pass)
    ->ArgNames({"back", "bf16"})
    ->ArgsProduct({{-1, 0, 1, 2}, {0, 1}})
    ->Iterations(5)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

template <typename T>
void zero(BasicCudaView<T> x) {
  check_cuda(cudaMemset(x.data, 0, static_cast<size_t>(x.count()) * sizeof(T)));
}

// Rows of 8 sequences by (N, K) or back, or the gradient of a matrix (N, K), which is summed in float32: flops are
// multiplications and additions.
void product(benchmark::State& state) {
  auto form = static_cast<ProductForm>(state.range(0));
  int64_t rows = kBatch.rows(), out = state.range(1), in = state.range(2);
  with_storage(state, 3, [&]<typename T>(T*) {
    BasicCudaMatrix<T> a, b, c;
    CudaFloatMatrix sums;
    a.resize(rows, form == ProductForm::kNT ? in : out);
    b.resize(form == ProductForm::kTN ? rows : out, in);
    c.resize(rows, form == ProductForm::kNT ? out : in);
    sums.resize(out, in);
    for (BasicCudaMatrix<T>* matrix : {&a, &b, &c}) zero(matrix->view());
    CudaStream stream;
    auto run = [&] {
      const BasicProductInput<T> left(a.view()), right(b.view());
      for (int i = 0; i < 20; ++i)
        if (form == ProductForm::kTN)
          launch_gradient_product(form, left, right, ProductOutput(sums), /*add=*/false, /*batch=*/1, stream);
        else
          launch_gradient_product(form, left, right, BasicProductOutput<T>(c), /*add=*/false, /*batch=*/1, stream);
      stream.wait();
    };
    run();
    for (auto _ : state) run();
  });
  state.counters["flops"] =
      benchmark::Counter(40.0 * static_cast<double>(rows) * static_cast<double>(out) * static_cast<double>(in),
                         benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}
BENCHMARK(product)
    ->ArgNames({"form", "N", "K", "bf16"})
    ->ArgsProduct({{0, 1}, {256, 512}, {512}, {0, 1}})
    ->ArgsProduct({{0, 1, 2}, {1792}, {512}, {0, 1}})
    ->ArgsProduct({{0, 1, 2}, {512}, {1792}, {0, 1}})
    ->Iterations(5)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

// All layers' worth: 8 sequences, 8 heads of 64 in groups of 2.
void attention(benchmark::State& state) {
  with_storage(state, 1, [&]<typename T>(T*) {
    constexpr bool kIsFloat = std::is_same_v<T, float>;
    std::conditional_t<kIsFloat, CudaFloatAttention, CudaBf16Attention> attention;
    CudaAttentionSums sums;
    BasicCudaMatrix<T> wide[4], narrow[4];
    for (BasicCudaMatrix<T>& matrix : wide) matrix.resize(kBatch.rows(), 512);
    for (BasicCudaMatrix<T>& matrix : narrow) matrix.resize(kBatch.rows(), 256);
    CudaStream stream;
    for (BasicCudaMatrix<T>& matrix : wide) zero(matrix.view());
    for (BasicCudaMatrix<T>& matrix : narrow) zero(matrix.view());
    const op::Attention shape{8, 4, 64, 0.125f, true, 0};
    auto forward = [&] {
      if constexpr (kIsFloat)
        attention.forward(wide[0], narrow[0], narrow[1], shape, kBatch, wide[3], stream);
      else
        attention.forward(wide[0], narrow[0], narrow[1], shape, kBatch, sums, wide[3], stream);
    };
    auto backward = [&] {
      if constexpr (kIsFloat)
        attention.backward(wide[0], narrow[0], narrow[1], shape, kBatch, wide[1], wide[2], narrow[2], narrow[3],
                           stream);
      else
        attention.backward(wide[0], narrow[0], narrow[1], wide[3], wide[1], shape, kBatch, sums, wide[2], narrow[2],
                           narrow[3], stream);
    };
    auto run = [&] {
      if (state.range(0) > 0)
        backward();
      else
        forward();
      stream.wait();
    };
    forward();
    run();
    for (auto _ : state) run();
  });
}
BENCHMARK(attention)
    ->ArgNames({"back", "bf16"})
    ->ArgsProduct({{0, 1}, {0, 1}})
    ->Iterations(10)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace thimble
