// cuda_row_vectors.cuh: row operations whose columns do not depend on each other, some neighbouring columns of a lane
// at a time: 16 bytes where rows allow it. A function of rows is a struct of its arguments with
//   template <int kWidth> __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t column) const
// which gives columns [column, column + kWidth) of a row.
#pragma once

#include "runtime/cuda/kernels/cuda_row_kernel.cuh"

namespace thimble {

// Of 16 bytes.
template <typename T>
constexpr int kRowVector = 16 / static_cast<int>(sizeof(T));

template <int kWidth>
using Width = std::integral_constant<int, kWidth>;

template <int kWidth>
struct Columns {
  float values[kWidth];

  __device__ float& operator[](int i) { return values[i]; }
  __device__ float operator[](int i) const { return values[i]; }
};

// map(i) for each column.
template <int kWidth, typename Map>
__device__ Columns<kWidth> columns_of(const Map& map) {
  Columns<kWidth> out;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) out[i] = map(i);
  return out;
}

// From an address that is a multiple of 16 bytes, or where kWidth is 1 any; kWidth: 1, kRowVector<T>, or of float 8.
template <int kWidth, typename T>
__device__ Columns<kWidth> load_columns(const T* at) {
  if constexpr (kWidth == 1) {
    return {{to_float(*at)}};
  } else if constexpr (kWidth == 4) {
    const float4 v = *reinterpret_cast<const float4*>(at);
    return {{v.x, v.y, v.z, v.w}};
  } else {
    Columns<kWidth> out;
    Stored8<T>::load(at).unpack(out.values);
    return out;
  }
}

template <int kWidth, typename T>
__device__ void write_columns(T* at, const Columns<kWidth>& columns) {
  if constexpr (kWidth == 1)
    *at = from_float<T>(columns[0]);
  else if constexpr (std::is_same_v<T, float>)
    *reinterpret_cast<float4*>(at) = {columns[0], columns[1], columns[2], columns[3]};
  else
    Stored8<T>::rounded(columns.values).store(at);
}

// Of a vector, or as many ones where there is none.
template <int kWidth>
__device__ Columns<kWidth> vector_columns(const float* vector, int64_t column) {
  if (vector) return load_columns<kWidth>(vector + column);
  return columns_of<kWidth>([](int) { return 1.0f; });
}

// Can a vector be read 16 bytes at a time, where there is one?
inline bool is_row_vector(const float* vector) { return reinterpret_cast<uintptr_t>(vector) % 16 == 0; }
// Can rows be read and written 16 bytes at a time?
template <typename T>
bool has_row_vectors(const T* data, int64_t columns, int64_t stride) {
  constexpr int kWidth = kRowVector<T>;
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && columns % kWidth == 0 && stride % kWidth == 0;
}
template <typename View>
bool has_row_vectors(const View& x) {
  return has_row_vectors(x.data, x.columns, x.stride);
}

// Of a row: body(Width<kWidth>, column) for the lane's columns, a few at once on their way: load(width, column) of all,
// then store(column, columns) of all, for a store might overwrite what the next load reads, for all that a compiler
// knows.
template <int kWidth, typename Load, typename Store>
__device__ void map_columns(int64_t columns, int lane, const Load& load, const Store& store) {
  constexpr int kAtOnce = kWidth == 1 ? 8 : 4;
  for (int64_t first = lane * kWidth; first < columns; first += 32 * kWidth * kAtOnce) {
    Columns<kWidth> values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + 32 * kWidth * i < columns) values[i] = load(Width<kWidth>(), first + 32 * kWidth * i);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + 32 * kWidth * i < columns) store(first + 32 * kWidth * i, values[i]);
  }
}

// Calls body(Width<W>): 16 bytes a lane, or single elements.
template <typename T, typename Body>
void with_row_width(bool has_vectors, const Body& body) {
  if (has_vectors)
    body(Width<kRowVector<T>>());
  else
    body(Width<1>());
}

}  // namespace thimble
