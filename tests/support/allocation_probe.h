// allocation_probe.h: what the program asks for of its heap while a probe lives, on any thread: the largest single
// allocation, and the most that was there at once besides what there was before. Linking allocation_probe.cpp replaces
// operator new in that test program.
#pragma once

#include <cstddef>
#include <cstdint>

namespace thimble {

// One at a time.
class AllocationProbe {
 public:
  AllocationProbe();  // starts from zero
  size_t largest_bytes() const;
  // As the heap rounds blocks.
  uint64_t peak_bytes() const;

 private:
  int64_t before_;
};

}  // namespace thimble
