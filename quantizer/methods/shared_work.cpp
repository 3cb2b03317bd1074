// shared_work.cpp: see shared_work.h.
#include "quantizer/methods/shared_work.h"

#include <map>

#include "runtime/base/atomic_file.h"

namespace thimble {

ByteVector SharedWork::of_root(const std::function<ByteVector()>& compute) const {
  ByteVector bytes;
  if (ranks_.is_root()) bytes = compute();
  ranks_.broadcast(bytes);
  return bytes;
}

HeldBytes SharedWork::find_stored(const PieceName& name, bool in_memory) const {
  const HeldBytes kept = work_.map(name).value_or(HeldBytes{});
  if (ranks_.size() == 1 && !in_memory) return kept;
  ByteVector bytes(kept.bytes.begin(), kept.bytes.end());
  ranks_.broadcast(bytes);
  if (bytes.empty() || in_memory) return hold(std::move(bytes));
  return ranks_.is_root() ? kept : store(std::move(bytes), name, in_memory);
}

HeldBytes SharedWork::store(ByteVector bytes, const PieceName& name, bool in_memory) const {
  if (in_memory) return hold(std::move(bytes));
  if (work_.keeps())
    if (std::optional<HeldBytes> kept = work_.map(name)) return std::move(*kept);
  AtomicFile file(scratch_folder_ + "/hessians");
  file.write(bytes);
  return hold(file.map());
}

std::vector<int> SharedWork::owners(std::span<const Piece> pieces, const std::vector<bool>& done) const {
  std::map<uint64_t, int> of_unit;
  for (size_t i = 0; i < pieces.size(); ++i)
    if (!done[i]) of_unit.emplace(pieces[i].unit, 0);
  int turn = 0;
  for (auto& [unit, owner] : of_unit) owner = turn++ % ranks_.size();
  std::vector<int> owners;
  for (size_t i = 0; i < pieces.size(); ++i) owners.push_back(done[i] ? 0 : of_unit.at(pieces[i].unit));
  return owners;
}

}  // namespace thimble
