// byte_alphabet.h: the byte-level alphabet: 256 characters, each of which a byte-level vocabulary writes for one byte.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace thimble {

// The bytes that `spelling` stands for; nothing when a character is not of the alphabet.
std::optional<std::string> bytes_spelled(std::string_view spelling);

}  // namespace thimble
