// path_steps.h: one row of Viterbi on the host: all states' best paths (trellis_branches.h), four at a time in vector
// registers.
#pragma once

#include <array>
#include <cstdint>

#include "gptq/slope/trellis_branches.h"

namespace thimble {

// Paths are compared as signed numbers here, since vector registers do that with any instruction set: each is the
// unsigned one with its uppermost bit turned over.
constexpr uint32_t kSignedPath = 1u << 31;

// By residue (trellis_branches.h): what the codes of a row add to a path.
using BranchCosts = std::array<uint32_t, kBranches>;

// For a trellis of 2^bits states, bits from 2 to kMaxTrellisBits. paths, next, before: (states), apart.
// From paths to the states before a row, those to the states after it.
void extend_paths(int bits, const uint32_t* paths, const BranchCosts& costs, uint32_t* next);
// From paths that begin at the states after a row, those that begin before it.
void extend_paths_back(int bits, const uint32_t* paths, const BranchCosts& costs, uint32_t* before);

}  // namespace thimble
