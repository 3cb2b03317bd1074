// gptq_golden_test.cpp: codes, scales and sensitivities of a 30M-parameter model against the PyTorch pipeline's.
#include <gtest/gtest.h>

#include "gptq/trace/grid.h"
#include "gptq/trace/plan.h"
#include "runtime/base/file.h"
#include "runtime/base/json.h"
#include "tests/gptq/statistics/gptq_samples.h"
#include "tests/gptq/trace/stored_tensors.h"
#include "tests/support/test_files.h"

namespace thimble::gptq_golden_test {
namespace {

const std::string kFolder = shared_data("golf30m/");

class GptqGolden : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!file_exists(kFolder + "golden.safetensors")) GTEST_SKIP() << kFolder << " is not there";
    golden_ = read_stored_tensors(kFolder + "golden.safetensors");
  }

  SymmetricMatrix damped_hessian(const std::string& layer) const {
    const Tensor& stored = golden_.at("hessian_damped." + layer);
    std::vector<float> values = to_float32(stored.view());
    SymmetricMatrix hessian(stored.shape.at(0));
    for (int64_t i = 0; i < hessian.size(); ++i)
      for (int64_t j = 0; j <= i; ++j) hessian.lower_row(i)[j] = values[static_cast<size_t>(i * hessian.size() + j)];
    return hessian;
  }

  // Matrix `index` of a bank (n, R, K).
  static Matrix bank_matrix(const std::string& bank, int64_t index) {
    auto model = read_stored_tensors(kFolder + "model.safetensors");
    const Tensor& stored = model.at(bank);
    int64_t rows = stored.shape.at(1), columns = stored.shape.at(2);
    std::vector<float> values = to_float32(stored.view());
    auto first = values.begin() + index * rows * columns;
    return Matrix(std::vector<float>(first, first + rows * columns), rows, columns);
  }

  std::vector<uint16_t> golden_scales(const std::string& kind, const std::string& layer) const {
    ByteCursor cursor(golden_.at(kind + "_scales." + layer).bytes, layer);
    std::vector<uint16_t> scales;
    while (!cursor.at_end()) scales.push_back(cursor.read<uint16_t>("scale"));
    return scales;
  }

  std::map<std::string, Tensor> golden_;
};

TEST_F(GptqGolden, ReproducesCodesAndScales) {
  Matrix weights = bank_matrix("kv_bank", 0);
  // This Hessian was damped when it was collected; what remains is the solver's own damping.
  HessianFactor factor = factor_hessian(damped_hessian("blocks.0.attn.c_q.weight"), kSolverDamping, "c_k");
  for (auto [kind, bits] : {std::pair("int5", 5), std::pair("int6", 6)}) {
    GptqResult solved = solve_gptq(weights, factor, max_code_of_bits(bits), "c_k");
    EXPECT_EQ(solved.codes.row_scales, golden_scales(kind, "blocks.0.attn.c_k.weight")) << kind;
    const ByteVector& expected = golden_.at(std::string(kind) + "_codes.blocks.0.attn.c_k.weight").bytes;
    ASSERT_EQ(expected.size(), solved.codes.codes.size());
    int64_t equal = 0;
    for (size_t i = 0; i < expected.size(); ++i) equal += static_cast<int8_t>(expected[i]) == solved.codes.codes[i];
    double share = static_cast<double>(equal) / static_cast<double>(expected.size());
    RecordProperty(std::string(kind) + "_codes_equal", std::to_string(share));
    EXPECT_GE(share, 0.995) << kind;
    EXPECT_EQ(solved.report.damping, kSolverDamping);
    EXPECT_TRUE(solved.report.dead_columns.empty());
  }
}

TEST_F(GptqGolden, ReproducesScalesOfASecondLayer) {
  // No row of this matrix reaches 1, so that all clips give the floor.
  Matrix weights = bank_matrix("qo_bank", 21);
  for (double clip : kClipFractions) {
    EXPECT_EQ(row_scales(weights, std::array{clip}, 15, "proj"), golden_scales("int5", "blocks.10.attn.proj.weight"));
    EXPECT_EQ(row_scales(weights, std::array{clip}, 31, "proj"), golden_scales("int6", "blocks.10.attn.proj.weight"));
  }
}

TEST_F(GptqGolden, SensitivityFollowsTheSameConvention) {
  Json sensitivities = parse_json(as_bytes_of(read_text_file(kFolder + "sensitivity.json", 1 << 20)), "sensitivity");
  for (const std::string layer : {"blocks.0.attn.c_q.weight", "blocks.5.mlp.fc.weight"}) {
    SymmetricMatrix damped = damped_hessian(layer);
    double undamped_mean = damped.mean_diagonal() / (1 + kCollectionDamping);
    Hessian hessian{damped, 64 * 2047, 64};
    for (int64_t i = 0; i < damped.size(); ++i) hessian.matrix.lower_row(i)[i] -= kCollectionDamping * undamped_mean;
    for (double& value : hessian.matrix.values()) value /= 2047;
    double expected = sensitivities.at("trace").at(layer).get<double>();
    EXPECT_NEAR(trace_sensitivity(StoredHessian(std::make_shared<const Hessian>(hessian))), expected, 1e-6 * expected);
    SymmetricMatrix again = damped_hessian_per_sequence(hessian);
    for (size_t i = 0; i < damped.values().size(); ++i)
      ASSERT_NEAR(again.values()[i], damped.values()[i], 1e-9 * expected);
  }
}

TEST_F(GptqGolden, PlanPicksTheSameLayersForMoreBits) {
  Json stored = parse_json(as_bytes_of(read_text_file(kFolder + "sensitivity.json", 1 << 20)), "sensitivity");
  auto sensitivities = stored.at("trace").get<std::map<std::string, double>>();
  std::map<std::string, TensorSummary> tensors;
  for (const auto& [name, sensitivity] : sensitivities) tensors[name] = {DType::kBF16, {512, 512}, 1};
  tensors["bigram.proj.weight"].shape = {512, 112};
  tensors["ve_shared.proj.weight"].shape = {256, 128};
  Plan plan = make_trace_plan(tensors, sensitivities, {});
  auto ranked = stored.at("ranked").get<std::vector<std::string>>();
  for (size_t i = 0; i < ranked.size(); ++i)
    EXPECT_EQ(precision_text(plan.at(ranked[i])), i < 10 ? "int6 gptq" : "int5 gptq") << ranked[i];
  EXPECT_EQ(precision_text(plan.at("bigram.proj.weight")), "F16");
}

}  // namespace
}  // namespace thimble::gptq_golden_test
