// lzma_settings.h: the filter's settings, which its decoder must be given too.
#pragma once

#include <lzma.h>

#include <algorithm>
#include <bit>
#include <new>

#include "packer/layout/format.h"

namespace thimble {

inline lzma_options_lzma lzma_options_for(uint64_t raw_bytes) {
  lzma_options_lzma options;
  if (lzma_lzma_preset(&options, 9 | LZMA_PRESET_EXTREME)) throw std::bad_alloc();
  const uint64_t bounded = std::clamp<uint64_t>(raw_bytes, LZMA_DICT_SIZE_MIN, uint64_t{1} << kCodecWindowLog);
  options.dict_size = static_cast<uint32_t>(std::bit_ceil(bounded));
  options.lc = 0;
  options.pb = 0;
  return options;
}

}  // namespace thimble
