// cuda_pass_test.cu: every composite against the single nodes that it covers; single nodes against the CPU's in every
// mode; passes in steps, with observers, and with matrices that are replaced on the way.
#include "runtime/cuda/cuda_pass.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "runtime/cpu/cpu_pass.h"
#include "tests/runtime/cuda/device_values.cuh"
#include "tests/runtime/cuda/kernels/cuda_device.h"
#include "tests/runtime/families/network_samples.h"
#include "tests/runtime/ops/changed_matrix.h"

namespace thimble::cuda_pass_test {
namespace {

// A pass over one window, with all that it needs.
template <typename T>
class WindowPass {
 public:
  WindowPass(const NetworkSample& sample, const NumericPolicy& policy, const FusionOptions& options,
             int64_t sequences = 1)
      : weights(*sample.weights, policy, options),
        positions_(sample.window),
        tokens_(std::span<const Token>(sample.tokens(sequences * sample.window))),
        zero_(1),
        cache_(weights.network(), sequences, sample.context, /*shares_one=*/true),
        pass(weights, {sample.context, sequences * sample.window, sequences * sample.window, false}) {
    zero_.fill_zero();
  }

  CudaBatch batch(int first = 0, int sequences = 1) const {
    const auto positions = static_cast<int>(positions_);
    return {{tokens_.data() + first * positions_, positions_}, sequences, positions, positions, zero_.data()};
  }
  void begin() { pass.begin(batch(), cache_, nullptr); }
  void run(CudaInputObserver<T>* observer = nullptr, int first = 0, int sequences = 1) {
    pass.run(batch(first, sequences), cache_, nullptr, observer);
  }
  Matrix logits(int sequences = 1) {
    const int64_t rows = sequences * positions_, stride = pass.logits_stride();
    DeviceArray<float> out(rows * stride);
    pass.logits(out.data(), nullptr);
    return download(ConstCudaView(out.data(), rows, weights.network().vocabulary(), stride));
  }

  CudaNetworkWeights<T> weights;

 private:
  int64_t positions_;
  DeviceArray<Token> tokens_;
  DeviceArray<int> zero_;
  CudaCache<T> cache_;

 public:
  CudaPass<T> pass;
};

double mean_difference(const Matrix& a, const Matrix& b) {
  double sum = 0;
  for (size_t i = 0; i < a.values().size(); ++i) sum += std::abs(double{a.values()[i]} - b.values()[i]);
  return sum / static_cast<double>(std::max<size_t>(1, a.values().size()));
}
double mean_size(const Matrix& a) { return mean_difference(a, Matrix(a.rows(), a.cols())); }

template <typename T>
NumericPolicy policy_of() {
  if (std::is_same_v<T, __half>) return numeric_policy(Numerics::kFp16);
  return numeric_policy(std::is_same_v<T, __nv_bfloat16> ? Numerics::kBf16 : Numerics::kFp32);
}
// Of the mean size of a value: sums in another order, and roundings that one of the two passes does not have.
template <typename T>
constexpr double kAllowed = std::is_same_v<T, float>    ? 1e-4
                            : std::is_same_v<T, __half> ? 0.02
                                                        : 0.1;

class CudaComposites : public ::testing::TestWithParam<NetworkRecipe> {
 protected:
  void SetUp() override {
    if (cuda_device_names().empty()) GTEST_SKIP() << "no CUDA device";
  }

  // Both passes go on side by side; what a composite writes is compared as soon as it is there.
  template <typename T>
  static void compare(const NetworkSample& sample) {
    const NumericPolicy policy = policy_of<T>();
    WindowPass<T> fused(sample, policy, cuda_fusion_options(policy, sizeof(T))),
        plain(sample, policy, cuda_plain_options(sizeof(T)));
    const Network& network = *sample.weights->network;
    const Fusion& fusion = fused.weights.fusion();
    fused.begin();
    plain.begin();
    for (const Composite& composite : fusion.composites) {
      fused.pass.run_to(composite.trigger + 1);
      std::vector<ValueId> written = composite.writes;
      std::ranges::sort(written, {}, [&](ValueId value) { return network.maker_of(value); });
      for (ValueId value : written) {
        plain.pass.run_to(network.maker_of(value) + 1);
        expect_same<T>(network, fusion, fused.pass.value(value), plain.pass.value(value), value);
      }
    }
    fused.pass.run_to(network.nodes.size());
    plain.pass.run_to(network.nodes.size());
    const Matrix expected = plain.logits();
    EXPECT_LE(mean_difference(fused.logits(), expected), kAllowed<T> * (mean_size(expected) + 0.1)) << "logits";
  }

