// shared_work.h: work cut into pieces that are computed once each: on one of the ranks, kept in the work folder as soon
// as they are there, and given to all. What a killed run had kept is not computed again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "quantizer/methods/work_folder.h"
#include "runtime/base/byte_cursor.h"
#include "runtime/device/ranks.h"

namespace thimble {

// A T as bytes and back, exactly.
template <typename T>
struct PieceFormat {
  ByteVector (*pack)(const T&);
  T (*unpack)(Bytes);
};

class SharedWork {
 public:
  struct Piece {
    uint64_t key = 0;   // hash of all that the result depends on
    uint64_t unit = 0;  // pieces of one unit are computed on one rank; units are dealt out in ascending order
  };
  // Takes what has just been computed for a piece; from any thread.
  template <typename T>
  using Give = std::function<void(size_t piece, T result)>;

  // The work folder is rank 0's; the others' keeps nothing. Both must outlive this.
  SharedWork(const WorkFolder& work, Ranks& ranks) : work_(work), ranks_(ranks) {}

  // The results of the pieces, in their order, on every rank. Collective. Unless all are kept already, `compute` is
  // called on every rank with those of its share, maybe none, and gives each of them.
  template <typename T>
  std::vector<T> results(std::span<const Piece> pieces, const PieceFormat<T>& format,
                         const std::function<void(std::span<const size_t>, const Give<T>&)>& compute) const;

 private:
  // Those that are kept, on every rank.
  std::vector<std::optional<ByteVector>> kept(std::span<const Piece> pieces) const;
  // Of the pieces that are not `done`, those of this rank.
  std::vector<size_t> share(std::span<const Piece> pieces, const std::vector<bool>& done) const;
  // What the other ranks computed, each piece with its number, for what this one did.
  std::vector<std::pair<size_t, ByteVector>> exchange(const std::vector<std::pair<size_t, ByteVector>>& mine) const;

  const WorkFolder& work_;
  Ranks& ranks_;
};

template <typename T>
std::vector<T> SharedWork::results(std::span<const Piece> pieces, const PieceFormat<T>& format,
                                   const std::function<void(std::span<const size_t>, const Give<T>&)>& compute) const {
  std::vector<std::optional<T>> found(pieces.size());
  std::vector<bool> done(pieces.size());
  const std::vector<std::optional<ByteVector>> bytes = kept(pieces);
  for (size_t i = 0; i < pieces.size(); ++i)
    if (bytes[i]) found[i] = format.unpack(*bytes[i]);
  for (size_t i = 0; i < pieces.size(); ++i) done[i] = found[i].has_value();

  if (std::ranges::find(done, false) != done.end()) {
    const std::vector<size_t> mine = share(pieces, done);
    compute(mine, [&](size_t piece, T result) {
      if (work_.keeps()) work_.save_piece(pieces[piece].key, format.pack(result));
      found[piece] = std::move(result);
    });
    if (ranks_.size() > 1) {
      std::vector<std::pair<size_t, ByteVector>> computed;
      for (size_t piece : mine) computed.emplace_back(piece, format.pack(found[piece].value()));
      for (auto& [piece, packed] : exchange(computed)) {
        if (work_.keeps()) work_.save_piece(pieces[piece].key, packed);
        found[piece] = format.unpack(packed);
      }
    }
  }
  std::vector<T> results;
  results.reserve(pieces.size());
  for (std::optional<T>& result : found) results.push_back(std::move(result.value()));
  return results;
}

}  // namespace thimble
