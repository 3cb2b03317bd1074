// trellis_labels.h: numbers for a trellis's states by which a step of Viterbi is a butterfly, as of a fast Fourier
// transform: each state is reached from itself and from the one whose number differs in one bit.
//
// Steps are linear over exclusive or: a code of parity p leads from state x to A x ^ p b. Of a state x some rows into a
// block of rows let y be the state at the block's start from which even codes lead to x. An even code leaves y as it
// is, an odd one in row t turns it into y ^ A^-(t+1) b, and these vectors of the block's rows, with more powers of A
// times b, are a basis of all states. So a state's label, its y in coordinates of this basis, changes in the row's own
// bit or not at all; the bits that differ between the labels at a block's start and its end are the parities of its
// codes. The same holds of a block whose rows are taken from the last to the first.
#pragma once

#include "gptq/slope/trellis_branches.h"
#include "runtime/codes/trellis.h"
#include "runtime/tensor/host_device.h"

namespace thimble {

// Of blocks of three rows, or as many as states have bits if these are two. Rows are numbered as they are taken.
template <int kBits, bool kFromLast>
struct TrellisLabels {
  static_assert(Trellis::has_bits(kBits) && kBits > 0);
  static constexpr uint32_t kStates = 1u << kBits;
  static constexpr int kRows = kBits < 3 ? kBits : 3;
  static constexpr uint32_t kRowBits = (1u << kRows) - 1;  // of the block's rows

  // Which bit of the label an odd code changes in each row: the lowest ones, of three the third in the first row. For
  // numbers of rows beyond the block, the other bits, in an order in which labels after one block that differ in lower
  // bits alone differ in them at the next one's start too, if states have 8 bits: labels are addresses in memory, of
  // which the lower bits tell banks.
  THIMBLE_HOST_DEVICE static constexpr int bit(int row) {
    const int others = kBits > kRows ? kBits - kRows : 1;
    return row < kRows ? (row + 2) % kRows : kRows + (2 * others + 1 + kRows - row) % others;
  }

  // All maps are linear; by bit of the label:
  uint32_t entered[kBits] = {};  // the state before the first row that is taken
  uint32_t left[kBits] = {};     // the state after the last row that is taken
  uint32_t onward[kBits] = {};   // the label that the next block begins with, of the one that this block ends with
  // By bit of the state: of one before the first row that is taken, and of one after the last.
  uint32_t entering[kBits] = {};
  uint32_t leaving[kBits] = {};
  // By row: a state is of set 1 in that row when its label has an odd number of these bits.
  uint32_t sets[kRows] = {};

  constexpr TrellisLabels() {
    const Trellis trellis(kBits);
    const TrellisMerges merges(trellis);
    uint32_t states[kBits] = {};  // at the block's start
    uint32_t state = trellis.next(0, 1);
    if (kFromLast)
      for (int row = 0; row < kRows; ++row) state = merges.from(state, 0);
    for (int row = 0; row < kBits; ++row) {
      if (!kFromLast) state = merges.from(state, 0);
      states[bit(row)] = state;
      if (kFromLast) state = trellis.next(state, 0);
    }
    for (int i = 0; i < kBits; ++i) {
      uint32_t end = states[i];
      for (int row = 0; row < kRows; ++row) {
        sets[kFromLast ? kRows - 1 - row : row] |= static_cast<uint32_t>(Trellis::set(end)) << i;
        end = trellis.next(end, 0);
      }
      entered[i] = kFromLast ? end : states[i];
      left[i] = kFromLast ? states[i] : end;
    }
    for (int i = 0; i < kBits; ++i) {
      entering[i] = label(entered, 1u << i);
      leaving[i] = label(left, 1u << i);
      onward[i] = label(entered, left[i]);
    }
  }

  THIMBLE_HOST_DEVICE static constexpr uint32_t map(const uint32_t (&of_bits)[kBits], uint32_t bits) {
    uint32_t mapped = 0;
    for (int i = 0; i < kBits; ++i) mapped ^= (0 - (bits >> i & 1)) & of_bits[i];
    return mapped;
  }

 private:
  // The one of a state; kStates when it has none.
  static constexpr uint32_t label(const uint32_t (&state_of)[kBits], uint32_t state) {
    uint32_t label = 0;
    while (label < kStates && map(state_of, label) != state) ++label;
    return label;
  }
};

}  // namespace thimble
