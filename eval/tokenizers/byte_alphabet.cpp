// byte_alphabet.cpp: printable bytes of Latin-1 are themselves, the others U+0100, U+0101, ... in order.
#include "eval/tokenizers/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "eval/tokenizers/utf8.h"

namespace thimble {
namespace {

constexpr uint32_t kFirstOther = 0x100, kOthers = 68;

constexpr bool is_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

constexpr std::array<uint8_t, kOthers> other_bytes() {
  std::array<uint8_t, kOthers> bytes{};
  size_t count = 0;
  for (uint32_t byte = 0; byte < 256; ++byte)
    if (!is_itself(byte)) bytes[count++] = static_cast<uint8_t>(byte);
  return bytes;
}
constexpr std::array<uint8_t, kOthers> kOtherBytes = other_bytes();

}  // namespace

std::optional<std::string> bytes_spelled(std::string_view spelling) {
  std::string bytes;
  while (!spelling.empty()) {
    const CodePoint next = decode_utf8(spelling);
    if (next.length == 0) return std::nullopt;
    if (next.value < kFirstOther && is_itself(next.value))
      bytes += static_cast<char>(next.value);
    else if (next.value >= kFirstOther && next.value < kFirstOther + kOthers)
      bytes += static_cast<char>(kOtherBytes[next.value - kFirstOther]);
    else
      return std::nullopt;
    spelling.remove_prefix(next.length);
  }
  return bytes;
}

}  // namespace thimble
