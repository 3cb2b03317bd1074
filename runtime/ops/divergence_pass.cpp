// divergence_pass.cpp: see divergence_pass.h.
#include "runtime/ops/divergence_pass.h"

#include <algorithm>

namespace thimble {

int64_t divergence_sequences(const Network& network, int64_t length) {
  const int64_t bytes = (length - 1) * network.vocabulary() * static_cast<int64_t>(sizeof(float));
  return std::max<int64_t>(2, kMostTeacherBytes / bytes);
}

}  // namespace thimble
