// parallel_serial.cpp: loops of parallel.h for programs without threads, in place of parallel.cpp: one body after the
// other. Results are the same.
#include "runtime/base/parallel.h"

namespace thimble {

void parallel_for(int64_t count, const std::function<void(int64_t)>& body) {
  for (int64_t i = 0; i < count; ++i) body(i);
}

int thread_count() { return 1; }

}  // namespace thimble
