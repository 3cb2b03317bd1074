// shared_work.cpp: see shared_work.h.
#include "quantizer/methods/shared_work.h"

#include <map>

namespace thimble {

ByteVector SharedWork::of_root(const std::function<ByteVector()>& compute) const {
  ByteVector bytes;
  if (ranks_.is_root()) bytes = compute();
  ranks_.broadcast(bytes);
  return bytes;
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
