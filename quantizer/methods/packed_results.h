// packed_results.h: results as bytes, for the other ranks and for the work folder. Those who read them run this very
// program on machines of this kind, so numbers travel as they lie in memory.
#pragma once

#include <vector>

#include "gptq/statistics/fisher.h"
#include "gptq/trace/quantize_tensor.h"
#include "runtime/base/byte_cursor.h"
#include "runtime/base/json.h"

namespace thimble {

// Exact: unpack(pack(x)) is x, sharing included. Bytes that are too short are a FormatError.
ByteVector pack_hessians(const HessianSet& hessians);
HessianSet unpack_hessians(Bytes bytes);
ByteVector pack_statistics(const CalibrationStatistics& statistics);
CalibrationStatistics unpack_statistics(Bytes bytes);

// A layer solved by GPTQ.
ByteVector pack_solution(const SolvedTensor& solved);
SolvedTensor unpack_solution(Bytes bytes);

// Doubles survive the way through JSON text.
Json to_json(const GptqReport& report);
GptqReport gptq_report_from(const Json& json);

}  // namespace thimble
