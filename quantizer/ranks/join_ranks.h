// join_ranks.h: the ranks of this process, and MPI, which starts others.
#pragma once

#include <memory>
#include <string>

#include "runtime/device/ranks.h"

namespace thimble {

// The ranks that the launcher of this process has started (mpirun -np N thimble ...), else this process alone. A build
// without MPI that a launcher starts several times is a UsageError.
std::unique_ptr<Ranks> join_ranks();

// Starts MPI, once per process; the result ends it, which waits for all ranks. UsageError in a build without.
std::unique_ptr<Ranks> join_mpi();

// "Open MPI v4.1.4, ..."; empty in a build without.
std::string mpi_version();

}  // namespace thimble
