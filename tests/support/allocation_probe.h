// allocation_probe.h: the largest single allocation that the program asks for while a probe lives, on any thread.
// Linking allocation_probe.cpp replaces operator new in that test program.
#pragma once

#include <cstddef>

namespace thimble {

// One at a time.
class AllocationProbe {
 public:
  AllocationProbe();  // starts from zero
  size_t largest_bytes() const;
};

}  // namespace thimble