  template <typename T>
  static void expect_same(const Network& network, const Fusion& fusion, const NodeRows<T>& found,
                          const NodeRows<T>& expected, ValueId value) {
    const size_t at = network.maker_of(value);
    SCOPED_TRACE(::testing::Message() << "value " << value << " of node " << at);
    Matrix stored = download(found);
    for (const Composite& composite : fusion.composites) {
      const auto* attend = std::get_if<fused::Attend>(&composite.work);
      if (!attend || !attend->is_projected) continue;
      if (attend->query == value) return;  // scaled, and permuted: attention's output tells
      if (attend->output == value)
        stored = without_padding(stored, attend->attention.head_dim, cuda_head_width(attend->attention.head_dim));
    }
    const Matrix reference = download(expected);
    ASSERT_EQ(stored.cols(), reference.cols());
    EXPECT_LE(mean_difference(stored, reference), kAllowed<T> * (mean_size(reference) + 1e-3));
  }
};
INSTANTIATE_TEST_SUITE_P(Samples, CudaComposites, ::testing::ValuesIn(network_recipes()), recipe_name);

TEST_P(CudaComposites, AreTheirNodesInFp32) { compare<float>(GetParam().make()); }
TEST_P(CudaComposites, AreTheirNodesInBf16) { compare<__nv_bfloat16>(GetParam().make()); }
TEST_P(CudaComposites, AreTheirNodesInFp16) { compare<__half>(GetParam().make()); }

TEST(CudaRandomNetworks, AreTheCpus) {
  if (cuda_device_names().empty()) GTEST_SKIP() << "no CUDA device";
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    const NetworkSample sample{"Random", random_weights(random_network(seed), seed), 19, 40};
    CpuPass cpu(*sample.weights, sample.context);
    const ConstMatrixView hidden = cpu.run(window_batch(sample.tokens(sample.window)));
    Matrix expected(hidden.rows, sample.weights->network->vocabulary());
    cpu.logits(hidden, expected);
    for (const FusionOptions& options : {cuda_plain_options(4), cuda_fusion_options({}, 4)}) {
      WindowPass<float> cuda(sample, {}, options);
      cuda.run();
      EXPECT_LE(mean_difference(cuda.logits(), expected), 1e-4 * (mean_size(expected) + 0.1));
    }
    if (::testing::Test::HasFailure()) return;
  }
}

class CudaNodes : public CudaComposites {
 protected:
  // Logits of single nodes on both devices, in a mode; a rounding may fall to the other side.
  template <typename T>
  static void compare_to_cpu(const NetworkSample& sample, Numerics numerics) {
    SCOPED_TRACE(numerics_name(numerics));
    const NumericPolicy policy = numeric_policy(numerics);
    Weights rounded = *sample.weights;
    round_weights(policy, rounded);
    CpuPass cpu(rounded, sample.context, policy);
    const ConstMatrixView hidden = cpu.run(window_batch(sample.tokens(sample.window)));
    Matrix expected(hidden.rows, sample.weights->network->vocabulary());
    cpu.logits(hidden, expected);
    WindowPass<T> cuda(sample, policy, cuda_plain_options(sizeof(T)));
    cuda.run();
    const double allowed = numerics == Numerics::kFp32 ? 1e-4 : policy.nvfp4 ? 0.25 : is_sf16(numerics) ? 0.05 : 0.03;
    EXPECT_LE(mean_difference(cuda.logits(), expected), allowed * (mean_size(expected) + 0.1));
  }
};
INSTANTIATE_TEST_SUITE_P(Samples, CudaNodes, ::testing::ValuesIn(network_recipes()), recipe_name);

TEST_P(CudaNodes, AreTheCpusInEveryMode) {
  for (Numerics numerics : kAllNumerics)
    with_cuda_type(numerics, [&]<typename T>(T*) { compare_to_cpu<T>(GetParam().make(), numerics); });
}

template <typename T>
class InputRecorder final : public CudaInputObserver<T> {
 public:
  void on_linear_input(std::span<const std::string> weights, const T* x, int sequences, int positions, int columns,
                       cudaStream_t) override {
    const int64_t rows = int64_t{sequences} * positions;
    const Matrix values = download(NodeRows<T>{const_cast<T*>(x), rows, columns, columns, columns});
    for (const std::string& name : weights) inputs[name].push_back(values);
  }
  std::map<std::string, std::vector<Matrix>> inputs;  // of a matrix in the order in which they came
};

struct CpuInputRecorder final : LinearObserver {
  void on_linear_input(std::span<const std::string> weights, ConstMatrixView input) override {
    Matrix copy(input.rows, input.cols);
    for (int64_t r = 0; r < input.rows; ++r) std::copy(input.row(r), input.row(r) + input.cols, copy.row(r));
    for (const std::string& name : weights) inputs[name].push_back(copy);
  }
  std::map<std::string, std::vector<Matrix>> inputs;
};

TEST_P(CudaComposites, ObserversSeeTheInputsOfLinearLayers) {
  const NetworkSample sample = GetParam().make();
  CpuPass cpu(*sample.weights, sample.context);
  CpuInputRecorder expected;
  cpu.run(window_batch(sample.tokens(sample.window)), nullptr, 0, &expected);
  for (const FusionOptions& options : {cuda_fusion_options({}, 4), cuda_plain_options(4)}) {
    WindowPass<float> cuda(sample, {}, options);
    InputRecorder<float> found;
    cuda.run(&found);
    ASSERT_EQ(found.inputs.size(), expected.inputs.size());
    for (const auto& [name, inputs] : expected.inputs) {
      ASSERT_EQ(found.inputs[name].size(), inputs.size()) << name;
      for (size_t i = 0; i < inputs.size(); ++i)
        EXPECT_LE(mean_difference(found.inputs.at(name)[i], inputs[i]), 1e-4 * (mean_size(inputs[i]) + 1e-3)) << name;
    }
  }
}

// A matrix that is replaced before its first reader runs is as if it had always been so.
TEST_P(CudaComposites, MatricesCanBeReplacedOnTheWay) {
  const NetworkSample sample = GetParam().make();
  const Network& network = *sample.weights->network;
  Weights changed = *sample.weights;
  for (const LinearInput& input : network.linear_inputs())
    for (MatrixId id : input.readers) scale_matrix(changed, id, 1.125f);
  const NetworkSample other{"Changed", std::make_shared<const Weights>(changed), sample.window, sample.context};
  const FusionOptions options = cuda_fusion_options({}, 4);
  WindowPass<float> whole(other, {}, options), steps(sample, {}, options);
  whole.run();
  steps.begin();
  for (const LinearInput& input : network.linear_inputs()) {
    steps.pass.run_to(input.first_reader);
    check_cuda(cudaDeviceSynchronize());
    for (MatrixId id : input.readers) steps.weights.replace(id, changed.matrix(id));
  }
  steps.pass.run_to(network.nodes.size());
  const Matrix found = steps.logits(), expected = whole.logits();
  EXPECT_TRUE(std::ranges::equal(found.values(), expected.values()));
}

TEST_P(CudaComposites, RowsDoNotDependOnTheBatch) {
  const NetworkSample sample = GetParam().make();
  constexpr int kSequences = 3;
  for (const FusionOptions& options : {cuda_fusion_options({}, 4), cuda_plain_options(4)}) {
    WindowPass<float> pass(sample, {}, options, kSequences);
    pass.run(nullptr, 0, kSequences);
    const Matrix together = pass.logits(kSequences);
    for (int s = 0; s < kSequences; ++s) {
      pass.run(nullptr, s, 1);
      const Matrix alone = pass.logits();
      const ConstMatrixView expected = together.view().block_rows(s * sample.window, sample.window);
      for (int64_t r = 0; r < sample.window; ++r)
        ASSERT_TRUE(std::equal(alone.row(r), alone.row(r) + alone.cols(), expected.row(r))) << s << ' ' << r;
    }
  }
}

}  // namespace
}  // namespace thimble::cuda_pass_test
