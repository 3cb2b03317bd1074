// latent_mover.cu: LatentMover on a device: Adam (adam.h) by element, and Viterbi (slope_viterbi.cuh) with a CTA for
// each column of a segment. Rounding differs from the host's.
#include <cmath>

#include "gptq/slope/code_learner.h"
#include "gptq/slope/slope_viterbi.cuh"
#include "runtime/codes/code_numbers.h"
#include "runtime/cuda/cuda_student.cuh"
#include "runtime/cuda/kernels/cuda_block_sums.cuh"
#include "runtime/cuda/kernels/cuda_context.cuh"

namespace thimble {
namespace {

constexpr int kMoverThreads = kRowBlockThreads;
constexpr int kMomentCtas = 256;  // each sums its share of a matrix's second moments
constexpr int kPathThreads = kViterbiThreads;

// One matrix (R, K); pointers to device memory.
struct MovedMatrix {
  int64_t rows, columns;
  float *levels, *second;                   // (R, K)
  const float *row_sizes, *column_sizes;    // (R), (K) of steps
  const float *row_scales, *column_scales;  // (R), (K) LevelScales
  int trellis_bits;

  __device__ int64_t count() const { return rows * columns; }
  // From the gradient by weights to that by levels, with what bits cost.
  __device__ float by_level(const ConstCudaView& gradient, float bit_price, int64_t i) const {
    const int64_t row = i / columns, column = i % columns;
    return gradient.data[row * gradient.stride + column] * (row_sizes[row] * column_sizes[column]) +
           bit_price * bits_by_level(levels[i], row_scales[row] * column_scales[column]);
  }
};

// AdamStep, less what follows from the matrix.
struct Moves {
  float scale;                      // of the rate
  float second_scale, quiet_share;  // bias correction of second moments; as in AdamStep
  float bit_price;
};

// sums: (kMomentCtas) of second moments.
__global__ void __launch_bounds__(kMoverThreads)
    moments_kernel(const MovedMatrix matrix, const ConstCudaView gradient, float bit_price, float* sums) {
  constexpr float kSecondShare = 0.05f;
  float sum = 0;
  for (int64_t i = int64_t{blockIdx.x} * kMoverThreads + threadIdx.x; i < matrix.count();
       i += int64_t{kMomentCtas} * kMoverThreads) {
    const float g = matrix.by_level(gradient, bit_price, i);
    const float second = matrix.second[i] + kSecondShare * (g * g - matrix.second[i]);
    matrix.second[i] = second;
    sum += second;
  }
  sum = sum_over_block(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kMoverThreads)
    move_kernel(const MovedMatrix matrix, const ConstCudaView gradient, const float* sums, const Moves moves) {
  static_assert(kMomentCtas == kMoverThreads);
  const float mean = sum_over_block(sums[threadIdx.x]) / static_cast<float>(matrix.count());
  if (mean == 0) return;
  const float quiet = moves.quiet_share * sqrtf(mean * moves.second_scale);
  for (int64_t i = int64_t{blockIdx.x} * kMoverThreads + threadIdx.x; i < matrix.count();
       i += int64_t{gridDim.x} * kMoverThreads)
    matrix.levels[i] -= moves.scale * matrix.by_level(gradient, moves.bit_price, i) /
                        (sqrtf(matrix.second[i] * moves.second_scale) + quiet);
}

// The weights of the path of least squared distance down one column of a segment.
__global__ void __launch_bounds__(kPathThreads)
    path_kernel(const MovedMatrix matrix, float cost_scale, CudaView weights) {
  extern __shared__ __align__(16) std::byte shared[];
  ViterbiMemory& memory = *reinterpret_cast<ViterbiMemory*>(shared);
  const int64_t column = blockIdx.x, first = int64_t{blockIdx.y} * kSegmentRows;
  const int rows = static_cast<int>(min(int64_t{kSegmentRows}, matrix.rows - first));
  const LevelCosts cost{nullptr, 0};
  auto target_of = [&](int row) { return reachable_target(matrix.levels[(first + row) * matrix.columns + column]); };
  if (matrix.trellis_bits > 0) {
    for (int row = static_cast<int>(threadIdx.x); row < rows; row += kPathThreads) {
      const double target = target_of(row);
      const int32_t nearest = first_neighbour(target);
      float costs[kBranches];
#pragma unroll
      for (int32_t branch = 0; branch < kBranches; ++branch) costs[branch] = cost(target, neighbour(nearest, branch));
      memory.set_costs(row, costs, cost_scale);
    }
    find_residues(memory, matrix.trellis_bits, rows);
  }
  for (int row = static_cast<int>(threadIdx.x); row < rows; row += kPathThreads) {
    const double target = target_of(row);
    const int32_t level = matrix.trellis_bits == 0 ? nearest_even_level(target)
                                                   : neighbour(first_neighbour(target), memory.residues[row]);
    weights.data[(first + row) * weights.stride + column] =  // as dequantize() does
        __fmul_rn(__fmul_rn(static_cast<float>(level), matrix.row_sizes[first + row]), matrix.column_sizes[column]);
  }
}

std::vector<float> sizes_of(std::span<const int16_t> steps) {
  std::vector<float> sizes;
  for (int16_t step : steps) sizes.push_back(step_size(step));
  return sizes;
}

class CudaLatentMover final : public LatentMover {
 public:
  CudaLatentMover(CodeLearner& learner, const QuantizedModel& student, CudaStudent& on_device)
      : learner_(learner), on_device_(on_device) {
    DeviceScope scope(on_device_.ordinal());
    memory_ = std::make_unique<Memory>();
    for (const QuantizedTensor& tensor : student.tensors) {
      const auto found = learner_.latents().find(tensor.name);
      if (found == learner_.latents().end()) continue;
      const auto& codes = std::get<SteppedCodes>(tensor.data);
      memory_->matrices.try_emplace(tensor.name, found->second, codes);
    }
  }
  ~CudaLatentMover() override {
    DeviceScope scope(on_device_.ordinal());
    memory_.reset();
  }

  void find_paths() override {
    DeviceScope scope(on_device_.ordinal());
    for (auto& [name, matrix] : memory_->matrices) {
      const MovedMatrix& view = matrix.view;
      const dim3 grid(static_cast<unsigned>(view.columns), static_cast<unsigned>(divide_up(view.rows, kSegmentRows)));
      launch_kernel(path_kernel, {grid, kPathThreads, static_cast<int>(sizeof(ViterbiMemory))}, memory_->stream, view,
                    path_cost_scale(0), on_device_.matrix(name));
    }
    memory_->stream.wait();
  }

  void step(const CodeLearnerOptions& options) override {
    DeviceScope scope(on_device_.ordinal());
    const AdamStep step = learner_.begin_step(options);
    const auto second_scale = static_cast<float>(1 / (1 - std::pow(0.95, static_cast<double>(step.number))));
    const Moves moves{static_cast<float>(step.rate), second_scale, static_cast<float>(step.quiet_share),
                      static_cast<float>(options.bit_price)};
    for (auto& [name, matrix] : memory_->matrices) {
      const ConstCudaView gradient = on_device_.gradient(name);
      const LaunchShape shape{dim3(kMomentCtas), kMoverThreads};
      launch_kernel(moments_kernel, shape, memory_->stream, matrix.view, gradient, moves.bit_price,
                    memory_->sums.data());
      launch_kernel(move_kernel, shape, memory_->stream, matrix.view, gradient,
                    static_cast<const float*>(memory_->sums.data()), moves);
    }
    memory_->stream.wait();
  }

  void store() override {
    DeviceScope scope(on_device_.ordinal());
    for (auto& [name, matrix] : memory_->matrices) {
      CodeLearner::Latents& latents = learner_.latents().at(name);
      for (const auto& [from, to] :
           {std::pair(&matrix.levels, &latents.levels), std::pair(&matrix.second, &latents.second)})
        check_cuda(cudaMemcpyAsync(to->data(), from->data(), from->bytes(), cudaMemcpyDeviceToHost, memory_->stream));
    }
    memory_->stream.wait();
  }

 private:
  struct DeviceMatrix {
    DeviceMatrix(const CodeLearner::Latents& latents, const SteppedCodes& codes)
        : levels(std::span<const float>(latents.levels), "latents"),
          second(std::span<const float>(latents.second), "latents"),
          row_sizes(std::span<const float>(sizes_of(codes.row_steps))),
          column_sizes(std::span<const float>(sizes_of(codes.column_steps))),
          row_scales(std::span<const float>(latents.scales.rows)),
          column_scales(std::span<const float>(latents.scales.columns)),
          view{std::ssize(codes.row_steps),
               std::ssize(codes.column_steps),
               levels.data(),
               second.data(),
               row_sizes.data(),
               column_sizes.data(),
               row_scales.data(),
               column_scales.data(),
               codes.trellis_bits} {}
    DeviceArray<float> levels, second, row_sizes, column_sizes, row_scales, column_scales;
    MovedMatrix view;
  };
  // Made and freed with the device current.
  struct Memory {
    std::map<std::string, DeviceMatrix> matrices;
    DeviceArray<float> sums{kMomentCtas};
    CudaStream stream;
  };

  CodeLearner& learner_;
  CudaStudent& on_device_;
  std::unique_ptr<Memory> memory_;
};

}  // namespace

std::unique_ptr<LatentMover> make_cuda_latent_mover(CodeLearner& learner, const QuantizedModel& student,
                                                    CudaStudent& on_device) {
  return std::make_unique<CudaLatentMover>(learner, student, on_device);
}

}  // namespace thimble
