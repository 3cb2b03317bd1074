// allocation_probe.cpp: operator new and delete that watch sizes. In a file of its own, so that no caller inlines a
// half.
#include "tests/support/allocation_probe.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<size_t> largest_request = 0;
}  // namespace

namespace thimble {

AllocationProbe::AllocationProbe() { largest_request = 0; }
size_t AllocationProbe::largest_bytes() const { return largest_request; }

}  // namespace thimble

// The nothrow forms too: sanitizers bring their own otherwise, which do not pair with these.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  size_t largest = largest_request.load();
  while (bytes > largest && !largest_request.compare_exchange_weak(largest, bytes)) {
  }
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new(size_t bytes) {
  if (void* memory = ::operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
