// slot_plan.h: memory for what the steps of a pass make: slots that one thing after another lies in.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/ops/network.h"

namespace thimble {

// What needs a place: a value, a gradient, scratch.
using Cell = int32_t;

struct SlotStep {
  std::vector<Cell> cells;                // what it reads and makes; kAbsent: nothing
  Cell replaced = kAbsent, by = kAbsent;  // `by`, which the step makes, may lie where `replaced` did if that ends here
};

struct SlotPlan {
  std::vector<int64_t> widths;   // of slots, as many and as wide as it takes
  std::vector<int32_t> slot_of;  // by cell; kAbsent: no step names it
};

// A cell of widths[cell] elements a row lives from the first step that names it to the last.
SlotPlan plan_slots(std::span<const SlotStep> steps, std::span<const int64_t> widths);

}  // namespace thimble
