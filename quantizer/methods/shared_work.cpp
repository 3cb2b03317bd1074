// shared_work.cpp: see shared_work.h.
#include "quantizer/methods/shared_work.h"

#include <algorithm>
#include <map>

namespace thimble {
namespace {

constexpr const char* kOrigin = "results of another rank";  // in errors

// Pieces with their numbers, as bytes: for each its number, its length, itself.
ByteVector pack(const std::vector<std::pair<size_t, ByteVector>>& pieces) {
  ByteVector bytes;
  for (const auto& [number, piece] : pieces) {
    append_little_endian(bytes, static_cast<uint64_t>(number));
    append_little_endian(bytes, static_cast<uint64_t>(piece.size()));
    append_bytes(bytes, piece);
  }
  return bytes;
}

std::vector<std::pair<size_t, ByteVector>> unpack(Bytes bytes) {
  ByteCursor cursor(bytes, kOrigin);
  std::vector<std::pair<size_t, ByteVector>> pieces;
  while (cursor.remaining() > 0) {
    const auto number = cursor.read<uint64_t>("number of a piece");
    const Bytes piece = cursor.take(cursor.read<uint64_t>("length of a piece"), "piece");
    pieces.emplace_back(number, ByteVector(piece.begin(), piece.end()));
  }
  return pieces;
}

}  // namespace

std::vector<std::optional<ByteVector>> SharedWork::kept(std::span<const Piece> pieces) const {
  std::vector<std::optional<ByteVector>> found(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) found[i] = work_.load_piece(pieces[i].key);
  if (ranks_.size() == 1) return found;
  std::vector<std::pair<size_t, ByteVector>> of_root;
  for (size_t i = 0; i < pieces.size(); ++i)
    if (found[i]) of_root.emplace_back(i, *found[i]);
  ByteVector bytes = pack(of_root);
  ranks_.broadcast(bytes);
  for (auto& [piece, packed] : unpack(bytes)) found.at(piece) = std::move(packed);
  return found;
}

std::vector<size_t> SharedWork::share(std::span<const Piece> pieces, const std::vector<bool>& done) const {
  std::map<uint64_t, std::vector<size_t>> units;
  for (size_t i = 0; i < pieces.size(); ++i)
    if (!done[i]) units[pieces[i].unit].push_back(i);
  std::vector<size_t> mine;
  int turn = 0;
  for (const auto& [unit, members] : units)
    if (turn++ % ranks_.size() == ranks_.rank()) mine.insert(mine.end(), members.begin(), members.end());
  return mine;
}

std::vector<std::pair<size_t, ByteVector>> SharedWork::exchange(
    const std::vector<std::pair<size_t, ByteVector>>& mine) const {
  const std::vector<ByteVector> all = ranks_.all_gather(pack(mine));
  std::vector<std::pair<size_t, ByteVector>> others;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (static_cast<int>(rank) == ranks_.rank()) continue;
    std::vector<std::pair<size_t, ByteVector>> pieces = unpack(all[rank]);
    std::ranges::move(pieces, std::back_inserter(others));
  }
  return others;
}

}  // namespace thimble
