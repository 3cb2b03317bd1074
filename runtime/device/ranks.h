// ranks.h: the processes that work on one command together: one, unless a launcher started several.
// Every rank takes the same steps and computes its share of them. Rank 0 alone prints, writes files and keeps resumable
// results.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/byte_cursor.h"

namespace thimble {

// broadcast() and what is built on it are collective: every rank makes the same calls in the same order, from the
// thread that made the object. A rank that does not arrive because it failed ends all others (end_all(), or the
// launcher when it died).
class Ranks {
 public:
  virtual ~Ranks() = default;

  virtual int rank() const = 0;  // 0 .. size() - 1
  virtual int size() const = 0;
  virtual int local_rank() const = 0;  // among the ranks on this machine
  bool is_root() const { return rank() == 0; }

  // The bytes that rank `from` has reach all others.
  virtual void broadcast(ByteVector& bytes, int from = 0) = 0;

  // Ends the other ranks and this one with `exit_code`; returns only when there are no others.
  virtual void end_all(int exit_code) = 0;

  // What each rank gave, by rank.
  std::vector<ByteVector> all_gather(Bytes mine);

  // Throws on every rank whose `text` is not rank 0's an Error (bad input): "<what> is <text>, on rank 0 <text>".
  void require_equal(const std::string& text, const std::string& what);
};

// Workers of all ranks, devices say, numbered through: those of rank 0 first. Parts of work are dealt out to them in
// turn.
class WorkersOfRanks {
 public:
  // `own`: those of this rank. Collective.
  WorkersOfRanks(size_t own, Ranks& ranks);

  size_t all() const { return ends_.back(); }
  size_t first() const { return first_; }  // of this rank's
  int rank_of(size_t worker) const;

 private:
  std::vector<size_t> ends_;  // by rank
  size_t first_ = 0;
};

// One process.
std::unique_ptr<Ranks> make_single_rank();
Ranks& no_other_ranks();

}  // namespace thimble
