// allocation_probe.cpp: operator new and delete that watch sizes. In a file of its own, so that no caller inlines a
// half.
#include "tests/support/allocation_probe.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<size_t> largest_request = 0;
std::atomic<int64_t> held_bytes = 0, peak_held_bytes = 0;

template <typename Number>
void raise(std::atomic<Number>& most, Number value) {
  Number known = most.load();
  while (value > known && !most.compare_exchange_weak(known, value)) {
  }
}

void* counted(void* memory) noexcept {
  const auto bytes = static_cast<int64_t>(::malloc_usable_size(memory));
  raise(peak_held_bytes, held_bytes += bytes);
  return memory;
}

void release(void* memory) noexcept {
  held_bytes -= static_cast<int64_t>(::malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

namespace thimble {

AllocationProbe::AllocationProbe() : before_(held_bytes) {
  largest_request = 0;
  peak_held_bytes = before_;
}
size_t AllocationProbe::largest_bytes() const { return largest_request; }
uint64_t AllocationProbe::peak_bytes() const { return static_cast<uint64_t>(peak_held_bytes - before_); }

}  // namespace thimble

// The nothrow forms too: sanitizers bring their own otherwise, which do not pair with these.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  raise(largest_request, bytes);
  return counted(std::malloc(bytes == 0 ? 1 : bytes));
}
void* operator new(size_t bytes) {
  if (void* memory = ::operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  raise(largest_request, bytes);
  const auto multiple = static_cast<size_t>(alignment);
  if (void* memory = std::aligned_alloc(multiple, (std::max<size_t>(bytes, 1) + multiple - 1) / multiple * multiple))
    return counted(memory);
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { release(memory); }
