// code_layout.h: how the codes of a block lie in its bytes, and the one code at a given place: what a device's threads
// need to unpack a block on their own. packer/layout/section_layout.cpp writes these layouts and unpacks them on the
// host. In: the bytes of a block.  Out: its codes, and whether they are allowed.
#pragma once

#include <cstdint>

#include "runtime/tensor/host_device.h"

namespace thimble {

enum class CodeLayout : uint8_t {
  kRows,          // int8, row-major
  kColumns,       // int8, column-major
  kBits,          // code + max_code in code_bits(max_code) bits each, row-major, lowest bit first
  kDigits,        // code + max_code as digits of base 2 * max_code + 1, as many as fit in each byte, row-major
  kDigitColumns,  // the same, column-major
};

// Codes that one byte holds in the digit layouts: the largest n with (2 * max_code + 1)^n <= 256.
int digits_per_byte(int max_code);

// A block of `rows` x `columns` codes. Codes are counted in the order in which they are stored.
struct CodeUnpacker {
  CodeLayout layout = CodeLayout::kRows;
  int max_code = 0;
  int code_bits = 0;  // kBits
  int per_byte = 0;   // the digit layouts
  int64_t rows = 0, columns = 0;
  int64_t bytes = 0;  // of the whole block

  THIMBLE_HOST_DEVICE int64_t count() const { return rows * columns; }
  THIMBLE_HOST_DEVICE bool is_column_major() const {
    return layout == CodeLayout::kColumns || layout == CodeLayout::kDigitColumns;
  }
  // Row-major index of stored code i.
  THIMBLE_HOST_DEVICE int64_t place(int64_t i) const { return is_column_major() ? i % rows * columns + i / rows : i; }
  // Sets stored code i; false when it, or what is left over behind the last code of its byte, is not allowed. A block
  // is allowed when all its codes are.
  THIMBLE_HOST_DEVICE bool read(const uint8_t* data, int64_t i, int& code) const {
    if (layout == CodeLayout::kRows || layout == CodeLayout::kColumns) {
      code = static_cast<int8_t>(data[i]);
      return code >= -max_code && code <= max_code;
    }
    return layout == CodeLayout::kBits ? read_bits(data, i, code) : read_digit(data, i, code);
  }

 private:
  THIMBLE_HOST_DEVICE bool read_bits(const uint8_t* data, int64_t i, int& code) const {
    int64_t first_bit = i * code_bits, byte = first_bit / 8;
    int shift = static_cast<int>(first_bit % 8);
    unsigned window = data[byte];
    if (byte + 1 < bytes) window |= static_cast<unsigned>(data[byte + 1]) << 8;
    unsigned offset = (window >> shift) & ((1U << code_bits) - 1);
    code = static_cast<int>(offset) - max_code;
    bool is_clean = i + 1 < count() || (window >> (shift + code_bits)) == 0;
    return is_clean && offset <= 2 * static_cast<unsigned>(max_code);
  }
  THIMBLE_HOST_DEVICE bool read_digit(const uint8_t* data, int64_t i, int& code) const {
    unsigned base = 2 * static_cast<unsigned>(max_code) + 1, value = data[i / per_byte];
    int digit = static_cast<int>(i % per_byte);
    for (int d = 0; d < digit; ++d) value /= base;
    code = static_cast<int>(value % base) - max_code;
    bool is_last = digit + 1 == per_byte || i + 1 == count();
    return !is_last || value < base;
  }
};

CodeUnpacker make_code_unpacker(CodeLayout layout, int max_code, int64_t rows, int64_t columns, int64_t bytes);

}  // namespace thimble
