// latent_mover.cu: LatentMover on a device: Adam (adam.h) by element, and Viterbi (slope_viterbi.cuh) with a CTA for
// each column of a segment, over all matrices at once. Rounding differs from the host's.
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
  ConstCudaView gradient;  // (R, K) by weights
  CudaView weights;        // (R, K) of the path
  int64_t first_path = 0;  // among the paths of all matrices, one for each column of each segment

  // body(i, g) of every element i of CTA blockIdx.x's rows; g: its gradient by level, with what bits cost.
  template <typename Body>
  __device__ void for_each_element(float bit_price, const Body& body) const {
    for (int64_t row = blockIdx.x; row < rows; row += kMomentCtas) {
      const float row_size = row_sizes[row], row_scale = row_scales[row];
      const float* by_weight = gradient.data + row * gradient.stride;
      for (int64_t column = threadIdx.x; column < columns; column += kMoverThreads) {
        const int64_t i = row * columns + column;
        body(i, by_weight[column] * (row_size * column_sizes[column]) +
                    bit_price * bits_by_level(levels[i], row_scale * column_scales[column]));
      }
    }
  }
};

// AdamStep, less what follows from the matrix.
struct Moves {
  float scale;                      // of the rate
  float second_scale, quiet_share;  // bias correction of second moments; as in AdamStep
  float bit_price;
};

// CTA (x, y): the second moments of its rows of matrix y. sums: (matrices, kMomentCtas) of them.
__global__ void __launch_bounds__(kMoverThreads)
    moments_kernel(const MovedMatrix* matrices, float bit_price, float* sums) {
  constexpr float kSecondShare = 0.05f;
  const MovedMatrix matrix = matrices[blockIdx.y];
  float sum = 0;
  matrix.for_each_element(bit_price, [&](int64_t i, float g) {
    const float second = matrix.second[i] + kSecondShare * (g * g - matrix.second[i]);
    matrix.second[i] = second;
    sum += second;
  });
  sum = sum_over_block(sum);
  if (threadIdx.x == 0) sums[blockIdx.y * kMomentCtas + blockIdx.x] = sum;
}

// The same CTAs.
__global__ void __launch_bounds__(kMoverThreads)
    move_kernel(const MovedMatrix* matrices, const float* sums, const Moves moves) {
  static_assert(kMomentCtas == kMoverThreads);
  const MovedMatrix matrix = matrices[blockIdx.y];
  const float mean =
      sum_over_block(sums[blockIdx.y * kMomentCtas + threadIdx.x]) / static_cast<float>(matrix.rows * matrix.columns);
  if (mean == 0) return;
  const float quiet = moves.quiet_share * sqrtf(mean * moves.second_scale);
  matrix.for_each_element(moves.bit_price, [&](int64_t i, float g) {
    matrix.levels[i] -= moves.scale * g / (sqrtf(matrix.second[i] * moves.second_scale) + quiet);
  });
}

