// trellis_labels.h: numbers for a trellis's states by which a step of Viterbi is a butterfly, as of a fast Fourier
// transform: each state is reached from itself and from the one whose number differs in one bit.
//
// Steps are linear over exclusive or: a code of parity p leads from state x to A x ^ p b. Of a state x some rows into a
// group of rows let y be the state at the group's start from which even codes lead to x. An even code leaves y as it
// is, an odd one in row t turns it into y ^ A^-(t+1) b, and these vectors of `bits` rows are a basis of all states. So
// a state's label, its y in coordinates of this basis, changes in the row's own bit or not at all; the bits that differ
// between the labels at a group's start and its end are the parities of its codes.
#pragma once

#include "gptq/slope/trellis_branches.h"
#include "runtime/codes/trellis.h"
#include "runtime/tensor/host_device.h"

namespace thimble {

// Of groups of kBits rows, for 2^kBits states. The first kUpperRows rows of a group have a label's uppermost bits.
template <int kBits, int kUpperRows>
struct TrellisLabels {
  static_assert(kBits >= 2 && kUpperRows <= kBits);
  static constexpr uint32_t kStates = 1u << kBits;

  // Which bit of the label an odd code changes in each row.
  THIMBLE_HOST_DEVICE static constexpr int bit(int row) { return (row + kBits - kUpperRows) % kBits; }

  // All maps of labels are linear; by bit of the label:
  uint32_t states[kBits] = {};  // the state at the group's start
  uint32_t after[kBits] = {};   // the label at the start of the next group of the state at this group's end
  uint32_t before[kBits] = {};  // the other way round
  // By row: a state is of set 1 in that row when its label has an odd number of these bits.
  uint32_t sets[kBits] = {};

  constexpr TrellisLabels() {
    const Trellis trellis(kBits);
    const TrellisMerges merges(trellis);
    uint32_t state = trellis.next(0, 1);
    for (int row = 0; row < kBits; ++row) states[bit(row)] = state = merges.from(state, 0);
    for (int i = 0; i < kBits; ++i) {
      uint32_t end = states[i], start = states[i];
      for (int row = 0; row < kBits; ++row) {
        sets[row] |= static_cast<uint32_t>(Trellis::set(end)) << i;
        end = trellis.next(end, 0);
        start = merges.from(start, 0);
      }
      after[i] = label(end);
      before[i] = label(start);
    }
  }

  // A linear map of a label.
  THIMBLE_HOST_DEVICE static constexpr uint32_t map(const uint32_t (&of_bits)[kBits], uint32_t label) {
    uint32_t mapped = 0;
    for (int i = 0; i < kBits; ++i) mapped ^= (0 - (label >> i & 1)) & of_bits[i];
    return mapped;
  }

  // Of a state at the group's start; kStates when it has none.
  constexpr uint32_t label(uint32_t state) const {
    uint32_t label = 0;
    while (label < kStates && map(states, label) != state) ++label;
    return label;
  }
};

}  // namespace thimble
