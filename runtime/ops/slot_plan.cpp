// slot_plan.cpp: see slot_plan.h.
#include "runtime/ops/slot_plan.h"

#include <algorithm>

namespace thimble {
namespace {

// Cells that lie in one place, one after another.
struct Lifetime {
  int64_t width;
  size_t first, last;  // steps
};

}  // namespace

// Widest first, each in the narrowest slot that is free for as long as it lives: what lives long and is narrow takes no
// wide slot from others (Pisarchyk and Lee, arXiv 2001.03288, section 4.2).
SlotPlan plan_slots(std::span<const SlotStep> steps, std::span<const int64_t> widths) {
  std::vector<size_t> last(widths.size());
  for (size_t i = 0; i < steps.size(); ++i)
    for (Cell cell : steps[i].cells)
      if (cell != kAbsent) last[static_cast<size_t>(cell)] = i;

  std::vector<Lifetime> lifetimes;
  std::vector<size_t> lifetime_of(widths.size(), widths.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto& [cells, replaced, by] = steps[i];
    if (replaced != kAbsent && last[static_cast<size_t>(replaced)] == i && std::ranges::count(cells, replaced) == 1 &&
        widths[static_cast<size_t>(replaced)] == widths[static_cast<size_t>(by)])
      lifetime_of[static_cast<size_t>(by)] = lifetime_of[static_cast<size_t>(replaced)];
    for (Cell id : cells) {
      if (id == kAbsent) continue;
      const auto cell = static_cast<size_t>(id);
      if (lifetime_of[cell] == widths.size()) {
        lifetime_of[cell] = lifetimes.size();
        lifetimes.push_back({widths[cell], i, i});
      }
      lifetimes[lifetime_of[cell]].last = i;
    }
  }

  SlotPlan plan;
  std::vector<std::vector<Lifetime>> taken;  // by slot
  std::vector<int32_t> slot_of(lifetimes.size(), kAbsent);
  for (size_t placed = 0; placed < lifetimes.size(); ++placed) {
    size_t at = lifetimes.size();  // the widest, of these the first, that has no slot yet
    for (size_t i = lifetimes.size(); i-- > 0;)
      if (slot_of[i] == kAbsent && (at == lifetimes.size() || lifetimes[i].width >= lifetimes[at].width)) at = i;
    const Lifetime& own = lifetimes[at];
    size_t slot = taken.size();  // the last ones are the narrowest
    while (slot > 0 && std::ranges::any_of(taken[slot - 1], [&](const Lifetime& other) {
             return other.first <= own.last && own.first <= other.last;
           }))
      --slot;
    if (slot == 0) {
      taken.emplace_back();
      plan.widths.push_back(own.width);
      slot = taken.size();
    }
    taken[slot - 1].push_back(own);
    slot_of[at] = static_cast<int32_t>(slot - 1);
  }
  for (size_t lifetime : lifetime_of) plan.slot_of.push_back(lifetime == widths.size() ? kAbsent : slot_of[lifetime]);
  return plan;
}

}  // namespace thimble
