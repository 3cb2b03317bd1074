// report_member.h: members of JSON that people or other programs may have changed. Whatever is missing or of another
// kind is a FormatError(path) that says where.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/json.h"

namespace thimble {

// Member `key` of `object`, which messages call `what`.
const Json& report_member(const Json& object, std::string_view key, std::string_view what, const std::string& path);
// The same, which must be of a kind, `allowed` in words.
const Json& report_member(const Json& object, std::string_view key, std::string_view what, const std::string& path,
                          bool (Json::*is_right)() const noexcept, const char* allowed);

// Of a report that `quantize --json` printed: a FormatError(path) unless its artifact has this many bytes.
void check_report_of(const Json& report, uint64_t artifact_bytes, const std::string& path);

}  // namespace thimble
