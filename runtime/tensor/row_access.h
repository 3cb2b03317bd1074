// row_access.h: how row operators (row_operators.h) see a row and the team of lanes that works on it. Lane l of a team
// owns packs l, l + lanes, l + 2 * lanes, ... of every row, on the host as on devices.
//
// A team has
//   join<T>(value_of, join_two)   value_of(lane) of every lane, joined in a fixed order; every lane gets the result
//   for_each_lane(body)           body(lane)
// where a device's lanes run at once (device_team.cuh) and the host's one after another. Lanes are joined by halves
// within each 32, then the 32s in ascending order: the same order everywhere, for any number of threads.
//
// A row has
//   kIsHeld                       changes that a body makes to a pack's values are still there when it comes again
//   for_each_pack(lane, lanes, body)   body(values, first column, count); values from `count` on are to be ignored
// A pack is a few neighbouring elements, read and written at once.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/tensor/storage_types.h"

namespace thimble {

// Elements of a pack: 16 bytes of the wider of the two types, so that both sides are read and written by whole sectors.
template <typename In, typename Out>
constexpr int kPackOf = static_cast<int>(16 / (sizeof(In) > sizeof(Out) ? sizeof(In) : sizeof(Out)));

// kBytes of memory that a device moves by as few instructions as can be.
template <int kBytes>
struct alignas(kBytes < 16 ? kBytes : 16) PackWords {
  uint32_t words[kBytes / 4];
};

// Whether packs of every row may be moved as PackWords, rows of `cols` elements lying one after another.
template <typename T, int kPack>
THIMBLE_HOST_DEVICE bool packs_are_aligned(const T* rows, int64_t cols) {
  constexpr uintptr_t kAlignment = alignof(PackWords<kPack* static_cast<int>(sizeof(T))>);
  return cols % kPack == 0 && reinterpret_cast<uintptr_t>(rows) % kAlignment == 0;
}

// A pack as it lies in memory. `aligned` packs are whole; of others, the elements from `count` on are 0 and not
// written.
template <typename T, int kPack>
struct StoredPack {
  using Words = PackWords<kPack* static_cast<int>(sizeof(T))>;
  union {
    Words words;  // on devices only
    T elements[kPack];
  };

  THIMBLE_HOST_DEVICE void read(const T* at, [[maybe_unused]] bool aligned, int count) {
#ifdef THIMBLE_DEVICE_CODE
    if (aligned) {
      words = *reinterpret_cast<const Words*>(at);
      return;
    }
#endif
    for (int i = 0; i < kPack; ++i) elements[i] = i < count ? at[i] : T{};
  }
  THIMBLE_HOST_DEVICE void write(T* at, [[maybe_unused]] bool aligned, int count) const {
#ifdef THIMBLE_DEVICE_CODE
    if (aligned) {
      *reinterpret_cast<Words*>(at) = words;
      return;
    }
#endif
    for (int i = 0; i < kPack; ++i)
      if (i < count) at[i] = elements[i];
  }
  THIMBLE_HOST_DEVICE void unpack(float (&values)[kPack]) const {
    for (int i = 0; i < kPack; ++i) values[i] = StorageTraits<T>::load(elements[i]);
  }
  THIMBLE_HOST_DEVICE void pack(const float (&values)[kPack]) {
    for (int i = 0; i < kPack; ++i) elements[i] = StorageTraits<T>::store(values[i]);
  }
};

// The elements at[0 .. count) as float32, the others 0; and back, rounded.
template <typename T, int kPack>
THIMBLE_HOST_DEVICE void read_pack(const T* at, bool aligned, int count, float (&values)[kPack]) {
  StoredPack<T, kPack> stored;
  stored.read(at, aligned, count);
  stored.unpack(values);
}
template <typename T, int kPack>
THIMBLE_HOST_DEVICE void write_pack(T* at, bool aligned, int count, const float (&values)[kPack]) {
  StoredPack<T, kPack> stored;
  stored.pack(values);
  stored.write(at, aligned, count);
}

constexpr int kLanesPerWarp = 32;  // joined first; on devices, by shuffles

// How a row of `cols` elements is shared out.
struct RowShape {
  int lanes = 0;
  int held_values = 0;  // elements that a lane keeps: 0 when the row is too long and is read again instead
};

// Short rows take a warp, so that a block has several; long ones a whole block, of few lanes with many elements each:
// what lanes wait for is each other. In packs of `pack` elements.
constexpr int kHeldRowLanes = 128;
THIMBLE_HOST_DEVICE constexpr RowShape row_shape(int64_t cols, int pack) {
  if (cols <= 16 * kLanesPerWarp) return {kLanesPerWarp, 16};
  for (int values = 8; values <= 32; values *= 2)
    if (values >= pack && cols <= kHeldRowLanes * values) return {kHeldRowLanes, values};
  if (cols <= 2 * kHeldRowLanes * 32) return {2 * kHeldRowLanes, 32};
  return {1024, 0};
}

// One row in memory.
template <typename In, int kPack>
struct RowInMemory {
  const In* x;
  int64_t cols;
  bool aligned;

