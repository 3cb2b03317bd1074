// cuda_gradient_bench.cu: the backward pass of a 30M-parameter golf-gpt with random weights on CUDA device 0, its
// products, and loss statistics of 64 x 2048 tokens; each with products in float32 and in bf16.
#include <benchmark/benchmark.h>

#include "bench/runtime/golf30m_shape.h"
#include "gptq/statistics/statistics_sum.h"
#include "runtime/cuda/cuda_gradient_pass.cuh"
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

// Argument `bf16` of a benchmark, the i-th.
ProductArithmetic arithmetic_of(const benchmark::State& state, size_t i) {
  return gradient_arithmetic(kNumerics[state.range(i)]);
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
class MatrixObserver final : public CudaGradientObserver {
 public:
  MatrixObserver(CudaMatrixGradients* matrices, CudaGradientProducts& products)
      : matrices_(matrices), products_(products) {}
  void on_output_gradient(const std::string&, ConstCudaView, ConstCudaView, const BatchShape&, cudaStream_t) override {}
  void on_lookup_gradient(const std::string&, std::span<const int32_t>, ConstCudaView, const BatchShape&,
                          cudaStream_t) override {}
  void on_linear_gradient(const std::string& weight, ConstCudaView gradient, ConstCudaView input,
                          const BatchShape& batch, cudaStream_t stream) override {
    if (matrices_) matrices_->add_products(model()->network->id_of(weight), gradient, input, batch, products_, stream);
  }

 private:
  CudaMatrixGradients* matrices_;
  CudaGradientProducts& products_;
};

// 8 sequences; `back`: 1 the backward pass too, with the gradients of vectors; 2 with those of matrices as well.
void pass(benchmark::State& state) {
  const CudaNetworkWeights<float> on_device(*model(), {}, cuda_plain_options(sizeof(float)));
  const bool has_matrices = state.range(0) > 1;
  CudaGradientPass gradients(on_device,
                             {.has_backward = true, .has_vector_gradients = true, .reads_linear_inputs = has_matrices},
                             kLength, kBatch.sequences, kBatch.positions, arithmetic_of(state, 1));
  CudaVectorSums vectors(on_device.network());
  CudaMatrixGradients matrices(model()->network, model()->network->matrix_names(), kBatch,
                               DivergenceOptions::Adds::kNothing);
  matrices.set_zero(gradients.stream());
  MatrixObserver observer(has_matrices ? &matrices : nullptr, gradients.products());
  std::vector<int32_t> next(static_cast<size_t>(kBatch.rows()), 3);
  DeviceArray<int32_t> targets{std::span<const int32_t>(next)};
  auto run = [&] {
    gradients.forward(sequences().tokens, kLength, kBatch);
    if (state.range(0) > 0) gradients.backward(next_token_targets(targets.data()), observer, &vectors);
    check_cuda(cudaStreamSynchronize(gradients.stream()));
  };
  run();
  for (auto _ : state) run();
}
BENCHMARK(pass)
    ->ArgNames({"back", "bf16"})
    ->ArgsProduct({{0, 1, 2}, {0, 1}})
    ->Iterations(5)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

void zero(CudaView x) { check_cuda(cudaMemset(x.data, 0, static_cast<size_t>(x.count()) * sizeof(float))); }

// Rows of 8 sequences by (N, K) or back, or the gradient of a matrix (N, K): flops are multiplications and additions.
void product(benchmark::State& state) {
  auto form = static_cast<ProductForm>(state.range(0));
  int64_t rows = kBatch.rows(), out = state.range(1), in = state.range(2);
  CudaFloatMatrix a, b, c;
  a.resize(rows, form == ProductForm::kNT ? in : out);
  b.resize(form == ProductForm::kTN ? rows : out, in);
  c.resize(form == ProductForm::kTN ? out : rows, form == ProductForm::kNT ? out : in);
  for (CudaFloatMatrix* matrix : {&a, &b, &c}) zero(matrix->view());
  CudaStream stream;
  CudaGradientProducts products(arithmetic_of(state, 3));
  auto run = [&] {
    for (int i = 0; i < 20; ++i) {
      products.forget();
      products.multiply(form, ConstCudaView(a), ConstCudaView(b), c.view(), /*add=*/false, /*batch=*/1, stream);
    }
    stream.wait();
  };
  run();
  for (auto _ : state) run();
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
  CudaFloatAttention attention(arithmetic_of(state, 1));
  CudaAttentionSums sums;
  CudaFloatMatrix wide[4], narrow[4];
  for (CudaFloatMatrix& matrix : wide) matrix.resize(kBatch.rows(), 512);
  for (CudaFloatMatrix& matrix : narrow) matrix.resize(kBatch.rows(), 256);
  CudaStream stream;
  for (CudaFloatMatrix& matrix : wide) zero(matrix.view());
  for (CudaFloatMatrix& matrix : narrow) zero(matrix.view());
  const op::Attention shape{8, 4, 64, 0.125f, true, 0};
  auto run = [&] {
    if (state.range(0) > 0)
      attention.backward(wide[0], narrow[0], narrow[1], wide[3], shape, kBatch, sums, wide[1], wide[2], narrow[2],
                         narrow[3], stream);
    else
      attention.forward(wide[0], narrow[0], narrow[1], shape, kBatch, sums, wide[3], stream);
    stream.wait();
  };
  attention.forward(wide[0], narrow[0], narrow[1], shape, kBatch, sums, wide[3], stream);
  run();
  for (auto _ : state) run();
}
BENCHMARK(attention)
    ->ArgNames({"back", "bf16"})
    ->ArgsProduct({{0, 1}, {0, 1}})
    ->Iterations(10)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace thimble
