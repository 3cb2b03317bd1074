// sweep_records.h: scores of a sweep as they lie in the work folder, from which a killed sweep goes on. Never read from
// the reports, which anyone may change.
#pragma once

#include <optional>

#include "quantizer/reports/sweep_results.h"
#include "runtime/base/json.h"

namespace thimble {

// Numbers survive exactly. The inverses give nothing for JSON that is not such a record.
Json record_of(const OriginalScore& original);
Json record_of(const SweepPoint& point);
std::optional<OriginalScore> original_from(const Json& record);
std::optional<SweepPoint> point_from(const Json& record);

}  // namespace thimble
