// option_values.h: what numbers, sizes and names are as values of options: one reading of each for all commands.
// By themselves the parser's own readers take "-5" for a huge unsigned number, "010" for 8, "0x10" for 16, and NaN for
// a number in range.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

// Most bytes that an option may name: sums of two fit in 64 bits.
constexpr uint64_t kMaxOptionBytes = uint64_t{1} << 62;

// Decimal digits and nothing else. Nothing for other texts and for numbers above 64 bits.
std::optional<uint64_t> parse_whole_number(std::string_view text);

// A finite decimal number and nothing else.
std::optional<double> parse_finite(std::string_view text);

// Bytes: a decimal number, perhaps with a fraction and a power of ten, then perhaps a unit: B; K, M, G or T (powers of
// 1000) or Ki, Mi, Gi or Ti (powers of 1024), with or without B. "16000000", "16M", "1.5MB", "1e6", "600KiB". Exact:
// nothing for a text that is no whole number of bytes, or above kMaxOptionBytes.
std::optional<uint64_t> parse_bytes(std::string_view text);

// What parse_bytes() takes, for messages.
extern const char* const kAllowedBytes;

// Validators, each for add_option(...)->transform(): the parser then reads what they leave, plain decimal digits.
CLI::Validator whole_number(uint64_t low, uint64_t high = std::numeric_limits<int64_t>::max());
CLI::Validator byte_size();
// Decimal, finite and in range.
CLI::Validator finite_number(double low, double high);
CLI::Validator file_name();  // any but the empty one, which inside means that the option was not given
// One of the names; the message suggests the nearest.
CLI::Validator one_of(std::vector<std::string> names);

// Options of these kinds, with what the help calls their values. A default is shown where the caller asks for it.
CLI::Option* add_file(CLI::App& command, const std::string& name, std::string& path, const std::string& description);
CLI::Option* add_choice(CLI::App& command, const std::string& name, std::string& value, const std::string& description,
                        std::vector<std::string> names);
template <typename Size>
CLI::Option* add_bytes(CLI::App& command, const std::string& name, Size& bytes, const std::string& description) {
  return command.add_option(name, bytes, description)->transform(byte_size())->type_name("BYTES");
}
template <typename Count>
CLI::Option* add_count(CLI::App& command, const std::string& name, Count& count, const std::string& description,
                       uint64_t low, uint64_t high) {
  return command.add_option(name, count, description)->transform(whole_number(low, high))->type_name("N");
}

// Gives an option that may be named several times exactly one value each time: one that takes all that follow would
// swallow the arguments behind it.
CLI::Option* repeatable(CLI::Option* option);

}  // namespace thimble
