// decompress.h: what the stored bytes of a section were before a codec made them smaller. Of the libraries a build has
// those whose macro it defines: THIMBLE_BROTLI, THIMBLE_ZSTD, THIMBLE_LZMA.
#pragma once

#include <string>

#include "packer/layout/format.h"
#include "packer/layout/section_layout.h"
#include "runtime/base/byte_cursor.h"

namespace thimble {

// The file is in order, but this build does not have its codec.
struct MissingCodecError : FormatError {
  using FormatError::FormatError;
};

// Whether contents of this shape, laid out like this, may be stored with this codec: the weight coder takes codes one
// by one.
constexpr bool codec_takes(CodecId codec, const ContentShape& shape, LayoutId layout) {
  return codec != CodecId::kRans || (shape.kind == SectionKind::kCodes && layout == LayoutId::kPlain);
}

// Exactly `raw_bytes` bytes of contents that the codec takes, or FormatError(where, ...): damaged or truncated input,
// input left over, another size.
// Memory: what has been decompressed so far (at most twice), plus the codec's window; of the weight coder
// decoder_memory().
ByteVector decompress(CodecId codec, Bytes stored, uint64_t raw_bytes, const ContentShape& shape,
                      const std::string& where);

}  // namespace thimble
