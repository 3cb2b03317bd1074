// codec_zstd.cpp: one Zstandard frame (RFC 8878) at level 22, without its own checksum.
#include <zstd.h>

#include <memory>
#include <new>

#include "packer/codecs/codec.h"
#include "packer/layout/bounded_output.h"

namespace thimble {
namespace {

class ZstdCodec final : public Codec {
 public:
  CodecId id() const override { return CodecId::kZstd; }
  std::string_view name() const override { return "zstd"; }
  std::string version() const override { return ZSTD_versionString(); }

  bool takes(const ContentShape& /*shape*/, LayoutId /*layout*/) const override { return true; }

  ByteVector compress(Bytes raw, const ContentShape& /*shape*/) const override {
    ByteVector stored(ZSTD_compressBound(raw.size()));
    size_t result = ZSTD_compress(stored.data(), stored.size(), raw.data(), raw.size(), kLevel);
    if (ZSTD_isError(result)) throw std::bad_alloc();  // the output fits by construction
    stored.resize(result);
    return stored;
  }

  ByteVector decompress(Bytes stored, uint64_t raw_bytes, const ContentShape& /*shape*/,
                        const std::string& where) const override {
    std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> decoder(ZSTD_createDCtx(), ZSTD_freeDCtx);
    if (!decoder) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(decoder.get(), ZSTD_d_windowLogMax, kCodecWindowLog);
    BoundedOutput output(raw_bytes, where);
    ZSTD_inBuffer input{stored.data(), stored.size(), 0};
    for (;;) {
      std::span<std::byte> room = output.room();
      ZSTD_outBuffer target{room.data(), room.size(), 0};
      size_t result = ZSTD_decompressStream(decoder.get(), &target, &input);
      if (ZSTD_isError(result))
        throw FormatError(where, std::string("damaged zstd frame: ") + ZSTD_getErrorName(result));
      output.wrote(target.pos);
      if (result == 0) break;
      if (input.pos == input.size && target.pos < target.size) throw FormatError(where, "truncated zstd frame");
    }
    if (input.pos != input.size)
      throw FormatError(where, std::to_string(input.size - input.pos) + " B after the end of the zstd frame");
    return output.finish();
  }

 private:
  static constexpr int kLevel = 22;
};

}  // namespace

const Codec& zstd_codec() {
  static const ZstdCodec kCodec;
  return kCodec;
}

}  // namespace thimble
