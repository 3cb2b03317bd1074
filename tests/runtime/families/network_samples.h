// network_samples.h: networks with random weights for tests of composites and of passes on CUDA devices: every option
// of a golf-gpt, GPT-2, a decoder with gains in its norms and a gated MLP, and a network that no family has.
#pragma once

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

inline void PrintTo(const NetworkSample& sample, std::ostream* out) { *out << sample.name; }

inline std::vector<NetworkSample> network_samples() {
  std::vector<NetworkSample> samples;
  for (const GolfCase& golf : kGolfCases) {
    GolfConfig config = small_golf_config();
    golf.change(config);
    samples.push_back({golf.name, random_golf_weights(config, 3), golf.window, golf.context});
  }
  samples.push_back({"Gpt2", random_gpt2_weights(small_gpt2_config(), 3), 23, 40});
  Gpt2Config wide = small_gpt2_config();
  wide.model_dim = 192;
  wide.num_heads = 3;
  wide.num_positions = 200;
  wide.tie_embeddings = false;
  samples.push_back({"WideGpt2", random_gpt2_weights(wide, 5), 150, 200});
  const ToyConfig toy{.vocab_size = 37,
                      .width = 40,
                      .layers = 3,
                      .mlp_width = 52,
                      .heads = 4,
                      .kv_heads = 2,
                      .rope_base = 10000,
                      .norm_epsilon = 1e-5};
  samples.push_back({"ToyDecoder", random_weights(toy_network(toy), 5), 40, 50});
  samples.push_back({"EveryOperation", random_weights(network_of_every_operation(), 5), 23, 40});
  return samples;
}

inline std::string sample_name(const ::testing::TestParamInfo<NetworkSample>& test) { return test.param.name; }

}  // namespace thimble
