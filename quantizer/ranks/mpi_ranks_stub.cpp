// mpi_ranks_stub.cpp: the answers of a build without MPI.
#include "quantizer/ranks/join_ranks.h"
#include "runtime/base/error.h"

namespace thimble {

std::unique_ptr<Ranks> join_mpi() {
  throw UsageError(
      "started as one of several MPI processes, but this build has no MPI (configure with -DTHIMBLE_MPI=ON)");
}

std::string mpi_version() { return ""; }

}  // namespace thimble
