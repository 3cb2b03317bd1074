// mpi_ranks.cpp: ranks.h over MPI-3. Errors of MPI itself end all ranks, as its default handler does.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "quantizer/ranks/join_ranks.h"

namespace thimble {
namespace {

// Counts of MPI are ints.
constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 30;
constexpr std::chrono::microseconds kPollInterval(50);

class MpiRanks final : public Ranks {
 public:
  MpiRanks() {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);  // other threads compute, but never call MPI
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Comm machine = MPI_COMM_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &machine);
    MPI_Comm_rank(machine, &local_rank_);
    MPI_Comm_free(&machine);
  }
  ~MpiRanks() override {
    wait_for_all();
    MPI_Finalize();
  }
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return local_rank_; }

  void broadcast(ByteVector& bytes, int from) override {
    wait_for_all();
    uint64_t count = bytes.size();
    MPI_Bcast(&count, 1, MPI_UINT64_T, from, MPI_COMM_WORLD);
    bytes.resize(count);
    for (uint64_t first = 0; first < count; first += kMaxMessageBytes) {
      uint64_t piece = std::min(kMaxMessageBytes, count - first);
      MPI_Bcast(bytes.data() + first, static_cast<int>(piece), MPI_BYTE, from, MPI_COMM_WORLD);
    }
  }

  void end_all(int exit_code) override { MPI_Abort(MPI_COMM_WORLD, exit_code); }

 private:
  // Blocking calls of MPI spin. Rank 0 may encode for minutes while the others have nothing to do: they sleep, and
  // leave the processor to it.
  static void wait_for_all() {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    int arrived = 0;
    for (MPI_Test(&request, &arrived, MPI_STATUS_IGNORE); arrived == 0; MPI_Test(&request, &arrived, MPI_STATUS_IGNORE))
      std::this_thread::sleep_for(kPollInterval);
  }

  int rank_ = 0, size_ = 1, local_rank_ = 0;
};

}  // namespace

std::unique_ptr<Ranks> join_mpi() { return std::make_unique<MpiRanks>(); }

std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  std::string version(text.data(), static_cast<size_t>(length));
  return version.substr(0, version.find(','));
}

}  // namespace thimble
