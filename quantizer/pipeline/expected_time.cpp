// expected_time.cpp: see expected_time.h.
#include "quantizer/pipeline/expected_time.h"

#include <algorithm>
#include <chrono>
#include <variant>

#include "gptq/slope/slope_solver.h"
#include "quantizer/methods/slope/distill_input.h"
#include "quantizer/methods/slope/learn_codes.h"
#include "runtime/base/parallel.h"
#include "runtime/base/random.h"
#include "runtime/cpu/cpu_gradients.h"
#include "runtime/cpu/gemm.h"

namespace thimble {
namespace {

// Shares of a product's speed that whole passes reach; of generation, whose products have few rows.
constexpr double kPassSpeed = 0.75, kWritingSpeed = 0.32;
// How often a search solves all matrices, and what cross terms solve again.
constexpr double kUsualSolves = 6, kCrossedSolves = 2;

// Of a network, in floating-point operations.
struct Costs {
  double forward = 0;  // of a token within a sequence of the length
  double hessians = 0;
  double factors = 0;  // of all Hessians
  double solve = 0;    // error feedback of all matrices
  double weights = 0;  // number of them
};

Costs costs_of(const Network& network, int64_t length) {
  Costs costs;
  double multiplied = 0, attended = 0;
  for (const Node& node : network.nodes) {
    if (const auto* linear = std::get_if<op::Linear>(&node.operation)) {
      const MatrixUse& matrix = network.matrix(linear->weight);
      multiplied += static_cast<double>(matrix.rows * matrix.columns);
    }
    if (const auto* attention = std::get_if<op::Attention>(&node.operation)) {
      const int64_t reach = attention->window > 0 ? std::min(length, attention->window) : length;
      attended += static_cast<double>(attention->heads * attention->head_dim * reach);  // two products, half of each
    }
  }
  const MatrixUse& head = network.matrix(network.head.weight);
  multiplied += static_cast<double>(head.rows * head.columns);
  costs.forward = 2 * (multiplied + attended);
  for (const LinearInput& input : network.linear_inputs()) {
    const auto columns = static_cast<double>(network.matrix(input.readers.front()).columns);
    costs.hessians += columns * columns;
    costs.factors += columns * columns * columns;
  }
  for (const MatrixUse& matrix : network.matrices) {
    const auto rows = static_cast<double>(matrix.rows), columns = static_cast<double>(matrix.columns);
    costs.solve += rows * columns * columns;
    costs.weights += rows * columns;
  }
  return costs;
}

// The original's pass, unless it is kept, and both of the model's.
constexpr double kTunedPasses = 4, kLearnedPasses = 5;

// A forward pass, where layers are computed again for the backward pass.
double passes_again(const Network& network, int64_t length, bool for_gains, bool for_matrices) {
  return cpu_gradient_options(network, length, for_gains, for_matrices).keeps == Keeps::kCrossing ? 1 : 0;
}

ComputeWork search_work(const QuantizeRequest& request, const Network& network, const Costs& costs) {
  const auto length = static_cast<double>(request.calibration.length);
  if (request.method != MethodKind::kSlope) return {costs.factors + costs.solve, 0};
  const bool has_trellis = request.slope.trellis_bits > 0;
  ComputeWork work;
  double solves = kUsualSolves;
  if (request.slope.cross_term > 0) {
    const auto tokens = static_cast<double>(std::min(request.calibration.sequences, request.cross_sequences)) * length;
    work.products += kCrossedSolves * (tokens * (2 * costs.forward + 3 * costs.hessians) + 2 * costs.factors);
    solves += kCrossedSolves;
  }
  work.products += costs.factors + solves * costs.solve;
  work.paths += has_trellis ? solves * costs.weights : 0;
  auto passes = [&](double usual, bool for_matrices) {
    return usual + passes_again(network, request.calibration.length, /*for_gains=*/true, for_matrices);
  };
  if (request.codes.steps > 0) {
    const auto blocks = static_cast<double>(learned_blocks(network, request.codes.block).size());
    const auto steps = static_cast<double>(request.codes.steps);
    const double tokens = steps * static_cast<double>(request.codes.batch) * length;
    work.products += blocks * tokens * passes(kLearnedPasses, /*for_matrices=*/true) * costs.forward;
    work.paths += has_trellis ? steps / kStepsPerPath * costs.weights : 0;
  } else {
    const auto sequences = static_cast<double>(request.tuner.steps * request.tuner.batch);
    work.products += sequences * length * passes(kTunedPasses, /*for_matrices=*/false) * costs.forward;
  }
  return work;
}

}  // namespace

RunWork work_of_run(const QuantizeRequest& request, const Network& network, int64_t scored_positions) {
  const CalibrationOptions& calibration = request.calibration;
  const Costs costs = costs_of(network, calibration.length);
  const auto length = static_cast<double>(calibration.length);
  RunWork work;
  if (!request.given_text.is_given()) {
    const auto written = static_cast<double>(calibration.sequences) * length;
    work.writing.products = written * costs.forward * kPassSpeed / kWritingSpeed;  // as many as passes do meanwhile
  }
  // Backward twice the arithmetic of forward.
  const double passes = request.fisher ? 3 + passes_again(network, calibration.length, false, false) : 1;
  work.statistics.products =
      static_cast<double>(request.statistics_count()) * length * (passes * costs.forward + costs.hessians);
  work.searching = search_work(request, network, costs);
  work.scoring.products = 2 * static_cast<double>(scored_positions) * costs.forward;
  return work;
}

ComputeWork measure_machine(int trellis_bits) {
  auto seconds_of = [](const auto& body) {
    const auto began = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  };
  auto filled = [](int64_t rows, int64_t columns) {
    Matrix values(rows, columns);
    for (size_t i = 0; i < values.values().size(); ++i)
      values.values()[i] = static_cast<float>(8 * uniform_at(0, 0, i) - 4);
    return values;
  };
  ComputeWork per_second;
  constexpr int64_t kRows = 1024, kInner = 512, kColumns = 1024;
  const Matrix a = filled(kRows, kInner), b = filled(kColumns, kInner);
  Matrix c(kRows, kColumns);
  double least = seconds_of([&] { multiply_nt(a, b, c); });
  for (int i = 0; i < 4; ++i) least = std::min(least, seconds_of([&] { multiply_nt(a, b, c); }));
  per_second.products = 2.0 * kRows * kInner * kColumns / least;
  constexpr int64_t kPathRows = 256;
  const int64_t path_columns = 64 * thread_count();
  const Matrix levels = filled(kPathRows, path_columns);
  const SlopeGrid grid{trellis_bits, 0, std::vector<int16_t>(kPathRows),
                       std::vector<int16_t>(static_cast<size_t>(path_columns))};
  least = seconds_of([&] { solve_slope(levels, nullptr, grid, {}, "levels"); });
  per_second.paths = static_cast<double>(kPathRows * path_columns) / least;
  return per_second;
}

RunSeconds expected_seconds(const RunWork& work, const ComputeWork& per_second) {
  auto seconds = [&](const ComputeWork& stage) {
    return stage.products / (kPassSpeed * per_second.products) + stage.paths / per_second.paths;
  };
  return {seconds(work.writing), seconds(work.statistics), seconds(work.searching), seconds(work.scoring)};
}

}  // namespace thimble
