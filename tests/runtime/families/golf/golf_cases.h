// golf_cases.h: every option of the model, one small case each, and how far a float32 forward pass may be from the
// naive one in float64. Shared by the tests of the CPU's and the CUDA forward pass.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <ostream>

#include "tests/runtime/families/golf/naive_golf.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble {

// A change of small_golf_config(), and the window to run.
struct GolfCase {
  const char* name;
  std::function<void(GolfConfig&)> change;  // of small_golf_config()
  int64_t window = 23;
  int64_t context = 23;
};

inline void PrintTo(const GolfCase& t, std::ostream* out) { *out << t.name; }

inline const GolfCase kGolfCases[] = {
    {"EveryOption", [](GolfConfig&) {}},
    {"Plain",
     [](GolfConfig& c) {
       c.ln_scale = c.smear_gate = c.skip_gates = false;
       c.xsa_last_n = c.bigram_vocab_size = c.bigram_dim = c.ve_dim = 0;
       c.ve_layers = {};
     }},
    {"NoBigrams", [](GolfConfig& c) { c.bigram_vocab_size = c.bigram_dim = 0; }},
    {"TwoBigramRows", [](GolfConfig& c) { c.bigram_vocab_size = 2; }},
    {"NoSmear", [](GolfConfig& c) { c.smear_gate = false; }},
    {"UngatedSkips", [](GolfConfig& c) { c.skip_gates = false; }},
    {"NoValueEmbeddings",
     [](GolfConfig& c) {
       c.ve_layers = {};
       c.ve_dim = 0;
     }},
    {"ValueEmbeddingsOutOfOrder",
     [](GolfConfig& c) {
       c.ve_layers = {3, 0, 2};
     }},
    {"ValueEmbeddingsEverywhere",
     [](GolfConfig& c) {
       c.ve_layers = {0, 1, 2, 3, 4};
     }},
    {"NoExclusiveAttention", [](GolfConfig& c) { c.xsa_last_n = 0; }},
    {"ExclusiveAttentionEverywhere", [](GolfConfig& c) { c.xsa_last_n = 5; }},
    {"NoDepthScale", [](GolfConfig& c) { c.ln_scale = false; }},
    {"UntiedHead", [](GolfConfig& c) { c.tie_embeddings = false; }},
    {"EvenLayers",
     [](GolfConfig& c) {
       c.num_layers = 4;
       c.ve_layers = {1, 3};
     }},
    {"TwoLayers",
     [](GolfConfig& c) {
       c.num_layers = 2;
       c.ve_layers = {1};
     }},
    {"OneLayer",
     [](GolfConfig& c) {
       c.num_layers = 1;
       c.xsa_last_n = 1;
       c.skip_gates = false;
       c.ve_layers = {0};
     }},
    {"OneHead",
     [](GolfConfig& c) {
       c.num_heads = c.num_kv_heads = 1;
       c.rope_dims = 24;
     }},
    {"OneKeyForAllHeads", [](GolfConfig& c) { c.num_kv_heads = 1; }},
    {"AKeyForEachHead", [](GolfConfig& c) { c.num_kv_heads = 4; }},
    {"ThreeHeadsPerKey",
     [](GolfConfig& c) {
       c.num_heads = 6;
       c.num_kv_heads = 2;
     }},
    {"WholeHeadsRotate", [](GolfConfig& c) { c.rope_dims = 6; }},
    {"TightSoftcap", [](GolfConfig& c) { c.logit_softcap = 2; }},
    {"NarrowMlp", [](GolfConfig& c) { c.mlp_mult = 0.3; }},
    {"WideMlp", [](GolfConfig& c) { c.mlp_mult = 4; }},
    {"OneToken", [](GolfConfig&) {}, 1, 1},
    {"TwoTokens", [](GolfConfig&) {}, 2, 2},
    {"ShorterLastWindow", [](GolfConfig&) {}, 9, 40},
    {"ContextAtTheTrainedLength", [](GolfConfig& c) { c.rope_train_seq_len = 23; }},
    {"ContextAboveTheTrainedLength", [](GolfConfig& c) { c.rope_train_seq_len = 11; }},
    {"ShortWindowOfALongContext", [](GolfConfig& c) { c.rope_train_seq_len = 16; }, 9, 64},
};

// First-order growth of float32 rounding: every layer adds the dot products of its four kinds of sums, relative to the
// largest value; mistakes in the formulas are hundreds of times larger.
inline double tolerance(const GolfConfig& c, int64_t positions, double largest) {
  double terms = static_cast<double>(4 * c.model_dim + c.mlp_dim() + c.head_dim() + positions);
  return 0x1p-24 * static_cast<double>(c.num_layers + 1) * terms * std::max(1.0, largest);
}

}  // namespace thimble
