// ranks.cpp: what all kinds of ranks share, and a process that is alone.
#include "quantizer/ranks/ranks.h"

#include <cstdlib>
#include <string_view>

#include "quantizer/ranks/mpi_ranks.h"
#include "runtime/base/error.h"

namespace thimble {
namespace {

class SingleRank final : public Ranks {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int local_rank() const override { return 0; }
  void broadcast(ByteVector&, int) override {}
  void end_all(int) override {}
};

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

std::vector<ByteVector> Ranks::all_gather(Bytes mine) {
  std::vector<ByteVector> all(static_cast<size_t>(size()));
  all[static_cast<size_t>(rank())].assign(mine.begin(), mine.end());
  for (int from = 0; from < size(); ++from) broadcast(all[static_cast<size_t>(from)], from);
  return all;
}

void Ranks::require_equal(const std::string& text, const std::string& what) {
  Bytes mine = as_bytes_of(text);
  ByteVector of_root(mine.begin(), mine.end());
  broadcast(of_root);
  if (as_text(of_root) != text)
    throw Error(ExitCode::kBadInput, what + " is " + text + ", on rank 0 " + std::string(as_text(of_root)) +
                                         "; ranks must agree, or their results would not");
}

std::unique_ptr<Ranks> join_ranks() { return is_one_of_several() ? join_mpi() : make_single_rank(); }

std::unique_ptr<Ranks> make_single_rank() { return std::make_unique<SingleRank>(); }

}  // namespace thimble
