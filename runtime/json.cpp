// json.cpp: bounded parsing for json.h.
#include "runtime/json.h"

#include <set>
#include <vector>

namespace thimble {

Json parse_json(Bytes text, const std::string& path) {
  std::vector<std::set<std::string>> keys;  // one set of seen keys per open object
  auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    // A start event's depth counts the arrays and objects around it, not itself.
    bool starts = event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    if (starts && depth >= kMaxJsonDepth)
      throw FormatError(path, "JSON nested deeper than " + std::to_string(kMaxJsonDepth));
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      throw FormatError(path, "JSON key '" + parsed.get<std::string>() + "' appears twice");
    return true;
  };
  std::string_view view = as_text(text);
  // The library takes a NUL byte for the end of the text and would ignore what follows.
  if (view.find('\0') != std::string_view::npos) throw FormatError(path, "not valid JSON: holds a NUL byte");
  try {
    return Json::parse(view.begin(), view.end(), check);
  } catch (const Json::exception& error) {
    throw FormatError(path, std::string("not valid JSON: ") + error.what());
  }
}

}  // namespace thimble
