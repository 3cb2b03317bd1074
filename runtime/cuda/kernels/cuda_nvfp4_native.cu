// cuda_nvfp4_native.cu: cuBLASLt's block-scaled product (compute capability 10.0 and more), selected at run time.
// The library is opened when it is first asked for: a program that never meets such a device does not need it.
#include <cublasLt.h>
#include <dlfcn.h>

#include <utility>

#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/cuda/kernels/cuda_nvfp4.h"
#include "runtime/cuda/kernels/cuda_nvfp4_native.cuh"

namespace thimble {

#if CUBLAS_VERSION < 120800

// Toolkits before CUDA 12.8 do not know FP4.
std::string why_not_native_nvfp4(int) { return "this build's CUDA Toolkit is older than 12.8"; }
struct NativeNvfp4Product::State {};
NativeNvfp4Product::NativeNvfp4Product() { throw DeviceError(why_not_native_nvfp4(0)); }
NativeNvfp4Product::~NativeNvfp4Product() = default;
bool NativeNvfp4Product::multiply(const DeviceNvfp4&, const DeviceNvfp4&, float*, int64_t, int64_t, int64_t, float,
                                  cudaStream_t) {
  return false;
}
Matrix multiply_nvfp4_natively(int ordinal, const Nvfp4Codes&, int64_t, const Nvfp4Codes&, int64_t, int64_t) {
  throw DeviceError(why_not_native_nvfp4(ordinal));
}

#else

namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kNativeCapability = 100;

// The functions of libcublasLt that are called here.
struct Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_product = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_product = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_product = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) find_algorithms = nullptr;
  decltype(&cublasLtMatmul) multiply = nullptr;
  std::string problem;  // why it cannot be used; empty when it can

  Library() {
    const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VERSION / 10000);
    void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      problem = name + " cannot be opened";
      return;
    }
    auto find = [&](auto& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)> >(dlsym(handle, symbol));
      if (!function) problem = name + " lacks " + symbol;
    };
    find(create, "cublasLtCreate");
    find(destroy, "cublasLtDestroy");
    find(create_product, "cublasLtMatmulDescCreate");
    find(destroy_product, "cublasLtMatmulDescDestroy");
    find(set_product, "cublasLtMatmulDescSetAttribute");
    find(create_layout, "cublasLtMatrixLayoutCreate");
    find(destroy_layout, "cublasLtMatrixLayoutDestroy");
    find(create_preference, "cublasLtMatmulPreferenceCreate");
    find(destroy_preference, "cublasLtMatmulPreferenceDestroy");
    find(set_preference, "cublasLtMatmulPreferenceSetAttribute");
    find(find_algorithms, "cublasLtMatmulAlgoGetHeuristic");
    find(multiply, "cublasLtMatmul");
  }
};

const Library& library() {
  static const Library opened;
  return opened;
}

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw DeviceError(std::string("cuBLASLt: ") + what + " failed with status " + std::to_string(int{status}));
}

// Something of cuBLASLt's that must be destroyed.
template <typename T>
class Owned {
 public:
  Owned(T value, cublasStatus_t (*destroy)(T)) : value_(value), destroy_(destroy) {}
  ~Owned() { destroy_(value_); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  operator T() const { return value_; }

 private:
  T value_;
  cublasStatus_t (*destroy_)(T);
};

cublasLtHandle_t new_handle() {
  cublasLtHandle_t handle = nullptr;
  check(library().create(&handle), "opening a handle");
  return handle;
}

cublasLtMatrixLayout_t new_layout(cudaDataType type, int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(library().create_layout(&layout, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows),
        "describing a matrix");
  return layout;
}

// Column-major D (N, M) = W^T X, both operands (K, rows): the row-major C (M, N).
cublasLtMatmulDesc_t new_product(const uint8_t* w_scales, const uint8_t* x_scales) {
  cublasLtMatmulDesc_t product = nullptr;
  check(library().create_product(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
  auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    check(library().set_product(product, attribute, &value, sizeof(value)), "describing a product");
  };
  const cublasOperation_t transposed = CUBLAS_OP_T, plain = CUBLAS_OP_N;
  const cublasLtMatmulMatrixScale_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
  set(CUBLASLT_MATMUL_DESC_TRANSA, transposed);
  set(CUBLASLT_MATMUL_DESC_TRANSB, plain);
  set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
  set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, w_scales);
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x_scales);
  return product;
}

