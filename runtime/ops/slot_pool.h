// slot_pool.h: slots of memory that values use one after another, for plans of passes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace thimble {

// Slots of so many elements a row, as many and as wide as it takes.
class SlotPool {
 public:
  // A free slot of at least this width: the narrowest that is wide enough, else the widest, made wider, else a new one.
  int32_t take(int64_t width) {
    auto width_of = [&](int32_t slot) { return widths_[static_cast<size_t>(slot)]; };
    auto is_better = [&](int32_t a, int32_t b) {
      const bool fits = width_of(a) >= width;
      if (fits != (width_of(b) >= width)) return fits;
      return fits ? width_of(a) < width_of(b) : width_of(a) > width_of(b);
    };
    const auto best = std::ranges::min_element(free_, is_better);
    if (best == free_.end()) {
      widths_.push_back(width);
      return static_cast<int32_t>(widths_.size()) - 1;
    }
    const int32_t slot = *best;
    free_.erase(best);
    widths_[static_cast<size_t>(slot)] = std::max(width_of(slot), width);
    return slot;
  }
  void give_back(int32_t slot) { free_.push_back(slot); }
  const std::vector<int64_t>& widths() const { return widths_; }

 private:
  std::vector<int64_t> widths_;
  std::vector<int32_t> free_;
};

}  // namespace thimble
