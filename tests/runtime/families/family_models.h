// family_models.h: small random models of every family and option, each with its naive pass: what tests run over all.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "runtime/ops/weights.h"
#include "tests/runtime/families/naive_forward.h"
#include "tests/runtime/ops/random_tokens.h"
#include "tests/runtime/tensor/owned_tensors.h"

namespace thimble {

struct FamilyModel {
  OwnedTensors tensors;
  std::shared_ptr<const Weights> weights;
  int64_t window = 0, context = 0;
  // One window from its start, with these tensors.
  std::function<NaiveForward(const OwnedTensors& tensors, std::span<const Token> inputs, const NaiveEdit& edit)> naive;
  // How far a float32 pass may be from the naive one where values are up to `largest`.
  std::function<double(double largest)> tolerance;

  const Network& network() const { return *weights->network; }
  int64_t vocabulary() const { return network().vocabulary(); }
  const std::string& head_name() const { return network().matrix(network().head.weight).name; }
  // A window's inputs and the token after each.
  std::vector<Token> random_window(uint64_t seed = 4) const { return random_tokens(window + 1, vocabulary(), seed); }
};

struct FamilyCase {
  std::string name;
  std::function<FamilyModel()> make;
};

inline void PrintTo(const FamilyCase& t, std::ostream* out) { *out << t.name; }

// Every option of every family.
const std::vector<FamilyCase>& family_cases();

// One model of each family, with predictions that are far from certain, so that draws matter.
const std::vector<FamilyCase>& undecided_cases();

// Rows `first`... of `expected` are the rows of `found`.
void expect_rows(ConstMatrixView found, const NaiveRows& expected, int64_t first, double allowed);

}  // namespace thimble