cublasLtMatmulPreference_t new_preference() {
  cublasLtMatmulPreference_t preference = nullptr;
  check(library().create_preference(&preference), "describing a preference");
  check(library().set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes,
                                 sizeof(kWorkspaceBytes)),
        "describing a preference");
  return preference;
}

}  // namespace

std::string why_not_native_nvfp4(int ordinal) {
  DeviceScope scope(ordinal);
  if (const int capability = compute_capability(); capability < kNativeCapability)
    return "compute capability " + std::to_string(capability / 10) + "." + std::to_string(capability % 10) +
           ", products in FP4 need 10.0";
  return library().problem;
}

struct NativeNvfp4Product::State {
  Owned<cublasLtHandle_t> handle{new_handle(), library().destroy};
  Owned<cublasLtMatmulPreference_t> preference{new_preference(), library().destroy_preference};
  DeviceArray<uint8_t> workspace{static_cast<int64_t>(kWorkspaceBytes)};
};

NativeNvfp4Product::NativeNvfp4Product() : state_(std::make_unique<State>()) {}
NativeNvfp4Product::~NativeNvfp4Product() = default;

bool NativeNvfp4Product::multiply(const DeviceNvfp4& a, const DeviceNvfp4& b, float* c, int64_t m, int64_t n, int64_t k,
                                  float alpha, cudaStream_t stream) {
  if (k % kNativeNvfp4Columns != 0) return false;
  const Library& lt = library();
  const Owned product(new_product(b.scales, a.scales), lt.destroy_product);
  const Owned b_layout(new_layout(CUDA_R_4F_E2M1, k, n), lt.destroy_layout);
  const Owned a_layout(new_layout(CUDA_R_4F_E2M1, k, m), lt.destroy_layout);
  const Owned c_layout(new_layout(CUDA_R_32F, n, m), lt.destroy_layout);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status = lt.find_algorithms(state_->handle, product, b_layout, a_layout, c_layout, c_layout,
                                                   state_->preference, 1, &found, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || count == 0) return false;
  check(status, "looking for an algorithm");
  const float beta = 0;
  check(lt.multiply(state_->handle, product, &alpha, b.codes, b_layout, a.codes, a_layout, &beta, c, c_layout, c,
                    c_layout, &found.algo, state_->workspace.data(), kWorkspaceBytes, stream),
        "the product");
  return true;
}

Matrix multiply_nvfp4_natively(int ordinal, const Nvfp4Codes& a, int64_t m, const Nvfp4Codes& b, int64_t n, int64_t k) {
  if (const std::string problem = why_not_native_nvfp4(ordinal); !problem.empty()) throw DeviceError(problem);
  DeviceScope scope(ordinal);
  CudaStream stream;
  const DeviceNvfp4Matrix x(a, 0, m, k), w(b, 0, n, k);
  DeviceArray<float> c(m * n);
  if (!NativeNvfp4Product().multiply(x.view(), w.view(), c.data(), m, n, k, a.tensor_scale * b.tensor_scale, stream))
    throw DeviceError("cuBLASLt has no FP4 product of " + std::to_string(m) + " x " + std::to_string(n) + " over " +
                      std::to_string(k) + " columns; multiples of " + std::to_string(kNativeNvfp4Columns) +
                      " columns are allowed");
  stream.wait();
  Matrix result(m, n);
  check_cuda(cudaMemcpy(result.data(), c.data(), c.bytes(), cudaMemcpyDeviceToHost));
  return result;
}

#endif

}  // namespace thimble
