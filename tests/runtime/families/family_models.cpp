// family_models.cpp: see family_models.h.
#include "tests/runtime/families/family_models.h"

#include <gtest/gtest.h>

#include "tests/runtime/families/golf/golf_cases.h"
#include "tests/runtime/families/gpt2/gpt2_cases.h"
#include "tests/runtime/families/gpt2/naive_gpt2.h"
#include "tests/runtime/families/llama/llama_cases.h"
#include "tests/runtime/families/llama/naive_llama.h"

namespace thimble {
namespace {

using NaivePass = decltype(FamilyModel::naive);

// Some 2^10 roundings lie between a token and a logit.
double usual_tolerance(double largest) { return largest * 0x1p-14; }

FamilyModel golf_model(const GolfConfig& config, int64_t window, int64_t context) {
  OwnedTensors tensors = random_golf_tensors(config, 3);
  const NaivePass naive = [=](const OwnedTensors& changed, std::span<const Token> inputs, const NaiveEdit& edit) {
    return naive_golf_forward(config, views_of(changed), inputs, context, edit);
  };
  return {tensors, golf_weights(config, tensors),
          window,  context,
          naive,   [=](double largest) { return tolerance(config, window, largest); }};
}

FamilyModel gpt2_model(const Gpt2Config& config, int64_t window, int64_t context) {
  OwnedTensors tensors = random_gpt2_tensors(config, 3);
  const NaivePass naive = [=](const OwnedTensors& changed, std::span<const Token> inputs, const NaiveEdit& edit) {
    return naive_gpt2_forward(config, views_of(changed), inputs, edit);
  };
  return {tensors, gpt2_weights(config, tensors), window, context, naive, usual_tolerance};
}

FamilyModel llama_model(const LlamaConfig& config, int64_t window, int64_t context) {
  OwnedTensors tensors = random_llama_tensors(config, 3);
  const NaivePass naive = [=](const OwnedTensors& changed, std::span<const Token> inputs, const NaiveEdit& edit) {
    return naive_llama_forward(config, views_of(changed), inputs, edit);
  };
  return {tensors, llama_weights(config, tensors), window, context, naive, usual_tolerance};
}

}  // namespace

const std::vector<FamilyCase>& family_cases() {
  static const std::vector<FamilyCase> cases = [] {
    std::vector<FamilyCase> all;
    for (const GolfCase& golf : kGolfCases)
      all.push_back({std::string("Golf") + golf.name, [&golf] {
                       GolfConfig config = small_golf_config();
                       golf.change(config);
                       return golf_model(config, golf.window, golf.context);
                     }});
    for (const Gpt2Case& gpt2 : kGpt2Cases)
      all.push_back({std::string("Gpt2") + gpt2.name,
                     [&gpt2] { return gpt2_model(config_of(gpt2), gpt2.window, gpt2.context); }});
    for (const LlamaCase& llama : kLlamaCases)
      all.push_back({llama.name, [&llama] { return llama_model(config_of(llama), llama.window, llama.context); }});
    return all;
  }();
  return cases;
}

const std::vector<FamilyCase>& undecided_cases() {
  static const std::vector<FamilyCase> cases = {
      {"Golf",
       [] {
         GolfConfig config = small_golf_config();
         config.logit_softcap = 2;
         return golf_model(config, 23, 40);
       }},
      {"Gpt2", [] { return gpt2_model(small_gpt2_config(), 23, 40); }},
      {"Mistral", [] { return llama_model(small_llama_config("mistral"), 23, 40); }},
      {"Gemma3", [] { return llama_model(small_llama_config("gemma3_text"), 23, 40); }}};
  return cases;
}

void expect_rows(ConstMatrixView found, const NaiveRows& expected, int64_t first, double allowed) {
  ASSERT_EQ(found.rows, static_cast<int64_t>(expected.size()) - first);
  ASSERT_EQ(found.cols, static_cast<int64_t>(expected[0].size()));
  for (int64_t r = 0; r < found.rows; ++r)
    for (int64_t c = 0; c < found.cols; ++c)
      ASSERT_NEAR(found.row(r)[c], expected[static_cast<size_t>(first + r)][static_cast<size_t>(c)], allowed)
          << "row " << r << " column " << c;
}

}  // namespace thimble
