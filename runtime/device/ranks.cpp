// ranks.cpp: what all kinds of ranks share, and a process that is alone.
#include "runtime/device/ranks.h"

#include <algorithm>
#include <cstring>
#include <span>

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

WorkersOfRanks::WorkersOfRanks(size_t own, Ranks& ranks) {
  const uint64_t mine = own;
  size_t all = 0;
  for (const ByteVector& bytes : ranks.all_gather(std::as_bytes(std::span(&mine, 1)))) {
    uint64_t count = 0;
    std::memcpy(&count, bytes.data(), sizeof(count));
    if (std::ssize(ends_) == ranks.rank()) first_ = all;
    ends_.push_back(all += static_cast<size_t>(count));
  }
}

int WorkersOfRanks::rank_of(size_t worker) const {
  return static_cast<int>(std::ranges::upper_bound(ends_, worker) - ends_.begin());
}

std::unique_ptr<Ranks> make_single_rank() { return std::make_unique<SingleRank>(); }

Ranks& no_other_ranks() {
  static SingleRank alone;
  return alone;
}

}  // namespace thimble
