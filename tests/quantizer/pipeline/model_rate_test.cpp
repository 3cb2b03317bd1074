// model_rate_test.cpp: a model's matrices by loss, bits and bound against each computed by itself.
#include "quantizer/pipeline/model_rate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gptq/slope/matrix_loss.h"
#include "packer/artifact.h"
#include "tests/gptq/statistics/gptq_samples.h"

namespace thimble::model_rate_test {
namespace {

class ModelRateTest : public ::testing::Test {
 protected:
  static constexpr int64_t kColumns = 12;

  ModelRateTest() {
    auto hessian = store_in_memory(correlated_hessian(kColumns, 3));
    add("a", 20, {hessian, {}, std::vector<double>(20, 0.5)});
    add("b", 7, {hessian, {}, std::vector<double>(7, 2)});  // shares the Hessian of "a"
    add("table", 9, {nullptr, std::vector<double>(kColumns, 4), std::vector<double>(9, 1)});
    add("unknown", 5, {});
    losses_.erase("unknown");
    add("raw", 3, {hessian, {}, std::vector<double>(3, 1)});
    model_.tensors.back().data = RawTensor{DType::kF32, tensors_.at("raw").bytes};
    std::ranges::sort(model_.tensors, {}, &QuantizedTensor::name);
    for (const auto& [name, tensor] : tensors_) views_[name] = tensor.view();
  }

  void add(const std::string& name, int64_t rows, MatrixLoss loss) {
    Matrix weights = random_matrix(rows, kColumns, static_cast<uint32_t>(rows));
    RowScaledCodes codes{7, {}, std::vector<uint16_t>(static_cast<size_t>(rows), 0x3800)};  // scales of 0.5
    for (float weight : weights.values())
      codes.codes.push_back(static_cast<int8_t>(std::clamp(std::round(weight * 2), -7.F, 7.F)));
    model_.tensors.push_back({name, {rows, kColumns}, std::move(codes)});
    tensors_[name] = {DType::kF32, {rows, kColumns}, from_float32(DType::kF32, weights.values())};
    losses_[name] = std::move(loss);
    weights_[name] = std::move(weights);
  }

  ArtifactSummary summary() {
    SectionCache cache;
    SilentProgress progress;
    return describe_artifact(encode_artifact(model_, EncodeOptions{}, cache, progress), "m");
  }
  ModelRate measure(bool with_bound) {
    SilentProgress progress;
    RateMeter meter(views_, losses_);
    meter.measure(model_, summary(), false, progress);
    return meter.measure(model_, summary(), with_bound, progress);
  }

  QuantizedModel model_;
  std::map<std::string, Tensor> tensors_;
  TensorMap views_;
  std::map<std::string, MatrixLoss> losses_;
  std::map<std::string, Matrix> weights_;
};

TEST_F(ModelRateTest, EveryMatrixByItself) {
  ModelRate rate = measure(true);
  ASSERT_EQ(rate.matrices.size(), 3);  // not the one without a loss, nor the one without codes
  double loss = 0, bits = 0, bounds = 0;
  std::vector<GaussianSource> sources;
  for (const StoredTensorSummary& tensor : summary().tensors) {
    if (!rate.matrices.contains(tensor.name)) continue;
    const MatrixRate& found = rate.matrices.at(tensor.name);
    const Matrix& weights = weights_.at(tensor.name);
    auto quantized = std::ranges::find(model_.tensors, tensor.name, &QuantizedTensor::name);
    Matrix values(dequantize(*quantized), weights.rows(), kColumns);
    const MatrixLoss& known = losses_.at(tensor.name);
    EXPECT_EQ(found.weights, weights.rows() * kColumns);
    EXPECT_EQ(found.predicted_loss, predicted_loss(known, weights, values));
    EXPECT_GT(found.predicted_loss, 0);
    EXPECT_EQ(found.stored_bits, 8 * tensor.stored_bytes);
    sources.push_back(gaussian_source(known, weights, hessian_spectrum(known, tensor.name)));
    EXPECT_EQ(found.bound_bits, rate_bound_bits({&sources.back(), 1}, found.predicted_loss));
    EXPECT_GT(found.bound_bits, 0);
    loss += found.predicted_loss;
    bits += found.stored_bits;
    bounds += *found.bound_bits;
  }
  EXPECT_EQ(rate.total.weights, (20 + 7 + 9) * kColumns);
  EXPECT_DOUBLE_EQ(rate.total.predicted_loss, loss);
  EXPECT_DOUBLE_EQ(rate.total.stored_bits, bits);
  EXPECT_DOUBLE_EQ(*rate.total.bound_bits, rate_bound_bits(sources, rate.total.predicted_loss));
  EXPECT_LT(*rate.total.bound_bits, bounds) << "one level for all is cheaper";
}

TEST_F(ModelRateTest, BoundsAreAskedFor) {
  ModelRate rate = measure(false);
  EXPECT_FALSE(rate.total.bound_bits.has_value());
  Json json = to_json(rate, true);
  EXPECT_EQ(json.at("matrices").size(), 3);
  EXPECT_FALSE(json.at("total").contains("bound_bits_per_weight"));
  json = to_json(measure(true), false);
  const Json& total = json.at("total");
  EXPECT_DOUBLE_EQ(total.at("distance_bits_per_weight").get<double>(),
                   total.at("bits_per_weight").get<double>() - total.at("bound_bits_per_weight").get<double>());
  EXPECT_EQ(json.at("loss_unit"), "half the squared error of outputs per token");
}

TEST_F(ModelRateTest, AsATable) {
  std::string text = to_text(measure(true));
  for (const char* word : {"distance", "table", "total", "100.00 %"}) EXPECT_THAT(text, ::testing::HasSubstr(word));
  EXPECT_THAT(to_text(ModelRate{}), ::testing::HasSubstr("no rate-distortion bound"));
}

}  // namespace
}  // namespace thimble::model_rate_test
