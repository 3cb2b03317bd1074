// json_step.cpp: the keys of one object, and errors about them.
#include "eval/tokenizers/json_step.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace thimble {
namespace {

const Json kNull;

// As much of a value as a message should show.
std::string shown(const Json& value) {
  constexpr size_t kMostShown = 120;
  if (value.is_structured() && value.size() > 8) return value.is_array() ? "an array" : "an object";
  std::string text = canonical_json(value);
  if (text.size() > kMostShown) text = text.substr(0, kMostShown) + "...";
  return text;
}

std::string list_of(const auto& names) {
  std::string text;
  for (const auto& name : names) text.append(text.empty() ? "" : ", ").append(name);
  return text;
}

}  // namespace

JsonStep::JsonStep(const Json& value, const std::string& path, const std::string& object)
    : value_(value), path_(path), object_(object) {
  if (!value.is_object()) throw FormatError(path, object + " is " + shown(value) + ", must be an object");
}

const Json& JsonStep::get(const std::string& key) {
  seen_.insert(key);
  auto found = value_.find(key);
  return found == value_.end() ? kNull : *found;
}

std::string JsonStep::text(const std::string& key) {
  const Json& found = get(key);
  if (!found.is_string()) refuse(key, "a text");
  return found.get<std::string>();
}

bool JsonStep::flag(const std::string& key, bool otherwise) {
  const Json& found = get(key);
  if (found.is_null()) return otherwise;
  if (!found.is_boolean()) refuse(key, "true, false");
  return found.get<bool>();
}

std::string JsonStep::choice(const std::string& key, std::initializer_list<std::string_view> known,
                             std::string_view otherwise) {
  const Json& found = get(key);
  if (found.is_null() && !otherwise.empty()) return std::string(otherwise);
  if (!found.is_string() || std::ranges::find(known, found.get<std::string>()) == known.end())
    refuse(key, list_of(known));
  return found.get<std::string>();
}

void JsonStep::refuse(const std::string& key, const std::string& known) const {
  auto found = value_.find(key);
  throw FormatError(path_, object_ + ": \"" + key + "\" is " + (found == value_.end() ? "missing" : shown(*found)) +
                               "; known: " + known);
}

void JsonStep::finish() const {
  for (const auto& [key, value] : value_.items())
    if (!seen_.contains(key))
      throw FormatError(path_, object_ + ": \"" + key + "\" is not known (its value is " + shown(value) +
                                   "); known: " + list_of(seen_));
}

}  // namespace thimble
