// quantize_plans_test.cpp: plans of the host's memory against what the heap holds while the stages that they are of
// run.
#include <gtest/gtest.h>

#include <cstdlib>

#include "gptq/factor/input_pairs.h"
#include "gptq/statistics/hessian_groups.h"
#include "packer/container/section_packer.h"
#include "quantizer/methods/slope/slope_layers.h"
#include "quantizer/pipeline/calibration.h"
#include "runtime/base/random.h"
#include "runtime/codes/trellis.h"
#include "runtime/cpu/cpu_models.h"
#include "runtime/cpu/cpu_plans.h"
#include "runtime/device/models.h"
#include "tests/runtime/families/golf/random_model.h"
#include "tests/support/allocation_probe.h"
#include "tests/support/thread_ranks.h"

namespace thimble::quantize_plans_test {
namespace {

// Within 3 % of the plan, or 16 MiB.
void expect_planned(uint64_t found, uint64_t planned) {
  constexpr int64_t kAllowed = int64_t{16} << 20;
  const int64_t difference = static_cast<int64_t>(found) - static_cast<int64_t>(planned);
  EXPECT_LE(std::abs(difference), std::max<int64_t>(kAllowed, static_cast<int64_t>(planned) * 3 / 100))
      << found << " B, planned " << planned << " B";
}

// Large enough for every term of a plan to exceed what is allowed.
class HostPlans : public ::testing::Test {
 protected:
  static constexpr int64_t kSequences = 3, kLength = 385;

  static GolfConfig config() {
    GolfConfig config = wide_golf_config();
    config.num_layers = 2;
    config.ve_layers = {1};
    config.model_dim = 768;
    config.mlp_mult = 3;
    config.vocab_size = 24'000;
    config.rope_train_seq_len = kLength;
    return config;
  }
  const Network& network() const { return *weights_->network; }

  void expect_divergence_planned(const DivergenceOptions& options) {
    const AllocationProbe probe;
    Weights student = *weights_;  // in codes of a byte
    for (StoredMatrix& matrix : student.matrices)
      matrix = {std::vector<int8_t>(static_cast<size_t>(matrix.rows() * matrix.cols()), int8_t{1}),
                std::vector<float>(static_cast<size_t>(matrix.rows()), 0.1F),
                std::vector<float>(static_cast<size_t>(matrix.cols()), 0.1F)};
    Gains gains;
    gains.small = student.small;
    const auto pass = make_divergence_pass(weights_, std::make_shared<const Weights>(std::move(student)), tokens_,
                                           Device{}, silent_, options);
    pass->set(gains);
    for (int step = 0; step < 2; ++step) pass->gradients(0, kSequences, !options.summed.empty());
    expect_planned(probe.peak_bytes(), plan_cpu_divergence(network(), kLength, kSequences, 0, options).bytes());
  }

