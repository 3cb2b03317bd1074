// hessian.cuh: HessianCollector for activations in device memory.
// Sums of up to 2048 tokens are float32 (products of 16 bits on the tensor cores, float32 ones without TF32), these
// sums are added in float64 in the order of the tokens. Each depends on its own tokens only, so that Hessians are the
// same bits however the sequences are grouped into calls. T = tokens of one sequence, K = input columns of a layer.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "gptq/statistics/device_arena.cuh"
#include "gptq/statistics/hessian.h"
#include "runtime/cuda/kernels/cuda_context.cuh"

namespace thimble {

// Most bytes of products that wait to be added, when memory is plentiful.
constexpr size_t kMostGramBytes = size_t{1} << 30;

class CudaHessianCollector {
 public:
  // On the current device. At most `workspace_bytes` hold products that wait to be added (but at least those of 2048
  // tokens); each input's sum takes 4 K (K + 1) B besides.
  // `first_sequence`: the number in errors of the first sequence.
  explicit CudaHessianCollector(size_t workspace_bytes = kMostGramBytes, int64_t first_sequence = 0);

  // The number in errors of the first sequence, of a collector that nothing has been added to.
  void begin_at(int64_t first_sequence) { first_sequence_ = first_sequence; }

  // Room for the sum of an input of `columns` columns, and for products of so many sequences, so that add() allocates
  // nothing.
  void reserve_sum(std::span<const std::string> layers, int64_t columns) { input_of(layers, columns, nullptr); }
  void reserve_products(int64_t columns, int64_t sequences, int64_t tokens);

  // Enqueues x (sequences * T, K), rows `stride` elements apart, as input of all of `layers`, sequence after sequence.
  // The same input always comes with the same list. All calls use one stream; x must stay until it has run.
  // T: __nv_bfloat16, __half or float.
  template <typename T>
  void add(std::span<const std::string> layers, const T* x, int64_t stride, int64_t sequences, int64_t tokens,
           int64_t columns, cudaStream_t stream);

  // Adds the sums of sequences that come after this collector's, from one on this or another device. Both keep their
  // sums only: all that was enqueued must have run, and nothing more may be added.
  void merge(CudaHessianCollector&& later);
  // Frees what only adding needs.
  void free_workspace() { workspace_ = DeviceArray<float>(); }

  // The sums of x x^T, not divided by the number of tokens; otherwise as finish().
  std::vector<SharedHessian> finish_sums() &&;

  // The sum of x x^T of the only input, packed as in SymmetricMatrix, left in device memory. The collector begins anew
  // and keeps its workspace. Otherwise as finish().
  DeviceArray<double> take_sum();

  // Waits for the device. A value that is not finite, or whose square overflows float32, is an Error (bad input) that
  // names the layer, the sequence and the column. Other errors are those of HessianCollector::finish().
  HessianSet finish() &&;

 private:
  struct Input {
    std::vector<std::string> layers;
    int64_t columns = 0, sequence_count = 0, token_count = 0;
    DeviceArray<double> sum;  // packed lower triangle
    // The first diagonal element of a product that is not finite, as sequence * K + column; ~0 for none. Sequences
    // are counted from first_sequence_ on.
    DeviceArray<unsigned long long> first_bad;
  };
  Input& input_of(std::span<const std::string> layers, int64_t columns, cudaStream_t stream);
  int64_t pieces_at_once(int64_t columns) const;
  static void require_finite(const Input& input);

  int device_ = 0;
  size_t workspace_bytes_;
  int64_t first_sequence_;
  DeviceArray<float> workspace_;
  std::map<std::string, Input> inputs_;  // by the first layer's name
};

}  // namespace thimble
