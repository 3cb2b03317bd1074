// section_layout.h: reversible arrangements of a section's elements, so that a byte compressor finds their
// regularities. Content: elements in their natural order, little-endian; codes are int8, or int32 with steps,
// row-major. Laid out: what the codec sees.
#pragma once

#include <compare>
#include <string>
#include <vector>

#include "packer/layout/format.h"
#include "runtime/base/byte_cursor.h"

namespace thimble {

// What one section holds.
struct ContentShape {
  SectionKind kind = SectionKind::kHeader;
  uint64_t rows = 1;     // of the piece of a code matrix; 1 for everything else
  uint64_t columns = 0;  // elements per row
  uint64_t element_bytes = 1;
  int max_code = 0;      // codes of one byte lie in [-max_code, max_code]; 0 when the elements are others
  int trellis_bits = 0;  // of stepped codes

  bool has_stepped_codes() const { return kind == SectionKind::kCodes && max_code == 0; }
  uint64_t elements() const { return rows * columns; }
  uint64_t content_bytes() const { return elements() * element_bytes; }
  auto operator<=>(const ContentShape&) const = default;
};

// The layouts that a section of this shape may use, ascending by id; never empty.
std::vector<LayoutId> allowed_layouts(const ContentShape& shape);

// Size in bytes once laid out, at most content_bytes().
uint64_t laid_out_bytes(LayoutId layout, const ContentShape& shape);

// content.size() = shape.content_bytes(), codes within their range; `layout` one of the allowed.
ByteVector apply_layout(LayoutId layout, const ContentShape& shape, Bytes content);

// The inverse; laid_out.size() = laid_out_bytes(layout, shape). Only bytes that apply_layout() can produce are
// accepted, others are a FormatError(where, ...), except that codes of the byte layouts are not compared with max_code
// here.
ByteVector undo_layout(LayoutId layout, const ContentShape& shape, ByteVector laid_out, const std::string& where);

// Codes that one byte holds in the digit layouts: the largest n with (2 * max_code + 1)^n <= 256.
int digits_per_byte(int max_code);

}  // namespace thimble
