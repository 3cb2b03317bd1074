// codec_xz.cpp: a bare LZMA2 stream of liblzma, preset 9 extreme, without the .xz container and its checksums.
// The dictionary's size follows from the raw size, so nothing but the stream is stored. Literals get neither context
// (lc = 0) nor position (pb = 0): on codes of trained weights that is 1.2% smaller than the preset's lc = 3, pb = 2.
#include <lzma.h>

#include <algorithm>
#include <bit>
#include <new>

#include "packer/codecs/codec.h"
#include "packer/layout/bounded_output.h"

namespace thimble {
namespace {

class LzmaStream {
 public:
  ~LzmaStream() { lzma_end(&stream); }
  lzma_stream stream = LZMA_STREAM_INIT;
};

lzma_options_lzma options_for(uint64_t raw_bytes) {
  lzma_options_lzma options;
  if (lzma_lzma_preset(&options, 9 | LZMA_PRESET_EXTREME)) throw std::bad_alloc();
  uint64_t bounded = std::clamp<uint64_t>(raw_bytes, LZMA_DICT_SIZE_MIN, uint64_t{1} << kCodecWindowLog);
  options.dict_size = static_cast<uint32_t>(std::bit_ceil(bounded));
  options.lc = 0;
  options.pb = 0;
  return options;
}

class XzCodec final : public Codec {
 public:
  CodecId id() const override { return CodecId::kXz; }
  std::string_view name() const override { return "xz"; }
  std::string version() const override { return lzma_version_string(); }

  bool takes(const ContentShape& /*shape*/, LayoutId /*layout*/) const override { return true; }

  ByteVector compress(Bytes raw, const ContentShape& /*shape*/) const override {
    lzma_options_lzma options = options_for(raw.size());
    lzma_filter filters[] = {{LZMA_FILTER_LZMA2, &options}, {LZMA_VLI_UNKNOWN, nullptr}};
    // LZMA2 stores incompressible data in chunks of 64 KiB with 3 bytes each.
    ByteVector stored(raw.size() + raw.size() / 1024 + 64);
    size_t stored_bytes = 0;
    if (lzma_raw_buffer_encode(filters, nullptr, reinterpret_cast<const uint8_t*>(raw.data()), raw.size(),
                               reinterpret_cast<uint8_t*>(stored.data()), &stored_bytes, stored.size()) != LZMA_OK)
      throw std::bad_alloc();
    stored.resize(stored_bytes);
    return stored;
  }

  ByteVector decompress(Bytes stored, uint64_t raw_bytes, const ContentShape& /*shape*/,
                        const std::string& where) const override {
    lzma_options_lzma options = options_for(raw_bytes);
    lzma_filter filters[] = {{LZMA_FILTER_LZMA2, &options}, {LZMA_VLI_UNKNOWN, nullptr}};
    LzmaStream decoder;
    if (lzma_raw_decoder(&decoder.stream, filters) != LZMA_OK) throw std::bad_alloc();
    BoundedOutput output(raw_bytes, where);
    decoder.stream.next_in = reinterpret_cast<const uint8_t*>(stored.data());
    decoder.stream.avail_in = stored.size();
    lzma_ret result = LZMA_OK;
    while (result == LZMA_OK) {
      std::span<std::byte> room = output.room();
      decoder.stream.next_out = reinterpret_cast<uint8_t*>(room.data());
      decoder.stream.avail_out = room.size();
      result = lzma_code(&decoder.stream, LZMA_FINISH);
      output.wrote(room.size() - decoder.stream.avail_out);
    }
    if (result == LZMA_MEM_ERROR) throw std::bad_alloc();
    if (result == LZMA_BUF_ERROR) throw FormatError(where, "truncated LZMA2 stream");
    if (result != LZMA_STREAM_END) throw FormatError(where, "damaged LZMA2 stream");
    if (decoder.stream.avail_in != 0)
      throw FormatError(where, std::to_string(decoder.stream.avail_in) + " B after the end of the LZMA2 stream");
    return output.finish();
  }
};

}  // namespace

const Codec& xz_codec() {
  static const XzCodec kCodec;
  return kCodec;
}

}  // namespace thimble
