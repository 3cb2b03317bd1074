// json_step.h: reads one object of a tokenizer.json, each key once, and refuses what nobody asked for.
#pragma once

#include <initializer_list>
#include <set>
#include <string>
#include <string_view>

#include "runtime/base/json.h"

namespace thimble {

class JsonStep {
 public:
  // `object` names the value in errors. FormatError(path) unless it is a JSON object.
  JsonStep(const Json& value, const std::string& path, const std::string& object);

  const std::string& path() const { return path_; }
  const std::string& object() const { return object_; }

  // Null when it is absent.
  const Json& get(const std::string& key);
  std::string text(const std::string& key);
  bool flag(const std::string& key, bool otherwise);
  // The value of `key`, which must be one of `known`; an absent one is `otherwise`.
  std::string choice(const std::string& key, std::initializer_list<std::string_view> known, std::string_view otherwise);
  // The value may be anything: it does not matter here.
  void ignore(const std::string& key) { seen_.insert(key); }

  // FormatError: the key, its value, and what is known.
  [[noreturn]] void refuse(const std::string& key, const std::string& known) const;
  // Refuses any key that was neither read nor ignored.
  void finish() const;

 private:
  const Json& value_;
  std::string path_, object_;
  std::set<std::string> seen_;
};

}  // namespace thimble
