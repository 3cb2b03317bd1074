// network_samples.h: networks with random weights for tests of composites and of passes on CUDA devices: every option
// of a golf-gpt, GPT-2, a decoder with gains in its norms and a gated MLP, and a network that no family has.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "examples/family/toy_decoder.h"
#include "tests/runtime/families/golf/golf_cases.h"
#include "tests/runtime/families/gpt2/random_gpt2.h"
#include "tests/runtime/ops/sample_networks.h"

namespace thimble {

struct NetworkSample {
  std::string name;
  std::shared_ptr<const Weights> weights;
  int64_t window = 23, context = 23;

  std::vector<Token> tokens(int64_t count) const { return random_tokens(count, weights->network->vocabulary(), 4); }
};

// What a test is told of a sample: each process names all of its tests, and runs one of them.
struct NetworkRecipe {
  std::string name;
  int64_t window, context;
  std::function<std::shared_ptr<const Weights>()> make_weights;

  NetworkSample make() const { return {name, make_weights(), window, context}; }
};

inline void PrintTo(const NetworkRecipe& recipe, std::ostream* out) { *out << recipe.name; }

inline std::vector<NetworkRecipe> network_recipes() {
  std::vector<NetworkRecipe> recipes;
  for (const GolfCase& golf : kGolfCases)
    recipes.push_back({golf.name, golf.window, golf.context, [golf] {
                         GolfConfig config = small_golf_config();
                         golf.change(config);
                         return random_golf_weights(config, 3);
                       }});
  recipes.push_back({"Gpt2", 23, 40, [] { return random_gpt2_weights(small_gpt2_config(), 3); }});
  recipes.push_back({"WideGpt2", 150, 200, [] {
                       Gpt2Config wide = small_gpt2_config();
                       wide.model_dim = 192;
                       wide.num_heads = 3;
                       wide.num_positions = 200;
                       wide.tie_embeddings = false;
                       return random_gpt2_weights(wide, 5);
                     }});
  recipes.push_back({"ToyDecoder", 40, 50, [] {
                       const ToyConfig toy{.vocab_size = 37,
                                           .width = 40,
                                           .layers = 3,
                                           .mlp_width = 52,
                                           .heads = 4,
                                           .kv_heads = 2,
                                           .rope_base = 10000,
                                           .norm_epsilon = 1e-5};
                       return random_weights(toy_network(toy), 5);
                     }});
  recipes.push_back({"EveryOperation", 23, 40, [] { return random_weights(network_of_every_operation(), 5); }});
  return recipes;
}

inline std::string recipe_name(const ::testing::TestParamInfo<NetworkRecipe>& test) { return test.param.name; }

}  // namespace thimble
