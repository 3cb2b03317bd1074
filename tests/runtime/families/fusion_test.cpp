// fusion_test.cpp: how networks of families come out of the rules, and that plans of fused passes hold whatever the
// network: no composite reads what another has overwritten.
#include "runtime/ops/fusion.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "examples/family/toy_decoder.h"
#include "runtime/families/golf/golf_family.h"
#include "runtime/families/gpt2/gpt2_family.h"
#include "runtime/tensor/host_device.h"
#include "tests/runtime/families/golf/golf_cases.h"
#include "tests/runtime/families/gpt2/random_gpt2.h"
#include "tests/runtime/families/llama/random_llama.h"
#include "tests/runtime/ops/sample_networks.h"

namespace thimble::fusion_test {
namespace {

constexpr FusionOptions kAll{.fuses_products = true, .folds_gains = true, .column_multiple = 8};
constexpr FusionOptions kAttentionOnly{.column_multiple = 4};

constexpr std::string_view kOperationNames[] = {"gather", "linear",    "add",      "rms_norm", "layer_norm",
                                                "heads",  "attention", "activate", "gate",     "mix",
                                                "skip",   "smear",     "columns"};
static_assert(std::size(kOperationNames) == std::variant_size_v<Operation>);

// One letter for each composite: e(mbed), q(kv), a(ttend), + (add), ^ (activate), * (gate), and operations' names.
std::string outline(const Network& network, const Fusion& fusion) {
  std::string text;
  for (const Composite& composite : fusion.composites) {
    if (const auto* single = std::get_if<fused::Single>(&composite.work))
      text += " " + std::string(kOperationNames[network.nodes[single->node].operation.index()]) + " ";
    else
      text += "?eqa+^*"[composite.work.index()];
  }
  return text;
}

// Runs a plan on names instead of numbers: every slot holds the value that was written there last.
void expect_whole(const Network& network, const Fusion& fusion, bool compacts) {
  std::map<int32_t, ValueId> held;
  std::map<ValueId, ValueId> views;  // of columns, where these stand alone
  for (const Composite& composite : fusion.composites)
    if (const auto* single = std::get_if<fused::Single>(&composite.work)) {
      const Node& node = network.nodes[single->node];
      if (std::holds_alternative<op::Columns>(node.operation)) views[node.output] = node.inputs[0];
    }
  auto owner = [&](ValueId value) {
    while (views.contains(value)) value = views.at(value);
    return value;
  };
  auto place = [&](ValueId value, size_t at) {
    return compacts && at > fusion.compacts_at ? fusion.compact_places[static_cast<size_t>(value)]
                                               : fusion.places[static_cast<size_t>(value)];
  };
  auto expect_held = [&](ValueId value, size_t at) {
    const Place where = place(value, at);
    ASSERT_TRUE(where) << "value " << value << " has no place";
    ASSERT_TRUE(held.contains(where.slot)) << "nothing was written for value " << value;
    EXPECT_EQ(held.at(where.slot), owner(value)) << "composite " << at;
  };
  for (size_t i = 0; i < fusion.composites.size(); ++i) {
    const Composite& composite = fusion.composites[i];
    for (ValueId value : composite.reads) expect_held(value, i);
    if (compacts && i == fusion.compacts_at)
      for (ValueId value : fusion.compacted) held[fusion.compact_places[static_cast<size_t>(value)].slot] = value;
    if (const auto* attend = std::get_if<fused::Attend>(&composite.work); attend && attend->is_projected) {
      const int64_t stride = attend->attention.heads * padded_head_width(attend->attention.head_dim);
      EXPECT_EQ(place(attend->query, i).stride, stride);
      EXPECT_EQ(place(attend->output, i + 1).stride, stride);
    }
    std::set<int32_t> written;
    for (ValueId value : composite.writes) {
      const bool is_compact = compacts && i >= fusion.compacts_at;
      const Place where =
          is_compact ? fusion.compact_places[static_cast<size_t>(value)] : fusion.places[static_cast<size_t>(value)];
      if (owner(value) != value) continue;
      EXPECT_TRUE(written.insert(where.slot).second);
      EXPECT_EQ(where.first_column, 0);
      if (!fusion.has_padded_heads[static_cast<size_t>(value)]) {
        EXPECT_EQ(where.stride, round_up(network.width_of(value), fusion.options.column_multiple));
      }
      held[where.slot] = value;
    }
    if (composite.scratch != kAbsent) {
      EXPECT_FALSE(written.contains(composite.scratch));
    }
  }
  expect_held(fusion.head.value, fusion.composites.size());
}

class GolfFusion : public ::testing::TestWithParam<GolfCase> {};
INSTANTIATE_TEST_SUITE_P(Options, GolfFusion, ::testing::ValuesIn(kGolfCases),
                         [](const auto& test) { return test.param.name; });

TEST_P(GolfFusion, IsFiveStepsALayer) {
  GolfConfig config = small_golf_config();
  GetParam().change(config);
  const Network network = golf_network(config);
  const Fusion fusion = fuse(network, kAll);
  std::string expected = "e";
  for (int64_t i = 0; i < config.num_layers; ++i) expected += "qa+^+";
  EXPECT_EQ(outline(network, fusion), expected);
  EXPECT_TRUE(fusion.head.is_normed);
  EXPECT_EQ(fusion.tables.size(), (config.bigram_vocab_size > 0 ? 1u : 0u) + (config.ve_layers.empty() ? 0u : 1u));
  EXPECT_EQ(fusion.compacts_at, fusion.composites.size() - 5);
  EXPECT_EQ(fusion.compacted.size(), 1u);
  EXPECT_NE(fusion.shared_scratch, kAbsent);
}

TEST_P(GolfFusion, PlansHold) {
  GolfConfig config = small_golf_config();
  GetParam().change(config);
  const Network network = golf_network(config);
  for (const FusionOptions& options : {kAll, kAttentionOnly})
    for (bool compacts : {false, true}) expect_whole(network, fuse(network, options), compacts);
}

// Whoever stops before the first reader of a linear layer's input finds it, or what it is made of.
TEST_P(GolfFusion, InputsCanBeShown) {
  GolfConfig config = small_golf_config();
  GetParam().change(config);
  const Network network = golf_network(config);
  const Fusion fusion = fuse(network, kAll);
  for (const LinearInput& input : network.linear_inputs()) {
    const ShownValue shown = shown_value(network, fusion, input.value);
    if (shown.kind == ShownValue::Kind::kGathered) continue;
    bool is_made = false;
    for (const Composite& composite : fusion.composites)
      if (composite.trigger < input.first_reader)
        is_made |= std::ranges::count(composite.writes, shown.input.value) > 0;
    EXPECT_TRUE(is_made) << input.first_reader;
  }
}

TEST(Gpt2Fusion, IsFiveStepsAndTwoNormsALayer) {
  const Network network = gpt2_network(small_gpt2_config());
  const Fusion fusion = fuse(network, kAll);
  EXPECT_EQ(outline(network, fusion),
            " gather  gather  add "
            " layer_norm qa+ layer_norm ^+"
            " layer_norm qa+ layer_norm ^+"
            " layer_norm qa+ layer_norm ^+"
            " layer_norm ");
  EXPECT_FALSE(fusion.head.is_normed);
  EXPECT_EQ(fusion.shared_scratch, kAbsent);
  for (const FusionOptions& options : {kAll, kAttentionOnly})
    for (bool compacts : {false, true}) expect_whole(network, fuse(network, options), compacts);
}

TEST(LlamaFusion, IsFiveStepsALayer) {
  const Network network = llama_network(small_llama_config("llama"));
  const Fusion fusion = fuse(network, kAll);
  EXPECT_EQ(outline(network, fusion),
            " gather "
            " rms_norm qa+*+"
            "qa+*+"
            "qa+*+"
            " rms_norm ");
  const FusionOptions without_gains{.fuses_products = true, .column_multiple = 8};
  EXPECT_EQ(outline(network, fuse(network, without_gains)),
            " gather "
            " rms_norm qa+ rms_norm *+"
            " rms_norm qa+ rms_norm *+"
            " rms_norm qa+ rms_norm *+"
            " rms_norm ");
  for (const FusionOptions& options : {kAll, kAttentionOnly})
    for (bool compacts : {false, true}) expect_whole(network, fuse(network, options), compacts);
}

TEST(ToyDecoderFusion, FusesWhatItCan) {
  const Network network = toy_network({.vocab_size = 37,
                                       .width = 40,
                                       .layers = 2,
                                       .mlp_width = 52,
                                       .heads = 4,
                                       .kv_heads = 2,
                                       .rope_base = 10000,
                                       .norm_epsilon = 1e-5});
  EXPECT_EQ(outline(network, fuse(network, kAll)),
            " gather "
            " rms_norm qa+*+"
            "qa+*+"
            " rms_norm ");
}

void expect_whole_however(const Network& network) {
  for (const FusionOptions& options : {kAll, kAttentionOnly})
    for (bool compacts : {false, true}) expect_whole(network, fuse(network, options), compacts);
}

TEST(Fusion, PlansOfEveryOperationHold) { expect_whole_however(network_of_every_operation()); }

TEST(Fusion, PlansOfRandomNetworksHold) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    expect_whole_however(random_network(seed));
    if (HasFailure()) return;
  }
}

// Every node is run by one composite, or by none where its value has no place.
TEST(Fusion, NothingIsLeftOut) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    const Network network = random_network(seed);
    const Fusion fusion = fuse(network, kAll);
    std::set<ValueId> written;
    for (const Composite& composite : fusion.composites)
      for (ValueId value : composite.writes) EXPECT_TRUE(written.insert(value).second) << value;
    for (const Composite& composite : fusion.composites)
      for (ValueId value : composite.reads) EXPECT_TRUE(written.contains(value)) << value;
    EXPECT_TRUE(written.contains(fusion.head.value));
  }
}

}  // namespace
}  // namespace thimble::fusion_test
