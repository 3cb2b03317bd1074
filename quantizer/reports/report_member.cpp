// report_member.cpp: see report_member.h.
#include "quantizer/reports/report_member.h"

#include <fmt/format.h>

#include "runtime/base/error.h"

namespace thimble {

const Json& report_member(const Json& object, std::string_view key, std::string_view what, const std::string& path) {
  const auto found = object.is_object() ? object.find(std::string(key)) : object.end();
  if (found == object.end()) throw FormatError(path, fmt::format("{} has no member '{}'", what, key));
  return *found;
}

const Json& report_member(const Json& object, std::string_view key, std::string_view what, const std::string& path,
                          bool (Json::*is_right)() const noexcept, const char* allowed) {
  constexpr size_t kMostQuoted = 60;
  const Json& found = report_member(object, key, what, path);
  if ((found.*is_right)()) return found;
  const std::string text = found.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, kMostQuoted);
  throw FormatError(path, fmt::format("'{}' of {} is {}, must be {}", key, what, text, allowed));
}

void check_report_of(const Json& report, uint64_t artifact_bytes, const std::string& path) {
  const uint64_t bytes = report_member(report, "artifact_bytes", "the report (expected: what quantize --json prints)",
                                       path, &Json::is_number_unsigned, "an integer of at least 0");
  if (bytes != artifact_bytes)
    throw FormatError(path,
                      fmt::format("is the report of an artifact of {} B, this one has {} B", bytes, artifact_bytes));
}

}  // namespace thimble
