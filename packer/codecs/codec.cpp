// codec.cpp: the codec table.
#include "packer/codecs/codec.h"

#include <array>

namespace thimble {

std::span<const Codec* const> all_codecs() {
  static const std::array<const Codec*, 5> kCodecs = {&none_codec(), &brotli_codec(), &zstd_codec(), &xz_codec(),
                                                      &rans_codec()};
  return kCodecs;
}

const Codec* find_codec(uint8_t number) {
  for (const Codec* codec : all_codecs())
    if (static_cast<uint8_t>(codec->id()) == number) return codec;
  return nullptr;
}

const Codec& codec_of(CodecId id) { return *find_codec(static_cast<uint8_t>(id)); }

}  // namespace thimble