  THIMBLE_HOST_DEVICE int64_t packs() const { return (cols + kPack - 1) / kPack; }
  THIMBLE_HOST_DEVICE int count(int64_t pack) const {
    int64_t left = cols - pack * kPack;
    return left < kPack ? (left < 0 ? 0 : static_cast<int>(left)) : kPack;
  }
};

// A row that is read from memory whenever it is gone over.
template <typename In, int kPack>
struct StreamedRow {
  static constexpr bool kIsHeld = false;
  RowInMemory<In, kPack> memory;

  template <typename Body>
  THIMBLE_HOST_DEVICE void for_each_pack(int lane, int lanes, const Body& body) const {
    for (int64_t pack = lane; pack < memory.packs(); pack += lanes) {
      float values[kPack];
      read_pack<In, kPack>(memory.x + pack * kPack, memory.aligned, memory.count(pack), values);
      body(values, pack * kPack, memory.count(pack));
    }
  }
};

// A row that the host keeps, as the lanes of a device keep it in registers.
template <typename In, int kPack>
class HostHeldRow {
 public:
  static constexpr bool kIsHeld = true;

  explicit HostHeldRow(const RowInMemory<In, kPack>& memory)
      : memory_(memory), values_(static_cast<size_t>(memory.packs())) {
    for (int64_t pack = 0; pack < memory.packs(); ++pack)
      read_pack<In, kPack>(memory.x + pack * kPack, memory.aligned, memory.count(pack),
                           values_[static_cast<size_t>(pack)].values);
  }

  template <typename Body>
  void for_each_pack(int lane, int lanes, const Body& body) {
    for (int64_t pack = lane; pack < memory_.packs(); pack += lanes)
      body(values_[static_cast<size_t>(pack)].values, pack * kPack, memory_.count(pack));
  }

 private:
  struct Pack {
    float values[kPack];
  };
  RowInMemory<In, kPack> memory_;
  std::vector<Pack> values_;
};

// All lanes of a team in one thread of the host.
class HostTeam {
 public:
  explicit HostTeam(int lanes) : lanes_(lanes) {}
  int lanes() const { return lanes_; }

  template <typename T, typename ValueOf, typename JoinTwo>
  T join(const ValueOf& value_of, const JoinTwo& join_two) const {
    T joined{};
    for (int first = 0; first < lanes_; first += kLanesPerWarp) {
      T warp[kLanesPerWarp];
      for (int lane = 0; lane < kLanesPerWarp; ++lane) warp[lane] = value_of(first + lane);
      for (int distance = kLanesPerWarp / 2; distance > 0; distance /= 2)
        for (int lane = 0; lane < distance; ++lane) warp[lane] = join_two(warp[lane], warp[lane + distance]);
      joined = first == 0 ? warp[0] : join_two(joined, warp[0]);
    }
    return joined;
  }
  template <typename Body>
  void for_each_lane(const Body& body) const {
    for (int lane = 0; lane < lanes_; ++lane) body(lane);
  }

 private:
  int lanes_;  // a multiple of kLanesPerWarp
};

}  // namespace thimble
