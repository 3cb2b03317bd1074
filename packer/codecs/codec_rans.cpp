// codec_rans.cpp: the weight coder (weight_coder.h, docs/reference/weight_coder.md) as a codec of code sections.
// Unlike the others it needs the matrix's shape, and codes one by one: no other contents, no layout but the plain one.
#include <cassert>

#include "packer/codecs/codec.h"
#include "packer/rans/weight_coder.h"

namespace thimble {
namespace {

std::vector<int32_t> integers_of(Bytes raw) {
  std::vector<int32_t> codes;
  codes.reserve(raw.size() / sizeof(int32_t));
  ByteCursor cursor(raw, "codes");
  while (!cursor.at_end()) codes.push_back(cursor.read<int32_t>("code"));
  return codes;
}

ByteVector decompress_stepped(Bytes stored, const ContentShape& shape, const std::string& where) {
  ByteVector raw;
  std::vector<int32_t> part;
  auto keep_part = [&] {
    for (int32_t code : part) append_little_endian(raw, code);
  };
  const CodeRoom<int32_t> room = [&](uint64_t count) {
    keep_part();
    part.resize(count);
    return std::span(part);
  };
  decode_weights_into(room, stored, shape.rows, shape.columns, where, shape.trellis_bits);
  keep_part();
  return raw;
}

class RansCodec final : public Codec {
 public:
  CodecId id() const override { return CodecId::kRans; }
  std::string_view name() const override { return "rans"; }
  std::string version() const override { return "1.0"; }

  bool takes(const ContentShape& shape, LayoutId layout) const override {
    return shape.kind == SectionKind::kCodes && layout == LayoutId::kPlain;
  }

  ByteVector compress(Bytes raw, const ContentShape& shape) const override {
    assert(raw.size() == shape.content_bytes());
    if (shape.has_stepped_codes())
      return encode_weights<int32_t>(integers_of(raw), shape.rows, shape.columns, shape.trellis_bits);
    const std::span codes(reinterpret_cast<const int8_t*>(raw.data()), raw.size());
    return encode_weights(codes, shape.rows, shape.columns);
  }

  ByteVector decompress(Bytes stored, [[maybe_unused]] uint64_t raw_bytes, const ContentShape& shape,
                        const std::string& where) const override {
    assert(raw_bytes == shape.content_bytes());
    if (shape.has_stepped_codes()) return decompress_stepped(stored, shape, where);
    ByteVector raw;
    const CodeRoom<int8_t> room = [&](uint64_t count) {
      raw.resize(raw.size() + count);
      return std::span(reinterpret_cast<int8_t*>(raw.data()), raw.size()).last(count);
    };
    decode_weights_into(room, stored, shape.rows, shape.columns, where);
    return raw;
  }
};

}  // namespace

const Codec& rans_codec() {
  static const RansCodec kCodec;
  return kCodec;
}

}  // namespace thimble
