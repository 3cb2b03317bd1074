// codec.h: the compressors that a section may pass through, as one table. General-purpose ones see bytes only; how
// codes become bytes is section_layout.h. The weight coder needs to know the matrix that the bytes are.
#pragma once

#include <span>
#include <string>

#include "packer/codecs/decompress.h"
#include "packer/layout/format.h"
#include "packer/layout/section_layout.h"
#include "runtime/base/byte_cursor.h"

namespace thimble {

struct Codec {
  CodecId id;
  std::string (*version)();  // of the library: "1.0.9"; others may compress to other bytes, never decompress to others
  // `raw`: contents of a shape that it takes, laid out. Equal input and library version give equal output.
  ByteVector (*compress)(Bytes raw, const ContentShape& shape);

  std::string_view name() const { return codec_name(id); }
};

// All codecs; the place of each is its number in a file.
std::span<const Codec> all_codecs();

inline const Codec& codec_of(CodecId id) { return all_codecs()[static_cast<size_t>(id)]; }

}  // namespace thimble
