// option_values.cpp: see option_values.h.
#include "quantizer/console/option_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <regex>

#include "quantizer/console/suggestion.h"

namespace thimble {
namespace {

// No size that fits has more characters, or needs a higher power of ten.
constexpr size_t kMostSizeCharacters = 64;
constexpr uint64_t kMostPower = 40;

template <typename Number>
std::optional<Number> parse_whole_text(std::string_view text) {
  Number value = 0;
  auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

// How often a unit multiplies by 1000 or 1024: by its letter, or by none.
int unit_steps(const std::string& letter) {
  const int upper = letter.empty() ? ' ' : std::toupper(static_cast<unsigned char>(letter[0]));
  return static_cast<int>(std::string_view(" KMGT").find(static_cast<char>(upper)));
}

}  // namespace

const char* const kAllowedBytes = "whole bytes, at most 2^62: 16000000, 1.5e6, 16M, 16MB, 600KB, or 16MiB and 600KiB";

std::optional<uint64_t> parse_whole_number(std::string_view text) { return parse_whole_text<uint64_t>(text); }

std::optional<double> parse_finite(std::string_view text) {
  const std::optional<double> value = parse_whole_text<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::optional<uint64_t> parse_bytes(std::string_view text) {
  // Digits, fraction; sign and digits of a power of ten; a unit of powers of 1000, or of 1024.
  static const std::regex kSize(R"(([0-9]+)(?:\.([0-9]+))?(?:[eE](?:\+|(-))?([0-9]+))?(?:([kKMGT]?)B?|([KMGT])iB?))");
  std::cmatch part;
  if (text.size() > kMostSizeCharacters || !std::regex_match(text.data(), text.data() + text.size(), part, kSize))
    return std::nullopt;
  const std::optional<uint64_t> digits = parse_whole_number(part.str(1) + part.str(2));
  const std::optional<uint64_t> power = parse_whole_number(part[4].matched ? part.str(4) : "0");
  if (!digits || !power || *power > kMostPower) return std::nullopt;
  // Below 2^64 * 1024^4: fits, and stays below 2^127 for one more factor of ten.
  unsigned __int128 bytes = static_cast<unsigned __int128>(*digits) << (10 * unit_steps(part.str(6)));
  const int64_t exponent_given = part[3].matched ? -static_cast<int64_t>(*power) : static_cast<int64_t>(*power);
  int64_t exponent = exponent_given - part.length(2) + 3 * unit_steps(part.str(5));
  for (; exponent < 0 && bytes > 0; ++exponent) {
    if (bytes % 10 != 0) return std::nullopt;
    bytes /= 10;
  }
  for (; exponent > 0 && bytes > 0 && bytes <= kMaxOptionBytes; --exponent) bytes *= 10;
  if (bytes > kMaxOptionBytes) return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

CLI::Validator whole_number(uint64_t low, uint64_t high) {
  auto check = [low, high](std::string& text) -> std::string {
    const std::optional<uint64_t> value = parse_whole_number(text);
    if (!value || *value < low || *value > high)
      return fmt::format("'{}', allowed is an integer from {} to {}", text, low, high);
    text = std::to_string(*value);
    return "";
  };
  return CLI::Validator(check, "", "");
}

CLI::Validator byte_size() {
  auto check = [](std::string& text) -> std::string {
    const std::optional<uint64_t> bytes = parse_bytes(text);
    if (!bytes) return fmt::format("'{}', allowed are {}", text, kAllowedBytes);
    text = std::to_string(*bytes);
    return "";
  };
  return CLI::Validator(check, "", "");
}

CLI::Validator file_name() {
  auto check = [](std::string& text) { return text.empty() ? "'', allowed is the name of a file or folder" : ""; };
  return CLI::Validator(check, "", "");
}

CLI::Validator finite_number(double low, double high) {
  auto check = [low, high](std::string& text) -> std::string {
    const std::optional<double> value = parse_finite(text);
    if (value && *value >= low && *value <= high) return "";
    return fmt::format("'{}', allowed is a number from {} to {}", text, low, high);
  };
  return CLI::Validator(check, "", "");
}

CLI::Validator one_of(std::vector<std::string> names) {
  auto check = [names = std::move(names)](std::string& text) -> std::string {
    return std::ranges::find(names, text) != names.end() ? "" : not_one_of(text, names);
  };
  return CLI::Validator(check, "", "");
}

CLI::Option* add_file(CLI::App& command, const std::string& name, std::string& path, const std::string& description) {
  return command.add_option(name, path, description)->check(file_name())->type_name("FILE");
}

CLI::Option* add_choice(CLI::App& command, const std::string& name, std::string& value, const std::string& description,
                        std::vector<std::string> names) {
  return command.add_option(name, value, description)->check(one_of(std::move(names)))->type_name("NAME");
}

CLI::Option* repeatable(CLI::Option* option) { return option->take_all()->allow_extra_args(false); }

}  // namespace thimble
