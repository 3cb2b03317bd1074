// codec.h: compressors behind one interface, and the table of those a file may use. General-purpose ones see bytes
// only; how codes become bytes is section_layout.h. The weight coder needs to know the matrix that the bytes are.
#pragma once

#include <span>
#include <string>

#include "packer/layout/format.h"
#include "packer/layout/section_layout.h"
#include "runtime/base/byte_cursor.h"

namespace thimble {

class Codec {
 public:
  virtual ~Codec() = default;
  virtual CodecId id() const = 0;
  virtual std::string_view name() const = 0;  // as on the command line: "brotli"
  virtual std::string version() const = 0;    // of the library: "1.0.9"
  // Whether contents of this shape, laid out like this, may be stored with this codec.
  virtual bool takes(const ContentShape& shape, LayoutId layout) const = 0;
  // `raw`: contents of a shape that it takes, laid out; at most kMaxSectionContentBytes. Equal input and library
  // version give equal output.
  virtual ByteVector compress(Bytes raw, const ContentShape& shape) const = 0;
  // Exactly `raw_bytes` bytes, or FormatError(where, ...): damaged or truncated input, input left over, another size.
  // Memory: what has been decompressed so far (at most twice), plus the codec's window.
  virtual ByteVector decompress(Bytes stored, uint64_t raw_bytes, const ContentShape& shape,
                                const std::string& where) const = 0;
};

// All codecs, ascending by id.
std::span<const Codec* const> all_codecs();

const Codec& codec_of(CodecId id);
// The codec with this number in a file, nullptr when this version has none.
const Codec* find_codec(uint8_t number);

const Codec& none_codec();
const Codec& brotli_codec();
const Codec& zstd_codec();
const Codec& xz_codec();
const Codec& rans_codec();

}  // namespace thimble
