// shared_work.h: the one way in which work survives: cut into pieces that are computed once, kept in the work folder as
// soon as they are there, and given to all ranks. What a killed run had kept is not computed again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quantizer/methods/packed_values.h"
#include "quantizer/methods/work_folder.h"
#include "runtime/device/ranks.h"

namespace thimble {

class SharedWork {
 public:
  struct Piece {
    uint64_t key = 0;   // hash of all that the result depends on
    uint64_t unit = 0;  // pieces of one unit are computed on one rank; units are dealt out in ascending order
  };
  // Takes what has just been computed for a piece; from any thread.
  template <typename T>
  using Give = std::function<void(size_t piece, T result)>;

  // The work folder is rank 0's; the others' keeps nothing. Both must outlive this. `scratch_folder`: of files without
  // a name, for what no work folder keeps and memory does not hold.
  SharedWork(const WorkFolder& work, Ranks& ranks, std::string scratch_folder = ".")
      : work_(work), ranks_(ranks), scratch_folder_(std::move(scratch_folder)) {}

  Ranks& ranks() const { return ranks_; }

  // What is kept under this name, on every rank; a newer one replaces it. Collective; keep() on what every rank has.
  template <typename T>
  std::optional<T> find(const PieceName& name) const;
  template <typename T>
  void keep(const PieceName& name, const T& value) const {
    if (work_.keeps()) work_.save(name, pack(value));
  }

  // A result that every rank computes alike, or all together, unless it is kept already. Once it is, the pieces that it
  // was made of are deleted. Collective.
  template <typename T>
  T result(const PieceName& name, const std::function<T()>& compute) const;

  // The same for results that hold Hessians, which rounded() leaves as pack() does: with `in_memory` in memory, else in
  // a file, the piece itself where it is kept. A NoRoomError where the disk has no room for that.
  template <typename T>
  T stored(const PieceName& name, bool in_memory, const std::function<T()>& compute) const;

  // The results of the pieces, in their order, on every rank. Collective. Unless all are kept already, `compute` is
  // called on every rank with those of its share, maybe none, and gives each of them.
  template <typename T>
  std::vector<T> results(WorkKind kind, std::span<const Piece> pieces,
                         const std::function<void(std::span<const size_t>, const Give<T>&)>& compute) const;

  // What rank 0 computes, on every rank. Collective.
  ByteVector of_root(const std::function<ByteVector()>& compute) const;

  // What rank `from` has. Collective.
  template <typename T>
  T of_rank(const T& mine, int from) const;

  // Rank 0's folder, for pieces that no other rank asks for.
  const WorkFolder& folder() const { return work_; }

 private:
  // Damaged bytes are as good as none.
  template <typename T>
  static std::optional<T> unpacked(const HeldBytes& held);
  // What rank 0 keeps under this name, on every rank; no bytes where it does not. Collective.
  HeldBytes find_stored(const PieceName& name, bool in_memory) const;
  HeldBytes store(ByteVector bytes, const PieceName& name, bool in_memory) const;
  // The rank that computes each of the pieces that are not done.
  std::vector<int> owners(std::span<const Piece> pieces, const std::vector<bool>& done) const;

  const WorkFolder& work_;
  Ranks& ranks_;
  const std::string scratch_folder_;
};

template <typename T>
std::optional<T> SharedWork::unpacked(const HeldBytes& held) {
  try {
    return unpack<T>(held);
  } catch (const FormatError&) {
    return std::nullopt;
  }
}

template <typename T>
T SharedWork::of_rank(const T& mine, int from) const {
  ByteVector bytes;
  if (ranks_.rank() == from) bytes = pack(mine);
  ranks_.broadcast(bytes, from);
  return ranks_.rank() == from ? mine : unpack<T>(bytes);
}

template <typename T>
std::optional<T> SharedWork::find(const PieceName& name) const {
  const ByteVector bytes = of_root([&] { return work_.load(name).value_or(ByteVector()); });
  return bytes.empty() ? std::nullopt : unpacked<T>({bytes, nullptr});
}

template <typename T>
T SharedWork::result(const PieceName& name, const std::function<T()>& compute) const {
  if (std::optional<T> found = find<T>(name)) return std::move(*found);
  const size_t uses = work_.uses();
  T value = compute();
  if (work_.keeps() && work_.save(name, pack(value))) work_.forget_since(uses, name);
  return value;
}

template <typename T>
T SharedWork::stored(const PieceName& name, bool in_memory, const std::function<T()>& compute) const {
  if (const HeldBytes found = find_stored(name, in_memory); !found.bytes.empty())
    if (std::optional<T> value = unpacked<T>(found)) return std::move(*value);
  if (in_memory && !work_.keeps()) return rounded(compute());
  const size_t uses = work_.uses();
  ByteVector bytes = pack(compute());
  if (work_.keeps() && work_.save(name, bytes)) work_.forget_since(uses, name);
  return unpack<T>(store(std::move(bytes), name, in_memory));
}

template <typename T>
std::vector<T> SharedWork::results(WorkKind kind, std::span<const Piece> pieces,
                                   const std::function<void(std::span<const size_t>, const Give<T>&)>& compute) const {
  std::vector<std::optional<T>> found(pieces.size());
  std::vector<bool> done(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) done[i] = (found[i] = find<T>({kind, pieces[i].key})).has_value();
  if (std::ranges::find(done, false) != done.end()) {
    const std::vector<int> owner = owners(pieces, done);
    std::vector<size_t> mine;
    for (size_t i = 0; i < pieces.size(); ++i)
      if (!done[i] && owner[i] == ranks_.rank()) mine.push_back(i);
    compute(mine, [&](size_t piece, T result) {
      keep<T>({kind, pieces[piece].key}, result);
      found[piece] = std::move(result);
    });
    for (size_t i = 0; i < pieces.size() && ranks_.size() > 1; ++i) {
      if (done[i]) continue;
      found[i] = of_rank(found[i].value_or(T{}), owner[i]);
      if (owner[i] != ranks_.rank()) keep<T>({kind, pieces[i].key}, *found[i]);
    }
  }
  std::vector<T> results;
  results.reserve(pieces.size());
  for (std::optional<T>& result : found) results.push_back(std::move(result.value()));
  return results;
}

}  // namespace thimble
