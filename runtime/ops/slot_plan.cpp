// slot_plan.cpp: see slot_plan.h.
#include "runtime/ops/slot_plan.h"

#include <algorithm>
#include <set>

namespace thimble {
namespace {

class SlotPool {
 public:
  // A free slot of at least this width: the narrowest that is wide enough, else the widest, made wider, else a new one.
  int32_t take(int64_t width) {
    auto width_of = [&](int32_t slot) { return widths[static_cast<size_t>(slot)]; };
    auto is_better = [&](int32_t a, int32_t b) {
      const bool fits = width_of(a) >= width;
      if (fits != (width_of(b) >= width)) return fits;
      return fits ? width_of(a) < width_of(b) : width_of(a) > width_of(b);
    };
    const auto best = std::ranges::min_element(free, is_better);
    if (best == free.end()) {
      widths.push_back(width);
      return static_cast<int32_t>(widths.size()) - 1;
    }
    const int32_t slot = *best;
    free.erase(best);
    widths[static_cast<size_t>(slot)] = std::max(width_of(slot), width);
    return slot;
  }

  std::vector<int64_t> widths;
  std::vector<int32_t> free;
};

}  // namespace

SlotPlan plan_slots(std::span<const SlotStep> steps, std::span<const int64_t> widths) {
  std::vector<size_t> last(widths.size());
  for (size_t i = 0; i < steps.size(); ++i)
    for (Cell cell : steps[i].cells)
      if (cell != kAbsent) last[static_cast<size_t>(cell)] = i;
  SlotPool slots;
  std::vector<int32_t> slot_of(widths.size(), kAbsent);
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto& [cells, replaced, by] = steps[i];
    const bool in_place = replaced != kAbsent && last[static_cast<size_t>(replaced)] == i &&
                          std::ranges::count(cells, replaced) == 1 &&
                          widths[static_cast<size_t>(replaced)] == widths[static_cast<size_t>(by)];
    if (in_place) slot_of[static_cast<size_t>(by)] = slot_of[static_cast<size_t>(replaced)];
    for (Cell cell : cells)
      if (cell != kAbsent && slot_of[static_cast<size_t>(cell)] == kAbsent)
        slot_of[static_cast<size_t>(cell)] = slots.take(widths[static_cast<size_t>(cell)]);
    for (Cell cell : std::set<Cell>(cells.begin(), cells.end()))
      if (cell != kAbsent && last[static_cast<size_t>(cell)] == i && !(in_place && cell == replaced))
        slots.free.push_back(slot_of[static_cast<size_t>(cell)]);
  }
  return {slots.widths, slot_of};
}

}  // namespace thimble
