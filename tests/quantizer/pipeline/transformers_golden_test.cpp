// transformers_golden_test.cpp: folders as `transformers` saves them, two models of each of its families, against what
// it computes of them: logits, loss, every parameter's gradient, and text grown over a cache. The folders, and how they
// were made, are in transformers/.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "quantizer/checkpoints/model_source.h"
#include "runtime/cpu/cpu_gradients.h"
#include "runtime/cuda/kernels/cuda_devices.h"
#include "runtime/device/models.h"
#include "tests/quantizer/pipeline/golden_files.h"
#include "tests/support/test_files.h"

namespace thimble::transformers_golden_test {
namespace {

constexpr double kTolerance = 1e-4;  // of the largest value
constexpr size_t kPrompt = 8;
const Device kCuda{true, {0}};

std::string folder_of(const std::string& name) { return source_file("tests/quantizer/pipeline/transformers/") + name; }

// The loss's gradients by whole matrices and tables, from those by their outputs and the inputs before.
class GradientSums final : public LinearObserver, public GradientObserver {
 public:
  explicit GradientSums(const Network& network) : network_(network) {
    for (const MatrixUse& use : network.matrices) sums[use.name].assign(static_cast<size_t>(use.rows * use.columns), 0);
  }

  void on_linear_input(std::span<const std::string> weights, ConstMatrixView input) override {
    for (const std::string& name : weights)
      for (int64_t p = 0; p < input.rows; ++p) inputs_[name].emplace_back(input.row(p), input.row(p) + input.cols);
  }
  void on_output_gradient(const std::string& weight, int64_t first, ConstMatrixView gradient,
                          ConstMatrixView) override {
    const std::vector<std::vector<float>>& rows = inputs_.at(weight);
    for (int64_t p = 0; p < gradient.rows; ++p)
      for (int64_t r = 0; r < gradient.cols; ++r)
        add(gradient.row(p)[r], rows.at(static_cast<size_t>(first + p)).data(), weight, r);
  }
  void on_lookup_gradient(const std::string& table, std::span<const int32_t> rows, ConstMatrixView gradient) override {
    for (int64_t p = 0; p < gradient.rows; ++p) add(1, gradient.row(p), table, rows[static_cast<size_t>(p)]);
  }

  NamedGradients sums;

 private:
  void add(double factor, const float* values, const std::string& name, int64_t row) {
    const int64_t columns = network_.matrix(network_.id_of(name)).columns;
    for (int64_t c = 0; c < columns; ++c)
      sums.at(name)[static_cast<size_t>(row * columns + c)] += factor * static_cast<double>(values[c]);
  }

  const Network& network_;
  std::map<std::string, std::vector<std::vector<float>>> inputs_;
};

struct GoldenModel {
  const char *name, *family;
};
void PrintTo(const GoldenModel& model, std::ostream* out) { *out << model.name; }

const GoldenModel kModels[] = {{"llama_16_heads_of_one_key", "llama"}, {"llama_heads_of_80_biases", "llama"},
                               {"mistral_window_of_5", "mistral"},     {"mistral_heads_of_128", "mistral"},
                               {"qwen2_late_windows", "qwen2"},        {"qwen2_heads_of_64", "qwen2"},
                               {"qwen3_heads_of_96_biases", "qwen3"},  {"qwen3_windows", "qwen3"},
                               {"gemma3_heads_of_256", "gemma3_text"}, {"gemma3_stretched_waves", "gemma3_text"}};

class TransformersGolden : public ::testing::TestWithParam<GoldenModel> {
 protected:
  double expect_near(std::span<const double> found, const std::string& name, std::vector<double> expected) const {
    EXPECT_EQ(found.size(), expected.size()) << name;
    if (found.size() != expected.size()) return 0;
    double largest = 0, difference = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      largest = std::max(largest, std::abs(expected[i]));
      difference = std::max(difference, std::abs(found[i] - expected[i]));
    }
    EXPECT_GT(largest, 0) << name;
    EXPECT_LE(difference, kTolerance * largest) << name;
    return difference / largest;
  }

  std::vector<double> golden_values(const std::string& name, double unit = 1) const {
    std::vector<double> values;
    for (float value : golden_.floats(name)) values.push_back(static_cast<double>(value) * unit);
    return values;
  }
  std::vector<double> golden_gradient(const std::string& name) const {
    return golden_values("gradient/" + name, golden_.floats("gradient_unit/" + name).at(0));
  }

