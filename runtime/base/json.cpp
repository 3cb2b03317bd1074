// json.cpp: bounded parsing for json.h.
#include "runtime/base/json.h"

#include <set>
#include <vector>

namespace thimble {
namespace {

// Reads a text without building values, and throws FormatError for whatever json.h does not allow. (The library's
// parser callback could do the same, but with one it looks at all siblings of every object that ends: quadratic time.)
class StructureCheck : public nlohmann::json_sax<Json> {
 public:
  explicit StructureCheck(const std::string& path) : path_(path) {}

  bool start_object(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(); }
  bool end_array() override { return close(); }
  bool key(std::string& text) override {
    if (!keys_.back().insert(text).second) throw FormatError(path_, "JSON key '" + text + "' appears twice");
    return true;
  }
  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    throw FormatError(path_, std::string("not valid JSON: ") + error.what());
  }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(Json::number_integer_t) override { return true; }
  bool number_unsigned(Json::number_unsigned_t) override { return true; }
  bool number_float(Json::number_float_t, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(Json::binary_t&) override { return true; }

 private:
  bool open() {
    if (keys_.size() == kMaxJsonDepth)
      throw FormatError(path_, "JSON nested deeper than " + std::to_string(kMaxJsonDepth));
    keys_.emplace_back();
    return true;
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  const std::string& path_;
  std::vector<std::set<std::string>> keys_;  // those seen in each open object; empty for an open array
};

}  // namespace

Json parse_json(Bytes text, const std::string& path) {
  std::string_view view = as_text(text);
  // The library takes a NUL byte for the end of the text and would ignore what follows.
  if (view.find('\0') != std::string_view::npos) throw FormatError(path, "not valid JSON: holds a NUL byte");
  StructureCheck check(path);
  Json::sax_parse(view.begin(), view.end(), &check);
  return Json::parse(view.begin(), view.end());
}

}  // namespace thimble
