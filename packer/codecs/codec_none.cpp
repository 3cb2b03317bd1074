// codec_none.cpp: bytes stored as they are.
#include "packer/codecs/codec.h"

namespace thimble {
namespace {

class NoneCodec final : public Codec {
 public:
  CodecId id() const override { return CodecId::kNone; }
  std::string_view name() const override { return "none"; }
  std::string version() const override { return "1"; }

  bool takes(const ContentShape& /*shape*/, LayoutId /*layout*/) const override { return true; }

  ByteVector compress(Bytes raw, const ContentShape& /*shape*/) const override { return {raw.begin(), raw.end()}; }

  ByteVector decompress(Bytes stored, uint64_t raw_bytes, const ContentShape& /*shape*/,
                        const std::string& where) const override {
    if (stored.size() != raw_bytes)
      throw FormatError(where, std::to_string(stored.size()) + " B stored without compression, " +
                                   std::to_string(raw_bytes) + " B declared");
    return {stored.begin(), stored.end()};
  }
};

}  // namespace

const Codec& none_codec() {
  static const NoneCodec kCodec;
  return kCodec;
}

}  // namespace thimble
