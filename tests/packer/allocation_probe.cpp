// allocation_probe.cpp: operator new and delete that watch sizes. In a file of its own, so that no caller inlines a
// half.
#include "tests/packer/allocation_probe.h"

#include <cstdlib>
#include <new>

namespace thimble {

std::atomic<size_t> largest_request = 0;

}  // namespace thimble

void* operator new(size_t bytes) {
  size_t largest = thimble::largest_request.load();
  while (bytes > largest && !thimble::largest_request.compare_exchange_weak(largest, bytes)) {
  }
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