// The weights of the path of least squared distance down one column of a segment, of one of `count` matrices.
__global__ void __launch_bounds__(kPathThreads) path_kernel(const MovedMatrix* matrices, int count, float cost_scale) {
  extern __shared__ __align__(16) std::byte shared[];
  ViterbiMemory& memory = *reinterpret_cast<ViterbiMemory*>(shared);
  int before = 0;  // the last matrix that does not begin after this path
  for (int after = count; after - before > 1;) {
    const int middle = (before + after) / 2;
    (matrices[middle].first_path <= blockIdx.x ? before : after) = middle;
  }
  const MovedMatrix matrix = matrices[before];
  const CudaView weights = matrix.weights;
  const int64_t path = blockIdx.x - matrix.first_path;
  const int64_t column = path % matrix.columns, first = path / matrix.columns * kSegmentRows;
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
    memory_->views = DeviceArray<MovedMatrix>(matrices());
    memory_->sums = DeviceArray<float>(int64_t{matrices()} * kMomentCtas);
  }
  ~CudaLatentMover() override {
    DeviceScope scope(on_device_.ordinal());
    memory_.reset();
  }

  void find_paths() override {
    DeviceScope scope(on_device_.ordinal());
    if (matrices() == 0) return;
    int64_t paths = 0;
    upload([&](const std::string& name, MovedMatrix& view) {
      view.weights = on_device_.matrix(name);
      view.first_path = paths;
      paths += view.columns * divide_up(view.rows, kSegmentRows);
    });
    launch_kernel(path_kernel, {static_cast<unsigned>(paths), kPathThreads, static_cast<int>(sizeof(ViterbiMemory))},
                  memory_->stream, memory_->views.data(), matrices(), path_cost_scale(0));
    memory_->stream.wait();
  }

  void step(const CodeLearnerOptions& options, const std::function<void()>& meanwhile) override {
    DeviceScope scope(on_device_.ordinal());
    const AdamStep step = learner_.begin_step(options);
    const auto second_scale = static_cast<float>(1 / (1 - std::pow(0.95, static_cast<double>(step.number))));
    const Moves moves{static_cast<float>(step.rate), second_scale, static_cast<float>(step.quiet_share),
                      static_cast<float>(options.bit_price)};
    if (matrices() == 0) return meanwhile();
    upload([&](const std::string& name, MovedMatrix& view) { view.gradient = on_device_.gradient(name); });
    const LaunchShape shape{dim3(kMomentCtas, static_cast<unsigned>(matrices())), kMoverThreads};
    launch_kernel(moments_kernel, shape, memory_->stream, memory_->views.data(), moves.bit_price, memory_->sums.data());
    launch_kernel(move_kernel, shape, memory_->stream, memory_->views.data(), memory_->sums.data(), moves);
    meanwhile();
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

  void keep() override {
    DeviceScope scope(on_device_.ordinal());
    for (auto& [name, matrix] : memory_->matrices) {
      matrix.kept.reserve(matrix.levels.count(), "latents");
      check_cuda(cudaMemcpyAsync(matrix.kept.data(), matrix.levels.data(), matrix.levels.bytes(),
                                 cudaMemcpyDeviceToDevice, memory_->stream));
    }
    memory_->stream.wait();
    is_kept_ = true;
  }
  void store_kept(CodeLearner& to) override {
    if (!is_kept_) return;
    DeviceScope scope(on_device_.ordinal());
    for (auto& [name, matrix] : memory_->matrices)
      check_cuda(cudaMemcpyAsync(to.latents().at(name).levels.data(), matrix.kept.data(), matrix.kept.bytes(),
                                 cudaMemcpyDeviceToHost, memory_->stream));
    memory_->stream.wait();
    is_kept_ = false;
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
    DeviceArray<float> kept;  // levels
    MovedMatrix view;
  };
  // Made and freed with the device current.
  struct Memory {
    std::map<std::string, DeviceMatrix> matrices;
    DeviceArray<MovedMatrix> views;  // of the matrices, in order
    DeviceArray<float> sums;         // of second moments
    CudaStream stream;
  };

  int matrices() const { return static_cast<int>(memory_->matrices.size()); }
  // Gives the device the matrices as complete(name, matrix) leaves them.
  template <typename Complete>
  void upload(const Complete& complete) {
    std::vector<MovedMatrix> views;
    for (const auto& [name, matrix] : memory_->matrices) complete(name, views.emplace_back(matrix.view));
    memory_->views.copy(views);
  }

  CodeLearner& learner_;
  CudaStudent& on_device_;
  std::unique_ptr<Memory> memory_;
  bool is_kept_ = false;  // and not stored since
};

}  // namespace

std::unique_ptr<LatentMover> make_cuda_latent_mover(CodeLearner& learner, const QuantizedModel& student,
                                                    CudaStudent& on_device) {
  return std::make_unique<CudaLatentMover>(learner, student, on_device);
}

}  // namespace thimble
