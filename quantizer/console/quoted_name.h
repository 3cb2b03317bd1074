// quoted_name.h: names found in untrusted files, made safe to print in an error message.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/json.h"

namespace thimble {

// 'name' in single quotes, ASCII only (other characters as \u escapes), cut after 200 bytes: a hostile name can
// neither drive the terminal nor flood the log.
inline std::string quoted_name(std::string_view name) {
  constexpr size_t kShownBytes = 200;
  std::string text = Json(name.substr(0, kShownBytes)).dump(-1, ' ', true, Json::error_handler_t::replace);
  text.front() = '\'';
  text.back() = '\'';
  return name.size() > kShownBytes ? text + "..." : text;
}

}  // namespace thimble
