// section_layout.cpp: the layouts of format.h and their inverses.
#include "packer/layout/section_layout.h"

#include <algorithm>
#include <cassert>

#include "runtime/base/format_error.h"
#include "runtime/codes/code_numbers.h"

namespace thimble {
namespace {

// Codes above this do not fit two to a byte, and digits would be bytes again.
constexpr int kMaxDigitCode = 7;

// A (rows, columns) matrix of bytes to (columns, rows).
ByteVector transpose(Bytes matrix, uint64_t rows, uint64_t columns) {
  ByteVector transposed(matrix.size());
  for (uint64_t r = 0; r < rows; ++r)
    for (uint64_t c = 0; c < columns; ++c) transposed[c * rows + r] = matrix[r * columns + c];
  return transposed;
}

// Element b of every group of `width` bytes gathered, for b = 0, 1, ...: the transpose of (elements, width).
ByteVector split_planes(Bytes content, uint64_t width) { return transpose(content, content.size() / width, width); }
ByteVector join_planes(Bytes planes, uint64_t width) { return transpose(planes, width, planes.size() / width); }

unsigned offset_code(std::byte code, int max_code) {
  return static_cast<unsigned>(static_cast<int8_t>(code) + max_code);
}
std::byte code_from_offset(unsigned offset, int max_code) {
  return static_cast<std::byte>(static_cast<int>(offset) - max_code);
}

ByteVector pack_bits(Bytes codes, int max_code) {
  const int width = code_bits(max_code);
  ByteVector packed;
  packed.reserve((codes.size() * width + 7) / 8);
  unsigned pending = 0;
  int pending_bits = 0;
  for (std::byte code : codes) {
    pending |= offset_code(code, max_code) << pending_bits;
    pending_bits += width;
    for (; pending_bits >= 8; pending_bits -= 8, pending >>= 8)
      packed.push_back(static_cast<std::byte>(pending & 0xff));
  }
  if (pending_bits > 0) packed.push_back(static_cast<std::byte>(pending));
  return packed;
}

ByteVector unpack_bits(Bytes packed, uint64_t count, int max_code, const std::string& where) {
  const int width = code_bits(max_code);
  const unsigned mask = (1u << width) - 1;
  ByteVector codes;
  codes.reserve(count);
  unsigned pending = 0;
  int pending_bits = 0;
  size_t next = 0;
  while (codes.size() < count) {
    for (; pending_bits < width; pending_bits += 8)
      pending |= std::to_integer<unsigned>(packed[next++]) << pending_bits;
    unsigned offset = pending & mask;
    if (offset > 2 * static_cast<unsigned>(max_code))
      throw_format_error(where, "code {} is {}, at most {} allowed", codes.size(), static_cast<int>(offset) - max_code,
                         max_code);
    codes.push_back(code_from_offset(offset, max_code));
    pending >>= width;
    pending_bits -= width;
  }
  if (pending != 0) throw_format_error(where, "unused bits after the last code are not zero");
  return codes;
}

ByteVector pack_digits(Bytes codes, int max_code) {
  const size_t per_byte = digits_per_byte(max_code);
  const unsigned base = 2 * max_code + 1;
  ByteVector packed;
  packed.reserve(codes.size() / per_byte + 1);
  for (size_t first = 0; first < codes.size(); first += per_byte) {
    unsigned value = 0;
    for (size_t i = std::min(first + per_byte, codes.size()); i-- > first;)
      value = value * base + offset_code(codes[i], max_code);
    packed.push_back(static_cast<std::byte>(value));
  }
  return packed;
}

ByteVector unpack_digits(Bytes packed, uint64_t count, int max_code, const std::string& where) {
  const uint64_t per_byte = digits_per_byte(max_code);
  const unsigned base = 2 * max_code + 1;
  ByteVector codes;
  codes.reserve(count);
  for (std::byte byte : packed) {
    auto value = std::to_integer<unsigned>(byte);
    uint64_t digits = std::min<uint64_t>(per_byte, count - codes.size());
    for (uint64_t i = 0; i < digits; ++i, value /= base) codes.push_back(code_from_offset(value % base, max_code));
    if (value != 0)
      throw_format_error(where, "byte {} holds more than {} digits of base {}", std::to_integer<unsigned>(byte), digits,
                         base);
  }
  return codes;
}

}  // namespace

std::vector<LayoutId> allowed_layouts(const ContentShape& shape) {
  if (shape.kind == SectionKind::kCodes && !shape.has_stepped_codes()) {
    if (shape.max_code > kMaxDigitCode) return {LayoutId::kPlain, LayoutId::kColumns, LayoutId::kBits};
    return {LayoutId::kPlain, LayoutId::kColumns, LayoutId::kBits, LayoutId::kDigits, LayoutId::kDigitColumns};
  }
  if (shape.element_bytes > 1) return {LayoutId::kPlain, LayoutId::kPlanes};
  return {LayoutId::kPlain};
}

uint64_t laid_out_bytes(LayoutId layout, const ContentShape& shape) {
  switch (layout) {
    case LayoutId::kPlain:
    case LayoutId::kColumns:
    case LayoutId::kPlanes: return shape.content_bytes();
    case LayoutId::kBits: return (shape.elements() * static_cast<uint64_t>(code_bits(shape.max_code)) + 7) / 8;
    case LayoutId::kDigits:
    case LayoutId::kDigitColumns: {
      auto per_byte = static_cast<uint64_t>(digits_per_byte(shape.max_code));
      return (shape.elements() + per_byte - 1) / per_byte;
    }
  }
  assert(false);
  return 0;
}

ByteVector apply_layout(LayoutId layout, const ContentShape& shape, Bytes content) {
  assert(content.size() == shape.content_bytes());
  switch (layout) {
    case LayoutId::kPlain: break;
    case LayoutId::kColumns: return transpose(content, shape.rows, shape.columns);
    case LayoutId::kBits: return pack_bits(content, shape.max_code);
    case LayoutId::kDigits: return pack_digits(content, shape.max_code);
    case LayoutId::kDigitColumns: return pack_digits(transpose(content, shape.rows, shape.columns), shape.max_code);
    case LayoutId::kPlanes: return split_planes(content, shape.element_bytes);
  }
  return {content.begin(), content.end()};
}

ByteVector undo_layout(LayoutId layout, const ContentShape& shape, ByteVector laid_out, const std::string& where) {
  assert(laid_out.size() == laid_out_bytes(layout, shape));
  switch (layout) {
    case LayoutId::kPlain: break;
    case LayoutId::kColumns: return transpose(laid_out, shape.columns, shape.rows);
    case LayoutId::kBits: return unpack_bits(laid_out, shape.elements(), shape.max_code, where);
    case LayoutId::kDigits: return unpack_digits(laid_out, shape.elements(), shape.max_code, where);
    case LayoutId::kDigitColumns:
      return transpose(unpack_digits(laid_out, shape.elements(), shape.max_code, where), shape.columns, shape.rows);
    case LayoutId::kPlanes: return join_planes(laid_out, shape.element_bytes);
  }
  return laid_out;
}

int digits_per_byte(int max_code) {
  int count = 0;
  for (int power = 2 * max_code + 1; power <= 256; power *= 2 * max_code + 1) ++count;
  return count;
}

}  // namespace thimble