  const std::shared_ptr<const Weights> weights_ = random_golf_weights(config(), 1);
  const TokenSequences tokens_ = {kSequences, kLength, random_tokens(kSequences* kLength, config().vocab_size, 3)};
  const WorkFolder nowhere_{""};
  const std::unique_ptr<Ranks> single_ = make_single_rank();
  const SharedWork alone_{nowhere_, *single_};
  SilentProgress silent_;
};

TEST_F(HostPlans, OfWritingText) {
  const CalibrationOptions options{kSequences, kLength};
  const AllocationProbe probe;
  make_cpu_generator(weights_, Numerics::kFp32, kLength)
      ->calibration(uniform_script(network().vocabulary(), options), 0, kSequences, silent_);
  const uint64_t found = probe.peak_bytes();
  expect_planned(found, plan_cpu_generation(network(), options, 0).bytes());
}

TEST_F(HostPlans, OfStatistics) {
  for (const bool with_loss : {false, true}) {
    SCOPED_TRACE(with_loss);
    const MemoryPlan plan = plan_host_statistics(network(), kLength, with_loss, 0, kNoMemoryLimit);
    EXPECT_GT(plan.bytes(), uint64_t{128} << 20);
    const AllocationProbe probe;
    collect_statistics(weights_, Device{}, tokens_, with_loss, 7, alone_, silent_);
    expect_planned(probe.peak_bytes(), plan.bytes());
  }
}

TEST_F(HostPlans, OfStatisticsInGroups) {
  const uint64_t weights = weights_->owned_bytes();  // there before the probe
  Device device;
  device.host_memory_bytes = host_pass_bytes(network(), kLength, /*with_loss=*/false, weights) + (uint64_t{100} << 20);
  const MemoryPlan plan = plan_host_statistics(network(), kLength, false, weights, device.host_memory_bytes);
  EXPECT_LE(plan.bytes(), device.host_memory_bytes);
  EXPECT_LT(plan.bytes(), plan_host_statistics(network(), kLength, false, weights, kNoMemoryLimit).bytes());
  const AllocationProbe probe;
  collect_statistics(weights_, device, tokens_, /*with_loss=*/false, 7, alone_, silent_);
  expect_planned(weights + probe.peak_bytes(), plan.bytes());
}

TEST_F(HostPlans, OfCrossTerms) {
  const AllocationProbe probe;
  const std::unique_ptr<InputPairs> pairs = make_input_pairs(weights_, weights_, Device{}, tokens_, kSequences);
  for (const LinearInput& input : inputs_of_layers(network())) {
    const StoredPair pair = pairs->collect(input);
    std::vector<Matrix> weights;
    for (MatrixId id : input.readers) weights.push_back(weights_->matrix(id).widened());
    const std::vector<StoredMatrixView> views(weights.begin(), weights.end());
    shift_weights(views, pair, 0.5, 1, "layer", Device{});
  }
  expect_planned(probe.peak_bytes(), plan_cpu_input_pairs(network(), kLength, kSequences, 1, 0).bytes());
}

// Three ranks in one process, which holds what they send once more; what waits at an input is a third for each.
TEST_F(HostPlans, OfCrossTermsOnRanks) {
  constexpr int kRanks = 3;
  const AllocationProbe probe;
  run_as_ranks(kRanks, [&](Ranks& ranks) {
    const std::unique_ptr<InputPairs> pairs =
        make_input_pairs(weights_, weights_, Device{}, tokens_, kSequences, ranks);
    for (const LinearInput& input : inputs_of_layers(network())) pairs->collect(input);
  });
  const uint64_t planned = plan_cpu_input_pairs(network(), kLength, kSequences, kRanks, 0).bytes();
  uint64_t widest = 0;
  for (const LinearInput& input : inputs_of_layers(network()))
    widest = std::max(widest, static_cast<uint64_t>(network().width_of(input.value)));
  const uint64_t message = widest * widest * sizeof(double);
  EXPECT_LE(probe.peak_bytes(), kRanks * planned + message + (uint64_t{16} << 20));
  EXPECT_LT(planned, plan_cpu_input_pairs(network(), kLength, kSequences, 1, 0).bytes());
}

TEST_F(HostPlans, OfDistilling) { expect_divergence_planned({}); }

TEST_F(HostPlans, OfGradientsOfMatrices) { expect_divergence_planned({.summed = network().matrix_names()}); }

// Two ranks in one process, which holds what they send once more: each has the sums of all parts and those of one.
TEST_F(HostPlans, OfGradientsOfMatricesOnRanks) {
  constexpr int kRanks = 2;
  DivergenceOptions options{.summed = network().matrix_names()};
  const AllocationProbe probe;
  run_as_ranks(kRanks, [&](Ranks& ranks) {
    make_divergence_pass(weights_, weights_, tokens_, Device{}, silent_, options, ranks)
        ->gradients(0, kSequences, /*sums_matrices=*/true);
  });
  uint64_t summed = 0, largest = 0;
  for (const MatrixUse& use : network().matrices) {
    const uint64_t bytes = static_cast<uint64_t>(use.rows * use.columns) * sizeof(float);
    summed += bytes;
    largest = std::max(largest, bytes);
  }
  options.adds = adds_of(1, kRanks);
  const uint64_t planned = plan_cpu_divergence(network(), kLength, kSequences, 0, options).bytes();
  EXPECT_LE(probe.peak_bytes(), kRanks * planned + largest + (uint64_t{16} << 20));
  EXPECT_GE(probe.peak_bytes(), kRanks * 2 * summed);
}

TEST_F(HostPlans, OfGradientsOfABlock) { expect_divergence_planned({.summed = {network().matrices.back().name}}); }

TEST_F(HostPlans, OfSolving) {
  for (const auto& [rows, columns, has_hessian] :
       {std::tuple<int64_t, int64_t, bool>{600, 2048, true}, {9000, 1024, true}, {20'000, 1024, false}}) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
    const Tensor tensor = random_tensor({0, 0.1}, {rows, columns}, DType::kBF16, 1, 2);
    MatrixLoss loss{nullptr, std::vector<double>(static_cast<size_t>(columns), 1.0),
                    std::vector<double>(static_cast<size_t>(rows), 1.0)};
    if (has_hessian) {
      SymmetricMatrix hessian(columns);
      for (int64_t k = 0; k < columns; ++k) hessian.lower_row(k)[k] = 1;
      ByteVector floats;
      store_in_memory(std::move(hessian))->append_floats(floats);
      loss.hessian = std::make_shared<const StoredHessian>(hold(std::move(floats)), StoredHessian::Layout::kTriangle,
                                                           columns, 1, 1);
    }
    const SlopeLayers layers({{"w", tensor.view()}}, {{"w", loss}}, {.trellis_bits = 0}, Device{}, alone_, 7, silent_);
    const AllocationProbe probe;
    layers.solve({{"w", {-5, 0}}}, silent_);
    expect_planned(probe.peak_bytes(),
                   solving_bytes(rows, columns, has_hessian) + static_cast<uint64_t>(rows * columns));
  }
}

// One matrix at a time, of whatever size the memory is.
TEST_F(HostPlans, OfPacking) {
  constexpr int64_t kRows = 4096, kColumns = 1024;
  const ContentShape shape{SectionKind::kCodes, kRows, kColumns, sizeof(int32_t), 0, kMaxTrellisBits};
  ByteVector content(shape.content_bytes());
  for (uint64_t i = 0; i < shape.elements(); ++i) {
    const auto code = static_cast<int32_t>(15 * uniform_at(1, 2, i)) - 7;
    std::ranges::copy(std::as_bytes(std::span(&code, 1)), &content[i * sizeof(code)]);
  }
  const std::vector<ContentShape> shapes(4, shape);
  SectionCache cache(nullptr, SectionCache::kMostBytes, /*working_bytes=*/1);
  const AllocationProbe probe;
  const auto other_content = [&](size_t i) {
    ByteVector other = content;
    other[0] = static_cast<std::byte>(i);
    return other;
  };
  cache.pack(shapes, {other_content, [](size_t i) { return i; }}, {CodecId::kRans}, silent_);
  const uint64_t kept = 3 * shape.elements() / 2;  // of the others, four bits a code
  expect_planned(probe.peak_bytes(), packing_bytes(shape, CodecId::kRans) + kept);
}

}  // namespace
}  // namespace thimble::quantize_plans_test
