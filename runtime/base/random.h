// random.h: counter-based random numbers (Philox 4x32-10, Salmon et al., SC 2011): any draw can be computed alone, so
// the same seed gives the same tokens for any batching, thread count or device.
#pragma once

#include <array>
#include <cstdint>

namespace thimble {

// The four 32-bit outputs for a 64-bit key and a 128-bit counter.
std::array<uint32_t, 4> philox4x32(uint64_t key, std::array<uint32_t, 4> counter);

// Uniform in [0, 1) with 53 random bits, for draw `index` of stream `stream` under `seed`.
double uniform_at(uint64_t seed, uint64_t stream, uint64_t index);

}  // namespace thimble
