// allocation_probe.cpp: operator new that remembers the largest request of each thread.
#include "tests/quantizer/allocation_probe.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace {
thread_local size_t largest_request_bytes = 0;
}  // namespace

void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  largest_request_bytes = std::max(largest_request_bytes, bytes);
  return std::malloc(bytes == 0 ? 1 : bytes);
}

void* operator new(size_t bytes) {
  if (void* memory = ::operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

namespace thimble {

AllocationProbe::AllocationProbe() { largest_request_bytes = 0; }
size_t AllocationProbe::largest_bytes() const { return largest_request_bytes; }

}  // namespace thimble
