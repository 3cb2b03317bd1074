// cuda_products_bench.cu: products of a forward pass in bf16 on CUDA device 0, side by side, each with what follows it:
// ours, cuBLASLt's, and CUTLASS's where CMake found its headers (-DCUTLASS_ROOT). Medians of microseconds, TFLOP/s, the
// share of the fastest, and whether rows keep their bits in a batch of another size.
//   cuda_products_bench [SHAPE...]        of golf30m (by default), smollm2, llama-1b
//
//   plain       out = x W^T
//   activated   out = leaky_relu(x W^T, 0.5)^2; cuBLASLt has no such epilogue: its ReLU stands for it
//   added       u += x W^T
// cuBLASLt's algorithm is the fastest of those that it names, without those that split K.
#include <cublasLt.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "bench/runtime/product_contenders.cuh"
#include "runtime/base/error.h"
#include "runtime/cuda/cuda_products.cuh"

namespace thimble {
namespace {

constexpr int64_t kWindows = 33, kContext = 2048;  // as `eval` runs them, by default
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kAlgorithms = 16;

void check_lt(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) throw DeviceError(std::string("cuBLASLt: ") + cublasGetStatusString(status));
}

void run_ours(const Product& p) {
  static const CudaProducts<__nv_bfloat16> products(/*stepping=*/false);
  const GemmOperands<__nv_bfloat16> operands{p.x, p.depth, p.weight, p.rows, p.columns, p.depth};
  switch (p.follows) {
    case Follows::kNothing: return products.linear(operands, {p.out, p.columns}, nullptr);
    case Follows::kActivation:
      return products.activate(operands, {}, Activation::kLeakyReluSquared, nullptr, p.out, p.columns, nullptr);
    case Follows::kSum: return products.add(operands, p.out, p.columns, nullptr, nullptr, {}, nullptr);
  }
}

// Products of one number of rows. cuBLASLt's matrices are column-major: out^T = W x^T.
class LtProduct {
 public:
  // By the fastest algorithm, or by that of another.
  explicit LtProduct(const Product& p, const LtProduct* like = nullptr)
      : has_old_(p.follows == Follows::kSum), workspace_(kWorkspaceBytes) {
    check_lt(cublasLtCreate(&handle_));
    check_lt(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check_lt(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    if (p.follows == Follows::kActivation) {
      const cublasLtEpilogue_t relu = CUBLASLT_EPILOGUE_RELU;
      check_lt(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE, &relu, sizeof relu));
    }
    const auto columns = static_cast<uint64_t>(p.columns), depth = static_cast<uint64_t>(p.depth);
    const auto rows = static_cast<uint64_t>(p.rows);
    check_lt(cublasLtMatrixLayoutCreate(&weight_, CUDA_R_16BF, depth, columns, p.depth));
    check_lt(cublasLtMatrixLayoutCreate(&x_, CUDA_R_16BF, depth, rows, p.depth));
    check_lt(cublasLtMatrixLayoutCreate(&out_, CUDA_R_16BF, columns, rows, p.columns));
    algorithm_ = like ? like->algorithm_ : fastest(p);
  }
  ~LtProduct() {
    for (cublasLtMatrixLayout_t layout : {weight_, x_, out_}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(operation_);
    cublasLtDestroy(handle_);
  }
  LtProduct(const LtProduct&) = delete;
  LtProduct& operator=(const LtProduct&) = delete;

  void run(const Product& p) const { run(p, algorithm_); }

 private:
  void run(const Product& p, const cublasLtMatmulAlgo_t& algorithm) const {
    const float one = 1, old = has_old_ ? 1 : 0;
    check_lt(cublasLtMatmul(handle_, operation_, &one, p.weight, weight_, p.x, x_, &old, p.out, out_, p.out, out_,
                            &algorithm, workspace_.data(), kWorkspaceBytes, nullptr));
  }
  cublasLtMatmulAlgo_t fastest(const Product& p) const {
    cublasLtMatmulPreference_t preference = nullptr;
    check_lt(cublasLtMatmulPreferenceCreate(&preference));
    check_lt(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                  &kWorkspaceBytes, sizeof kWorkspaceBytes));
    cublasLtMatmulHeuristicResult_t found[kAlgorithms];
    int count = 0;
    check_lt(cublasLtMatmulAlgoGetHeuristic(handle_, operation_, weight_, x_, out_, out_, preference, kAlgorithms,
                                            found, &count));
    cublasLtMatmulPreferenceDestroy(preference);
    std::pair<float, int> best{0, -1};
    for (int i = 0; i < count; ++i) {
      int32_t parts = 0;
      size_t written = 0;
      check_lt(cublasLtMatmulAlgoConfigGetAttribute(&found[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts,
                                                    sizeof parts, &written));
      if (parts > 1) continue;
      const float microseconds = median_microseconds([&] { run(p, found[i].algo); });
      if (best.second < 0 || microseconds < best.first) best = {microseconds, i};
    }
    if (best.second < 0) throw DeviceError("cuBLASLt: no algorithm that does not split K");
    return found[best.second].algo;
  }

  bool has_old_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t weight_ = nullptr, x_ = nullptr, out_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
  DeviceArray<std::byte> workspace_;
};

struct Layer {
  const char* name;
  int columns, depth;
  Follows follows;
};

struct Shape {
  const char* name;
  std::vector<Layer> layers;
};

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {{"golf30m",
                                          {{"queries, keys, values", 1024, 512, Follows::kNothing},
                                           {"attention's output", 512, 512, Follows::kSum},
                                           {"MLP up", 1792, 512, Follows::kActivation},
                                           {"MLP down", 512, 1792, Follows::kSum}}},
                                         {"smollm2",
                                          {{"queries, keys, values", 960, 576, Follows::kNothing},
                                           {"attention's output", 576, 576, Follows::kSum},
                                           {"MLP gate or up", 1536, 576, Follows::kNothing},
                                           {"MLP down", 576, 1536, Follows::kSum}}},
                                         {"llama-1b",
                                          {{"queries, keys, values", 3072, 2048, Follows::kNothing},
                                           {"attention's output", 2048, 2048, Follows::kSum},
                                           {"MLP gate or up", 8192, 2048, Follows::kNothing},
                                           {"MLP down", 2048, 8192, Follows::kSum}}}};
  return all;
}

// Are rows those of all windows in batches of other sizes too? Begins with out = 0.
bool keeps_bits(const Product& all, const Contender& contender) {
  constexpr int64_t kFew = 200;
  std::vector<std::vector<__nv_bfloat16>> found;
  for (const int64_t rows : {all.rows, 3 * kContext, kFew}) {
    Product some = all;
    some.rows = rows;
    check_cuda(cudaMemset(all.out, 0, static_cast<size_t>(all.rows * all.columns) * sizeof(__nv_bfloat16)));
    contender.run(some);
    found.emplace_back(static_cast<size_t>(kFew * all.columns));
    check_cuda(
        cudaMemcpy(found.back().data(), all.out, found.back().size() * sizeof(__nv_bfloat16), cudaMemcpyDeviceToHost));
  }
  return std::ranges::all_of(found, [&](const auto& rows) {
    return std::memcmp(rows.data(), found[0].data(), rows.size() * sizeof rows[0]) == 0;
  });
}

void compare(const Layer& layer) {
  const int64_t rows = kWindows * kContext;
  const auto x = random_values(rows * layer.depth, 1), weight = random_values(int64_t{layer.columns} * layer.depth, 2);
  const DeviceArray<__nv_bfloat16> out(rows * layer.columns);
  const Product p{x.data(), weight.data(), out.data(), rows, layer.columns, layer.depth, layer.follows};
  const LtProduct lt(p);
  std::vector<Contender> contenders = {{"ours", run_ours},
                                       {"cuBLASLt", [&](const Product& some) {
                                          if (some.rows == p.rows) return lt.run(some);
                                          LtProduct(some, &lt).run(some);
                                          check_cuda(cudaDeviceSynchronize());  // before its workspace goes
                                        }}};
  std::ranges::move(cutlass_contenders(layer.follows), std::back_inserter(contenders));
  std::vector<float> times;
  for (const Contender& contender : contenders) times.push_back(median_microseconds([&] { contender.run(p); }));
  const float fastest = *std::ranges::min_element(times);
  const double operations = 2.0 * static_cast<double>(rows) * layer.columns * layer.depth;
  for (size_t i = 0; i < times.size(); ++i)
    std::printf("%-22s %5d x %4d  %-9s  %-40s %8.1f us %6.0f TFLOP/s %5.2f  %s\n", layer.name, layer.columns,
                layer.depth, name_of(layer.follows), contenders[i].name.c_str(), times[i], operations / times[i] * 1e-6,
                fastest / times[i], keeps_bits(p, contenders[i]) ? "same bits" : "bits differ");
}

int run(int count, char** names) {
  for (const Shape& shape : shapes()) {
    const bool is_wanted = count < 2 ? shape.name == std::string("golf30m")
                                     : std::any_of(names + 1, names + count,
                                                   [&](const char* name) { return shape.name == std::string(name); });
    if (!is_wanted) continue;
    std::printf("%s, %lld rows\n", shape.name, static_cast<long long>(kWindows * kContext));
    for (const Layer& layer : shape.layers) compare(layer);
  }
  return 0;
}

}  // namespace
}  // namespace thimble

int main(int count, char** names) {
  return thimble::exit_code_of("cuda_products_bench", [&] { return thimble::run(count, names); });
}
