// json_fields.cpp: see json_fields.h.
#include "quantizer/console/json_fields.h"

#include <fmt/format.h>

#include <cmath>

#include "runtime/base/error.h"

namespace thimble {
namespace {

constexpr size_t kMostQuoted = 60;

void require(bool is_right, const Json& found, const std::string& key, const std::string& allowed,
             const std::string& what, const std::string& path) {
  if (is_right) return;
  std::string text = found.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, kMostQuoted);
  throw FormatError(path, fmt::format("'{}' of {} is {}, must be {}", key, what, text, allowed));
}

}  // namespace

const Json& json_member(const Json& object, const std::string& key, const std::string& what, const std::string& path) {
  if (!object.is_object() || !object.contains(key))
    throw FormatError(path, fmt::format("{} has no member '{}'", what, key));
  return object.at(key);
}

const Json& json_list(const Json& object, const std::string& key, const std::string& what, const std::string& path) {
  const Json& found = json_member(object, key, what, path);
  require(found.is_array(), found, key, "a list", what, path);
  return found;
}

double json_number(const Json& object, const std::string& key, const std::string& what, const std::string& path) {
  const Json& found = json_member(object, key, what, path);
  require(found.is_number() && std::isfinite(found.get<double>()), found, key, "a finite number", what, path);
  return found.get<double>();
}

uint64_t json_count(const Json& object, const std::string& key, const std::string& what, const std::string& path) {
  const Json& found = json_member(object, key, what, path);
  require(found.is_number_unsigned(), found, key, "an integer of at least 0", what, path);
  return found.get<uint64_t>();
}

std::string json_text(const Json& object, const std::string& key, const std::string& what, const std::string& path) {
  const Json& found = json_member(object, key, what, path);
  require(found.is_string(), found, key, "a text", what, path);
  return found.get<std::string>();
}

}  // namespace thimble
