// numerics_report.h: every low-precision operator against float64, over cases of operator_cases.h: errors beside what
// rounding alone costs, NaN and infinities, and on a device time and bandwidth. What `thimble numerics` prints.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "eval/numerics/operator_cases.h"
#include "eval/numerics/operator_reference.h"
#include "runtime/base/json.h"
#include "runtime/base/progress.h"

namespace thimble {

struct NumericsRequest {
  std::vector<Operator> operators;  // in the order of the report
  int64_t max_elements = 0;         // cases of more are left out
  uint64_t seed = 0;
};

// Computes a call on host memory, here or on a device. Returns the seconds it took there where they were measured.
using RunOperator = std::function<std::optional<double>(const OperatorCall& call)>;

struct NumericsRow {
  Operator op = Operator::kSoftmax;
  DType in = DType::kF16, out = DType::kF32;
  OperatorCase shape;
  OperatorErrors errors;
  uint64_t bytes = 0;  // read and written
  std::optional<double> seconds;

  double bytes_per_second() const { return static_cast<double>(bytes) / *seconds; }
};

struct NumericsReport {
  std::vector<NumericsRow> rows;
  std::optional<double> copy_bandwidth;  // of the device's memory, bytes per second, measured in the same run
  bool passed() const;                   // there are rows, and all passed
};

// UsageError when max_elements leaves no case.
NumericsReport check_operators(const NumericsRequest& request, const RunOperator& run, Progress& progress);

Json to_json(const NumericsReport& report);
// A table, and a line for every row that failed: what is wrong, and where first.
std::string to_text(const NumericsReport& report);

// Throws CheckError that names the first row that failed.
void require_passed(const NumericsReport& report);

}  // namespace thimble
