// numerics_report.cpp: runs the cases one after another; renders the result.
#include "quantizer/reports/numerics_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "quantizer/console/console.h"
#include "runtime/base/count_text.h"
#include "runtime/base/error.h"

namespace thimble {
namespace {

std::string row_name(const NumericsRow& row) {
  return fmt::format("{} {} to {}, {}, {}", operator_name(row.op), dtype_name(row.in), dtype_name(row.out),
                     row.shape.shape_text(), row.shape.fill_text());
}

// "[3, 17]": where output element `index` lies.
std::string place_text(const NumericsRow& row, int64_t index) {
  if (row.op == Operator::kCrossEntropy) return fmt::format("[{}]", index);
  return fmt::format("[{}, {}]", index / row.shape.cols, index % row.shape.cols);
}

std::string failure_text(const NumericsRow& row) {
  const OperatorErrors& errors = row.errors;
  if (errors.first_non_finite)
    return fmt::format("{}: {} NaN and {}, the first at output {}", row_name(row), errors.nan_count,
                       counted(errors.infinity_count, "infinity", "infinities"),
                       place_text(row, *errors.first_non_finite));
  return fmt::format("{}: the error at output {} is {:.3g} times what is allowed", row_name(row),
                     place_text(row, errors.worst_index), errors.worst_share);
}

void check_case(Operator op, DType in, const OperatorCase& shape, const NumericsRequest& request,
                const RunOperator& run, std::vector<NumericsRow>& rows) {
  OperatorInput input(op, in, shape, request.seed);
  OperatorCall call = input.call(DType::kF32, nullptr);
  std::vector<double> reference(static_cast<size_t>(call.output_count()));
  operator_reference(call, reference);
  for (DType out : operator_outputs(op, in)) {
    ByteVector y(reference.size() * dtype_bytes(out), std::byte{0xff});  // NaN: every element must be written
    call = input.call(out, y.data());
    NumericsRow row{op, in, out, shape, {}, operator_bytes(call), run(call)};
    row.errors = compare_with_reference(to_float32(out, y), reference, out, error_bound(op));
    rows.push_back(row);
  }
}

std::vector<std::string> cells_of(const NumericsRow& row, const std::optional<double>& bandwidth) {
  std::vector<std::string> cells = {std::string(operator_name(row.op)),
                                    fmt::format("{} {}", dtype_name(row.in), dtype_name(row.out)),
                                    row.shape.shape_text(), row.shape.fill_text()};
  for (auto error : {&ErrorSummary::max_absolute, &ErrorSummary::mean_absolute, &ErrorSummary::max_relative,
                     &ErrorSummary::mean_relative})
    cells.push_back(fmt::format("{:.1e} ({:.1e})", row.errors.found.*error, row.errors.rounding.*error));
  cells.push_back(fmt::format("{:.3f}", row.errors.worst_share));
  if (bandwidth) {
    cells.push_back(fmt::format("{:.2f}", *row.seconds * 1e6));
    cells.push_back(fmt::format("{:.0f}", row.bytes_per_second() * 1e-9));
    cells.push_back(fmt::format("{:.1f}%", 100 * row.bytes_per_second() / *bandwidth));
  }
  cells.push_back(row.errors.passed() ? "ok" : "FAIL");
  return cells;
}

Json to_json(const NumericsRow& row, const std::optional<double>& bandwidth) {
  ErrorBound bound = error_bound(row.op);
  Json json = {
      {"operator", operator_name(row.op)},
      {"in", dtype_name(row.in)},
      {"out", dtype_name(row.out)},
      {"rows", row.shape.rows},
      {"cols", row.shape.cols},
      {"input", row.shape.fill_text()},
      {"error", to_json(row.errors.found)},
      {"rounding_alone", to_json(row.errors.rounding)},
      {"bound",
       {{"absolute", bound.absolute},
        {"relative", bound.relative},
        {"floor", bound.floor},
        {"rounded_absolute", bound.rounded_absolute},
        {"published", bound.is_published}}},
      {"share_of_bound", row.errors.worst_share},
      {"nan_count", row.errors.nan_count},
      {"infinity_count", row.errors.infinity_count},
      {"first_non_finite", row.errors.first_non_finite ? Json(place_text(row, *row.errors.first_non_finite)) : Json()},
      {"passed", row.errors.passed()}};
  if (bandwidth)
    json.update({{"bytes", row.bytes},
                 {"seconds", *row.seconds},
                 {"bytes_per_second", row.bytes_per_second()},
                 {"bandwidth_share", row.bytes_per_second() / *bandwidth}});
  return json;
}

}  // namespace

bool NumericsReport::passed() const {
  return !rows.empty() && std::ranges::all_of(rows, [](const NumericsRow& row) { return row.errors.passed(); });
}

NumericsReport check_operators(const NumericsRequest& request, const RunOperator& run, Progress& progress) {
  std::vector<OperatorCase> cases = operator_cases();
  std::erase_if(cases, [&](const OperatorCase& c) { return c.rows * c.cols > request.max_elements; });
  if (cases.empty())
    throw UsageError(fmt::format("--max-elements {} leaves no case; the smallest has 231", request.max_elements));
  NumericsReport report;
  progress.begin("checking operators", static_cast<int64_t>(request.operators.size() * cases.size()), "cases");
  for (Operator op : request.operators)
    for (const OperatorCase& shape : cases) {
      for (DType in : operator_inputs(op)) check_case(op, in, shape, request, run, report.rows);
      progress.advance(1);
    }
  progress.end();
  return report;
}

Json to_json(const NumericsReport& report) {
  Json rows = Json::array();
  for (const NumericsRow& row : report.rows) rows.push_back(to_json(row, report.copy_bandwidth));
  Json json = {{"passed", report.passed()}, {"rows", rows}};
  if (report.copy_bandwidth) json["copy_bytes_per_second"] = *report.copy_bandwidth;
  return json;
}

std::string to_text(const NumericsReport& report) {
  std::vector<std::vector<std::string>> table = {
      {"operator", "types", "shape", "input", "max abs", "mean abs", "max rel", "mean rel", "of bound"}};
  if (report.copy_bandwidth)
    for (const char* heading : {"us", "GB/s", "of DRAM"}) table[0].emplace_back(heading);
  table[0].emplace_back("result");
  std::string failures;
  for (const NumericsRow& row : report.rows) {
    table.push_back(cells_of(row, report.copy_bandwidth));
    if (!row.errors.passed()) failures += failure_text(row) + "\n";
  }
  std::string text = table_text(table);
  text += "Errors against float64; in brackets what rounding the exact result to the output type costs by itself.\n";
  text +=
      "Bound of softmax and norms with F32 output, as published: 5e-6 absolute, 1e-5 relative. F16 and BF16 round\n";
  text +=
      "by up to 2^-11 and 2^-8 alone, which no kernel can be below: there, half a unit in the last place and a rest.\n";
  if (report.copy_bandwidth)
    text += fmt::format("DRAM: {:.0f} GB/s, read and written by a copy\n", *report.copy_bandwidth * 1e-9);
  return text + failures;
}

void require_passed(const NumericsReport& report) {
  for (const NumericsRow& row : report.rows)
    if (!row.errors.passed()) throw CheckError("numerics: " + failure_text(row));
}

}  // namespace thimble
