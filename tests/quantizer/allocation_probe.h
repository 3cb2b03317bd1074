// allocation_probe.h: how large the largest single allocation was, to prove that no reader trusts a size in a file.
// allocation_probe.cpp replaces the program's operator new; the memory still comes from malloc, so sanitizers see it.
#pragma once

#include <cstddef>

namespace thimble {

// Largest allocation of this thread, in bytes, since the object was made. One at a time.
class AllocationProbe {
 public:
  AllocationProbe();
  size_t largest_bytes() const;
};

}  // namespace thimble
