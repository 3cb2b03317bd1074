// path_steps.cpp: see path_steps.h. A state's two ways on or back are those of a code's parities (TrellisMerges):
// states u and u ^ a constant of one half of all states, or of one set.
#include "gptq/slope/path_steps.h"

#include <cstring>
#include <type_traits>

namespace thimble {
namespace {

// What TrellisMerges rests on.
constexpr bool halves_follow_sets(int bits) {
  const Trellis trellis(bits);
  return trellis.next(1, 0) >= trellis.states() / 2 && trellis.next(0, 1) < trellis.states() / 2;
}
static_assert(halves_follow_sets(2) && halves_follow_sets(3) && halves_follow_sets(4) && halves_follow_sets(5) &&
              halves_follow_sets(6) && halves_follow_sets(7) && halves_follow_sets(8) && kMaxTrellisBits == 8);

using Lanes = uint32_t __attribute__((vector_size(16)));
using SignedLanes = int32_t __attribute__((vector_size(16)));
constexpr uint32_t kLanes = sizeof(Lanes) / sizeof(uint32_t);

Lanes load(const uint32_t* paths) {
  Lanes lanes;
  std::memcpy(&lanes, paths, sizeof(lanes));
  return lanes;
}

void store(uint32_t* paths, Lanes lanes) { std::memcpy(paths, &lanes, sizeof(lanes)); }

Lanes better(Lanes a, Lanes b) {
  const auto is_less = reinterpret_cast<Lanes>(reinterpret_cast<SignedLanes>(a) < reinterpret_cast<SignedLanes>(b));
  return b ^ ((a ^ b) & is_less);
}

uint32_t better(uint32_t a, uint32_t b) { return static_cast<int32_t>(a) < static_cast<int32_t>(b) ? a : b; }

// Of i, i + 1, ...: paths[i ^ kFlip].
template <uint32_t kFlip>
Lanes load_flipped(const uint32_t* paths, uint32_t i) {
  constexpr uint32_t kLane = kFlip % kLanes;
  const Lanes lanes = load(paths + (i ^ (kFlip - kLane)));
  return __builtin_shufflevector(lanes, lanes, 0 ^ kLane, 1 ^ kLane, 2 ^ kLane, 3 ^ kLane);
}

template <int kBits>
struct Flips {
  static constexpr uint32_t kHalf = 1u << (kBits - 1);  // of all states
  // Between the states that codes of both parities lead to, and those of both sets less kHalf.
  static constexpr uint32_t kParity = Trellis(kBits).next(0, 1), kSet = Trellis(kBits).next(1, 0) % kHalf;
};

template <int kBits>
void extend(const uint32_t* paths, const BranchCosts& costs, uint32_t* next) {
  using Flip = Flips<kBits>;
  uint32_t even[Flip::kHalf], odd[Flip::kHalf];  // by half the state before the row
  for (uint32_t u = 0; u < Flip::kHalf; ++u) even[u] = paths[2 * u], odd[u] = paths[2 * u + 1];
  if constexpr (Flip::kHalf >= kLanes) {
    for (uint32_t u = 0; u < Flip::kHalf; u += kLanes) {
      store(next + u, better(load(even + u) + costs[0], load_flipped<Flip::kParity>(even, u) + costs[2]));
      store(next + Flip::kHalf + u, better(load_flipped<Flip::kSet>(odd, u) + costs[1],
                                           load_flipped<Flip::kSet ^ Flip::kParity>(odd, u) + costs[3]));
    }
  } else {
    for (uint32_t u = 0; u < Flip::kHalf; ++u) {
      next[u] = better(even[u] + costs[0], even[u ^ Flip::kParity] + costs[2]);
      next[Flip::kHalf + u] = better(odd[u ^ Flip::kSet] + costs[1], odd[u ^ Flip::kSet ^ Flip::kParity] + costs[3]);
    }
  }
}

template <int kBits>
void extend_back(const uint32_t* paths, const BranchCosts& costs, uint32_t* before) {
  using Flip = Flips<kBits>;
  const uint32_t* odd = paths + Flip::kHalf;
  if constexpr (Flip::kHalf >= kLanes) {
    for (uint32_t u = 0; u < Flip::kHalf; u += kLanes) {
      const Lanes from_even = better(load(paths + u) + costs[0], load_flipped<Flip::kParity>(paths, u) + costs[2]);
      const Lanes from_odd = better(load_flipped<Flip::kSet>(odd, u) + costs[1],
                                    load_flipped<Flip::kSet ^ Flip::kParity>(odd, u) + costs[3]);
      store(before + 2 * u, __builtin_shufflevector(from_even, from_odd, 0, 4, 1, 5));
      store(before + 2 * u + kLanes, __builtin_shufflevector(from_even, from_odd, 2, 6, 3, 7));
    }
  } else {
    for (uint32_t u = 0; u < Flip::kHalf; ++u) {
      before[2 * u] = better(paths[u] + costs[0], paths[u ^ Flip::kParity] + costs[2]);
      before[2 * u + 1] = better(odd[u ^ Flip::kSet] + costs[1], odd[u ^ Flip::kSet ^ Flip::kParity] + costs[3]);
    }
  }
}

// body(std::integral_constant<int, bits>)
template <typename Body>
void with_bits(int bits, const Body& body) {
  switch (bits) {
    case 2: return body(std::integral_constant<int, 2>());
    case 3: return body(std::integral_constant<int, 3>());
    case 4: return body(std::integral_constant<int, 4>());
    case 5: return body(std::integral_constant<int, 5>());
    case 6: return body(std::integral_constant<int, 6>());
    case 7: return body(std::integral_constant<int, 7>());
    case 8: return body(std::integral_constant<int, 8>());
    default: return;
  }
}

}  // namespace

void extend_paths(int bits, const uint32_t* paths, const BranchCosts& costs, uint32_t* next) {
  with_bits(bits, [&](auto known) { extend<known()>(paths, costs, next); });
}

void extend_paths_back(int bits, const uint32_t* paths, const BranchCosts& costs, uint32_t* before) {
  with_bits(bits, [&](auto known) { extend_back<known()>(paths, costs, before); });
}

}  // namespace thimble
