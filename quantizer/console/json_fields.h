// json_fields.h: values in JSON that people or other programs may have changed. Whatever is missing or of another kind
// is a FormatError(path) that says where: `what` names the object or the value in it.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/json.h"

namespace thimble {

const Json& json_member(const Json& object, const std::string& key, const std::string& what, const std::string& path);
const Json& json_list(const Json& object, const std::string& key, const std::string& what, const std::string& path);
double json_number(const Json& object, const std::string& key, const std::string& what,
                   const std::string& path);  // finite
uint64_t json_count(const Json& object, const std::string& key, const std::string& what, const std::string& path);
std::string json_text(const Json& object, const std::string& key, const std::string& what, const std::string& path);

}  // namespace thimble
