// random.cpp: Philox 4x32-10.
#include "runtime/base/random.h"

namespace thimble {

std::array<uint32_t, 4> philox4x32(uint64_t key, std::array<uint32_t, 4> counter) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  auto key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t product0 = kMultiplier0 * counter[0], product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return counter;
}

double uniform_at(uint64_t seed, uint64_t stream, uint64_t index) {
  std::array<uint32_t, 4> bits = philox4x32(seed, {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                                                   static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)});
  uint64_t wide = (uint64_t{bits[0]} << 32) | bits[1];
  return static_cast<double>(wide >> 11) * 0x1p-53;
}

}  // namespace thimble
