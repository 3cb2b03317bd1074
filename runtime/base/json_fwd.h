// json_fwd.h: the name of JSON values, for headers that only declare functions of them. json.h has the rest.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace thimble {

using Json = nlohmann::json;  // objects keep their keys sorted, so dump() is canonical

}  // namespace thimble
