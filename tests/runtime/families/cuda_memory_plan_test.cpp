// cuda_memory_plan_test.cpp: batches that fit, the least that is needed, and what plans say.
#include "runtime/cuda/cuda_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "runtime/base/error.h"
#include "runtime/cuda/cuda_sizes.h"
#include "runtime/families/gpt2/gpt2_family.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/families/golf/random_model.h"
#include "tests/runtime/families/gpt2/random_gpt2.h"

namespace thimble {
namespace {

constexpr uint64_t kMuch = uint64_t{1} << 40;

// About 30 million parameters.
Network large_network(double mlp_mult = 3.5) {
  GolfConfig c = small_golf_config();
  c.vocab_size = 1024;
  c.num_layers = 11;
  c.model_dim = 512;
  c.num_heads = 8;
  c.num_kv_heads = 4;
  c.mlp_mult = mlp_mult;
  c.rope_dims = 16;
  c.bigram_vocab_size = 2048;
  c.bigram_dim = 128;
  c.ve_dim = 128;
  c.ve_layers = {9, 10};
  return golf_network(c);
}

uint64_t use(const MemoryPlan& plan, const std::string& what) {
  for (const MemoryUse& found : plan.uses)
    if (found.what == what) return found.bytes;
  ADD_FAILURE() << "no " << what << " in " << plan.text();
  return 0;
}

// Every plan, as a function of the usable bytes.
using Planner = std::function<MemoryPlan(uint64_t usable_bytes)>;
std::vector<Planner> planners(const Network& config, Numerics numerics) {
  return {[=](uint64_t usable) { return plan_scoring(config, numerics, 2048, 66, usable); },
          [=](uint64_t usable) { return plan_generation(config, numerics, 2048, 64, usable); },
          [=](uint64_t usable) { return plan_text(config, numerics, 300, 100, usable); },
          [=](uint64_t usable) { return plan_hessians(config, numerics, 2048, 8, 4, usable); },
          [=](uint64_t usable) { return plan_gradients(config, 2048, 8, usable); },
          [=](uint64_t usable) { return plan_divergence(config, 2048, 64, usable); },
          [=](uint64_t usable) { return plan_input_pairs(config, numerics, 2048, 16, 16, /*keeps=*/false, usable); }};
}

TEST(CudaSizes, WidthsArePadded) {
  const Network network = golf_network(small_golf_config());  // 4 heads of 6
  const Fusion fusion = fuse(network, cuda_fusion_options({}, 2));
  const CudaWeightSizes sizes = cuda_weight_sizes(network, fusion);
  auto size = [&](const std::string& name) { return sizes.matrices[static_cast<size_t>(network.id_of(name))]; };
  EXPECT_EQ(size("tok_emb.weight").rows, 32);  // of 29
  EXPECT_EQ(size("tok_emb.weight").columns, 24);
  EXPECT_EQ(size("bigram.embed.weight").columns, 16);    // of 10
  EXPECT_EQ(size("ve_shared.embed.weight").columns, 8);  // of 7
  EXPECT_EQ(size("ve_shared.proj.weight").rows, 2 * 32);
  const LayerNames names(0);
  EXPECT_EQ(size(names.up).rows, 64);  // of 60
  EXPECT_EQ(size(names.output).columns, 4 * 32);
  EXPECT_EQ(size(names.query).rows, 0);  // in the projection
  int64_t projected = 0;
  for (const CudaMatrixSize& projection : sizes.projections) projected += projection.rows;
  EXPECT_EQ(projected, 5 * (4 + 2 * 2) * 32);
}

TEST(CudaSizes, HeadsEndAt256Columns) {
  GolfConfig config = small_golf_config();
  config.model_dim = 4 * 258;
  const Network network = golf_network(config);
  const Fusion fusion = fuse(network, cuda_fusion_options({}, 2));
  for (const Composite& composite : fusion.composites) {
    EXPECT_FALSE(std::holds_alternative<fused::Project>(composite.work));
    EXPECT_FALSE(std::holds_alternative<fused::Attend>(composite.work));
  }
  EXPECT_EQ(cuda_head_width(130), 256);
  EXPECT_EQ(cuda_head_width(256), 256);
  EXPECT_THROW(cuda_head_width(258), DeviceError);
}

TEST(MemoryPlan, PlentyIsNotUsedUp) {
  for (Numerics numerics : {Numerics::kFp32, Numerics::kBf16}) {
    std::vector<Planner> plans = planners(large_network(), numerics);
    EXPECT_EQ(plans[0](kMuch).batch, 66);
    EXPECT_EQ(plans[1](kMuch).batch, 64);
    EXPECT_EQ(plans[2](kMuch).batch, 1);
    EXPECT_EQ(plans[3](kMuch).batch, 8);
    EXPECT_EQ(plans[4](kMuch).batch, 8);
    EXPECT_EQ(plans[5](kMuch).batch, 8);
  }
}

// 59.9 MB of weights in bf16, besides padding, tables and two buffers of 4 MiB; twice that in fp32.
TEST(MemoryPlan, CountsTheWeights) {
  uint64_t bf16 = use(plan_scoring(large_network(), Numerics::kBf16, 2048, 32, kMuch), "weights");
  uint64_t fp32 = use(plan_scoring(large_network(), Numerics::kFp32, 2048, 32, kMuch), "weights");
  EXPECT_GT(bf16, 60'000'000u);
  EXPECT_LT(bf16, 120'000'000u);
  EXPECT_GT(fp32, bf16 + 60'000'000);
  EXPECT_LT(fp32, 2 * bf16);
}

// 2 * G * d elements per position and layer.
TEST(MemoryPlan, CountsTheCache) {
  const Network config = large_network();
  EXPECT_NEAR(static_cast<double>(use(plan_generation(config, Numerics::kBf16, 2048, 64, kMuch), "key/value cache")),
              64.0 * 2048 * 11 * 2 * 256 * 2, 4 << 20);
  EXPECT_NEAR(static_cast<double>(use(plan_scoring(config, Numerics::kFp32, 2048, 32, kMuch), "key/value cache")),
              32.0 * 2048 * 2 * 256 * 4, 4 << 20);
}

TEST(MemoryPlan, CountsTheHessians) {
  auto hessians = [&](int64_t live) {
    return static_cast<double>(use(plan_hessians(large_network(), Numerics::kBf16, 2048, 8, live, kMuch), "Hessians"));
  };
  double one = 8 * (33.0 * 512 * 513 / 2 + 11.0 * 1792 * 1793 / 2 + 2.0 * 128 * 129 / 2);
  EXPECT_GE(hessians(1), one);
  EXPECT_LE(hessians(1), 1.5 * one);  // pages of 2 MiB
  EXPECT_GE(hessians(4), 4 * one);
}

// Teacher's and two students' weights in fp32, and the logits of all sequences, whatever the batch.
TEST(MemoryPlan, CountsWhatDistillationKeeps) {
  MemoryPlan plan = plan_divergence(large_network(), 2048, 64, kMuch);
  EXPECT_NEAR(static_cast<double>(use(plan, "logits of the original")), 64.0 * 2047 * 1024 * 4, 4 << 20);
  const uint64_t one = use(plan_gradients(large_network(), 2048, 8, kMuch), "weights");
  EXPECT_NEAR(static_cast<double>(use(plan, "weights")), 3.0 * static_cast<double>(one), 4 << 20);
  MemoryPlan least = plan_divergence(large_network(), 2048, 64, plan.bytes() - 1);
  EXPECT_LT(least.batch, plan.batch);
  EXPECT_EQ(use(least, "logits of the original"), use(plan, "logits of the original"));
}

// The weights of both, and with kept passes the activations of all sequences, whatever the batch.
TEST(MemoryPlan, CountsWhatTwoModelsKeep) {
  auto plan = [](bool keeps, uint64_t usable) {
    return plan_input_pairs(large_network(), Numerics::kBf16, 1024, 16, 16, keeps, usable);
  };
  const uint64_t one = use(plan_scoring(large_network(), Numerics::kBf16, 1024, 1, kMuch), "weights");
  EXPECT_NEAR(static_cast<double>(use(plan(true, kMuch), "weights")), 2.0 * static_cast<double>(one), 4 << 20);
  EXPECT_EQ(plan(true, kMuch).bytes(), plan(false, kMuch).bytes()) << "one batch of all";
  const MemoryPlan kept = plan(true, plan(true, kMuch).bytes() - 1);
  EXPECT_LT(kept.batch, 16);
  EXPECT_GE(plan(false, kept.bytes()).batch, kept.batch);

  auto kept_in = [](uint64_t usable) {
    return plan_kept_input_pairs(large_network(), Numerics::kBf16, 1024, 16, 16, usable);
  };
  ASSERT_TRUE(kept_in(kMuch));
  EXPECT_EQ(kept_in(kMuch)->batch, 16);
  EXPECT_EQ(kept_in(2 * kept.bytes())->bytes(), kept.bytes());
  EXPECT_FALSE(kept_in(1'000'000));
}

// As many as fit, exactly: one byte less takes one less, and below one it is an error.
TEST(MemoryPlan, BatchesShrinkToFit) {
  for (Numerics numerics : kAllNumerics)
    for (const Planner& plan : planners(large_network(), numerics)) {
      uint64_t usable = plan(kMuch).bytes();
      for (int64_t batch = plan(kMuch).batch;; --batch) {
        MemoryPlan fitting = plan(usable);
        ASSERT_EQ(fitting.batch, batch) << fitting.text();
        ASSERT_EQ(fitting.bytes(), usable);
        if (batch == 1) break;
        MemoryPlan smaller = plan(usable - 1);
        ASSERT_EQ(smaller.batch, batch - 1);
        ASSERT_LT(smaller.bytes(), usable);
        usable = smaller.bytes();
      }
      EXPECT_THROW(plan(usable - 1), DeviceError);
      EXPECT_THROW(plan(0), DeviceError);
    }
}

TEST(MemoryPlan, IsMadeForAnyFamily) {
  for (Numerics numerics : kAllNumerics)
    for (const Planner& plan : planners(gpt2_network(small_gpt2_config()), numerics))
      EXPECT_GT(plan(kMuch).bytes(), 0u);
}

TEST(MemoryPlan, SaysWhatIsNeededAtLeast) {
  uint64_t needed = 0;
  try {
    plan_scoring(large_network(), Numerics::kBf16, 2048, 32, 1'000'000);
    ADD_FAILURE() << "no error";
  } catch (const DeviceError& error) {
    EXPECT_EQ(error.code(), ExitCode::kDevice);
    std::string text = error.what();
    EXPECT_THAT(text, testing::HasSubstr("1,000,000 B may be used"));
    EXPECT_THAT(text, testing::HasSubstr("1 window of 2048 tokens"));
    EXPECT_THAT(text, testing::HasSubstr("weights "));
    // The first number is what suffices.
    std::string digits;
    for (char c : text.substr(text.find("takes ") + 6))
      if (c >= '0' && c <= '9')
        digits += c;
      else if (c != ',')
        break;
    needed = std::stoull(digits);
  }
  EXPECT_EQ(plan_scoring(large_network(), Numerics::kBf16, 2048, 32, needed).batch, 1);
}

TEST(MemoryPlan, ProductsOfActivationsAreBounded) {
  const Network config = large_network();
  EXPECT_EQ(gram_bytes(config, 2048, 1), uint64_t{105} * 128 * 128 * 4);  // 14 x 15 / 2 tiles of 1792 columns
  EXPECT_LE(gram_bytes(config, 2048, 1 << 20), kMostGramBytes);
  EXPECT_GT(gram_bytes(large_network(200), 2048, 1), kMostGramBytes) << "one product alone is larger";
}

}  // namespace
}  // namespace thimble
