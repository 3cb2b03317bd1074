// mpi_ranks.h: ranks started by mpirun or srun. A build without MPI links mpi_ranks_stub.cpp.
#pragma once

#include <memory>
#include <string>

#include "runtime/device/ranks.h"

namespace thimble {

// Starts MPI, once per process; the result ends it, which waits for all ranks. UsageError in a build without.
std::unique_ptr<Ranks> join_mpi();

// "Open MPI v4.1.4, ..."; empty in a build without.
std::string mpi_version();

}  // namespace thimble
