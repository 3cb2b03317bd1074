// json.h: JSON from untrusted bytes (nlohmann-json), with our error type; and the canonical text we write.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/base/byte_cursor.h"
#include "runtime/base/json_fwd.h"

namespace thimble {

constexpr int kMaxJsonDepth = 64;

// Parses one JSON text. Syntax errors, invalid UTF-8, duplicate keys and nesting above kMaxJsonDepth are FormatErrors.
Json parse_json(Bytes text, const std::string& path);

// Keys sorted, no spaces: equal values give equal bytes.
std::string canonical_json(const Json& value);

}  // namespace thimble
