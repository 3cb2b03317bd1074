// join_ranks.cpp: did a launcher start this process?
#include "quantizer/ranks/join_ranks.h"

#include <cstdlib>
#include <string_view>

#include "runtime/base/error.h"

namespace thimble {
namespace {

bool names_several(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::string_view(value) != "1";
}

// Starting MPI costs time and forks helpers: only where a launcher did, and for more than one process. The variables
// are those of Open MPI; of MPICH, its relatives and srun --mpi=pmi2; and of srun --mpi=pmix.
bool is_one_of_several() {
  return names_several("OMPI_COMM_WORLD_SIZE") || names_several("PMI_SIZE") ||
         (std::getenv("PMIX_RANK") != nullptr && names_several("SLURM_NTASKS"));
}

}  // namespace

#ifndef THIMBLE_HAS_MPI
std::unique_ptr<Ranks> join_mpi() {
  throw UsageError(
      "started as one of several MPI processes, but this build has no MPI (configure with -DTHIMBLE_MPI=ON)");
}

std::string mpi_version() { return ""; }
#endif

std::unique_ptr<Ranks> join_ranks() { return is_one_of_several() ? join_mpi() : make_single_rank(); }

}  // namespace thimble
