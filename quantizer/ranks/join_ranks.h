// join_ranks.h: the ranks of this process.
#pragma once

#include <memory>

#include "runtime/device/ranks.h"

namespace thimble {

// The ranks that the launcher of this process has started (mpirun -np N thimble ...), else this process alone. A build
// without MPI that a launcher starts several times is a UsageError.
std::unique_ptr<Ranks> join_ranks();

}  // namespace thimble
