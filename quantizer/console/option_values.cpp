// option_values.cpp: see option_values.h.
#include "quantizer/console/option_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "quantizer/console/suggestion.h"

namespace thimble {
namespace {

// Digits of a fraction and powers of ten beyond this are refused unread: no size that fits needs them.
constexpr int64_t kMaxExponent = 40;

struct SizeSuffix {
  std::string_view name;
  int powers_of_1000, powers_of_1024;
};
constexpr std::array<SizeSuffix, 20> kSizeSuffixes = {
    {{"", 0, 0},   {"B", 0, 0},   {"K", 1, 0},  {"k", 1, 0},   {"KB", 1, 0}, {"kB", 1, 0}, {"M", 2, 0},
     {"MB", 2, 0}, {"G", 3, 0},   {"GB", 3, 0}, {"T", 4, 0},   {"TB", 4, 0}, {"Ki", 0, 1}, {"KiB", 0, 1},
     {"Mi", 0, 2}, {"MiB", 0, 2}, {"Gi", 0, 3}, {"GiB", 0, 3}, {"Ti", 0, 4}, {"TiB", 0, 4}}};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// A decimal number as digits * 10^exponent, taken off the front of a text.
class DecimalReader {
 public:
  explicit DecimalReader(std::string_view text) : rest_(text) {}

  // False for a text that does not begin with such a number, or one of too many digits.
  bool read() {
    if (!read_digits(false)) return false;
    if (rest_.starts_with('.')) {
      rest_.remove_prefix(1);
      if (!read_digits(true)) return false;
    }
    return read_exponent();
  }

  uint64_t digits() const { return digits_; }
  int64_t exponent() const { return exponent_; }
  std::string_view rest() const { return rest_; }

 private:
  bool read_digits(bool is_fraction) {
    if (rest_.empty() || !is_digit(rest_[0])) return false;
    for (; !rest_.empty() && is_digit(rest_[0]); rest_.remove_prefix(1)) {
      if (__builtin_mul_overflow(digits_, uint64_t{10}, &digits_) ||
          __builtin_add_overflow(digits_, static_cast<uint64_t>(rest_[0] - '0'), &digits_))
        return false;
      if (is_fraction) --exponent_;
    }
    return exponent_ >= -kMaxExponent;
  }

  bool read_exponent() {
    if (!rest_.starts_with('e') && !rest_.starts_with('E')) return true;
    rest_.remove_prefix(1);
    if (rest_.starts_with('+') && !rest_.starts_with("+-")) rest_.remove_prefix(1);
    int64_t power = 0;
    const char* end = rest_.data() + rest_.size();
    auto [stop, error] = std::from_chars(rest_.data(), end, power);
    if (error != std::errc() || std::abs(power) > kMaxExponent) return false;
    rest_.remove_prefix(static_cast<size_t>(stop - rest_.data()));
    exponent_ += power;
    return true;
  }

  std::string_view rest_;
  uint64_t digits_ = 0;
  int64_t exponent_ = 0;
};

}  // namespace

const char* const kAllowedBytes = "whole bytes, at most 2^62: 16000000, 1.5e6, 16M, 16MB, 600KB, or 16MiB and 600KiB";

std::optional<uint64_t> parse_whole_number(std::string_view text) {
  uint64_t value = 0;
  auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<uint64_t> parse_bytes(std::string_view text) {
  DecimalReader number(text);
  if (!number.read()) return std::nullopt;
  const auto unit = std::ranges::find(kSizeSuffixes, number.rest(), &SizeSuffix::name);
  if (unit == kSizeSuffixes.end()) return std::nullopt;
  // Below 2^64 * 1024^4: fits, and stays below 2^127 for one more factor of ten.
  unsigned __int128 bytes = static_cast<unsigned __int128>(number.digits()) << (10 * unit->powers_of_1024);
  int64_t exponent = number.exponent() + 3 * unit->powers_of_1000;
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
    double value = 0;
    const char* end = text.data() + text.size();
    auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && stop == end && std::isfinite(value) && value >= low && value <= high) return "";
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

CLI::Option* repeatable(CLI::Option* option) { return option->take_all()->allow_extra_args(false); }

}  // namespace thimble