  void expect_their_text(const Device& device) const {
    const std::vector<Token> expected = golden_.tokens("greedy");
    std::vector<Token> found;
    make_generator(weights_, device, static_cast<int64_t>(tokens_.size()), 1)
        ->text(std::span(tokens_).first(kPrompt), {.most_new_tokens = static_cast<int64_t>(expected.size())},
               [&](Token token) {
                 found.push_back(token);
                 return true;
               });
    EXPECT_EQ(found, expected);
  }

  const std::string folder_ = folder_of(GetParam().name);
  OpenedCheckpoint checkpoint_{folder_, ""};
  const std::shared_ptr<const Weights> weights_ = checkpoint_.weights();
  const Network& network_ = *weights_->network;
  const GoldenFile golden_{folder_ + "/golden.safetensors"};
  const std::vector<Token> tokens_ = golden_.tokens("tokens");
};
INSTANTIATE_TEST_SUITE_P(Models, TransformersGolden, ::testing::ValuesIn(kModels),
                         [](const auto& test) { return test.param.name; });

TEST_P(TransformersGolden, LogitsAreTheirs) {
  CpuPass pass(*weights_, static_cast<int64_t>(tokens_.size()));
  const ConstMatrixView hidden = pass.run(window_batch(tokens_));
  Matrix logits(hidden.rows, network_.vocabulary());
  pass.logits(hidden, logits);
  const std::vector<double> found(logits.values().begin(), logits.values().end());
  RecordProperty("difference", std::to_string(expect_near(found, "logits", golden_values("logits"))));
}

TEST_P(TransformersGolden, ScoresOnCudaAreTheirs) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  Matrix found(static_cast<int64_t>(tokens_.size()), network_.vocabulary());
  make_scorer(weights_, kCuda, found.rows())->log_probabilities(tokens_, found);
  const std::vector<double> logits = golden_values("logits");
  const double largest = std::abs(*std::ranges::max_element(logits, {}, [](double x) { return std::abs(x); }));
  for (int64_t p = 0; p < found.rows(); ++p) {
    const double* row = logits.data() + p * found.cols();
    double sum = 0;
    for (int64_t v = 0; v < found.cols(); ++v) sum += std::exp(row[v]);
    for (int64_t v = 0; v < found.cols(); ++v)
      ASSERT_NEAR(found(p, v), row[v] - std::log(sum), 2 * kTolerance * largest) << p << ' ' << v;
  }
}

TEST_P(TransformersGolden, GradientsAreTheirs) {
  GradientSums found(network_);
  CpuGradients window(*weights_, static_cast<int64_t>(tokens_.size()), /*for_gains=*/true);
  VectorGradients vectors;
  const auto targets = static_cast<double>(tokens_.size() - 1);
  const double loss = window.run(tokens_, {.inputs = &found, .head_input = &found}, found, &vectors) / targets;
  const double expected_loss = golden_values("loss").at(0);
  EXPECT_NEAR(loss, expected_loss, 1e-6 * expected_loss);
  found.sums.merge(stored_gradients(network_, weights_->small, vectors));
  double most = 0;
  for (auto& [name, gradient] : found.sums) {
    for (double& value : gradient) value /= targets;
    most = std::max(most, expect_near(gradient, name, golden_gradient(name)));
  }
  RecordProperty("difference", std::to_string(most));
  EXPECT_EQ(golden_.tensors.size(), 2 * found.sums.size() + 4);
}

TEST_P(TransformersGolden, TextOverACacheIsTheirs) { expect_their_text({}); }

TEST_P(TransformersGolden, TextOnCudaIsTheirs) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  expect_their_text(kCuda);
}

// The keys of transformers 4 mean the same model.
TEST_P(TransformersGolden, OlderKeysMeanTheSame) {
  OpenedCheckpoint older(folder_, folder_ + "/config_4.json");
  EXPECT_EQ(older.runnable().family->name(), GetParam().family);
  EXPECT_EQ(older.runnable().config, checkpoint_.runnable().config);
}

// No folder is left out.
TEST(TransformersGoldenFolders, AreAllCompared) {
  std::set<std::string> there, compared;
  for (const auto& entry : std::filesystem::directory_iterator(folder_of("")))
    if (entry.is_directory()) there.insert(entry.path().filename().string());
  for (const GoldenModel& model : kModels) compared.insert(model.name);
  EXPECT_EQ(there, compared);
}

}  // namespace
}  // namespace thimble::transformers_golden_test
