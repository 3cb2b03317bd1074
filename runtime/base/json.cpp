// json.cpp: bounded parsing for json.h.
#include "runtime/base/json.h"

#include <vector>

namespace thimble {
namespace {

// Builds the value that a text spells, and throws FormatError for whatever json.h does not allow. (The library's parser
// callback could do the same, but with one it looks at all siblings of every object that ends: quadratic time.)
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(const std::string& path) : path_(path) {}

  Json& value() { return value_; }

  bool start_object(size_t) override { return open(Json::object()); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }
  bool key(std::string& text) override {
    const auto [entry, is_new] = open_.back()->get_ref<Json::object_t&>().emplace(text, Json());
    if (!is_new) throw FormatError(path_, "JSON key '" + text + "' appears twice");
    member_ = &entry->second;
    return true;
  }
  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    throw FormatError(path_, std::string("not valid JSON: ") + error.what());
  }

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(Json::number_integer_t value) override { return add(value); }
  bool number_unsigned(Json::number_unsigned_t value) override { return add(value); }
  bool number_float(Json::number_float_t value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(Json::binary_t&) override { return true; }

 private:
  // Where the next value goes: what is open stays where it is until it ends.
  Json* place() {
    if (open_.empty()) return &value_;
    if (open_.back()->is_object()) return member_;
    return &open_.back()->get_ref<Json::array_t&>().emplace_back();
  }
  bool add(Json value) {
    *place() = std::move(value);
    return true;
  }
  bool open(Json value) {
    if (open_.size() == kMaxJsonDepth)
      throw FormatError(path_, "JSON nested deeper than " + std::to_string(kMaxJsonDepth));
    Json* at = place();
    *at = std::move(value);
    open_.push_back(at);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string& path_;
  Json value_;
  std::vector<Json*> open_;  // objects and arrays, the innermost last
  Json* member_ = nullptr;   // of the innermost object
};

}  // namespace

Json parse_json(Bytes text, const std::string& path) {
  std::string_view view = as_text(text);
  // The library takes a NUL byte for the end of the text and would ignore what follows.
  if (view.find('\0') != std::string_view::npos) throw FormatError(path, "not valid JSON: holds a NUL byte");
  Builder builder(path);
  Json::sax_parse(view.begin(), view.end(), &builder);
  return std::move(builder.value());
}

std::string canonical_json(const Json& value) { return value.dump(); }

}  // namespace thimble
