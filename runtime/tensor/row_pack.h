// row_pack.h: a few neighbouring elements of a row, read and written at once: the unit in which row operators
// (row_operators.h) go over memory. One source for the host and for devices.
#pragma once

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

}  // namespace thimble
