// quantizer_binding.cpp: method slope on statistics that were collected elsewhere: thimble._thimble.quantize.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "python/asked_model.h"
#include "python/bindings.h"
#include "quantizer/pipeline/quantize_job.h"
#include "quantizer/pipeline/quantize_options.h"
#include "quantizer/pipeline/run_plan.h"
#include "quantizer/ranks/join_ranks.h"
#include "quantizer/reports/quantize_report.h"

namespace thimble {
namespace {

namespace nb = nanobind;

// Which method slope has no use for.
constexpr const char* kBitsOfTrace = "5,6";

// Cross terms, learning and distillation, for which the program itself would have to run the model, are those of
// `asked`.
void run_outside(AskedModel& asked, QuantizeRequest& request, double cross_term, double cross_damping,
                 const CodeLearnerOptions& codes, int64_t distill_steps) {
  request.slope.cross_term = cross_term;
  request.slope.cross_damping = cross_damping;
  if (cross_term > 0) request.outside.pairs = &asked;
  request.codes = codes;
  request.tuner.steps = distill_steps;
  if (asked.learns() || asked.distills()) request.outside.teacher = &asked;
}

// What `thimble quantize` does with a file of statistics, without what runs the model, which `ask` does where it is not
// None (AskedModel); its JSON. Progress: a line for each stage on standard error.
std::string quantize(const std::string& checkpoint, const std::string& config, const std::string& hessians,
                     const std::string& output, std::optional<uint64_t> budget_bytes,
                     std::optional<double> bits_per_weight, std::optional<int64_t> min_elements, bool fisher,
                     const std::string& work_folder, bool quiet, nb::object ask,
                     std::vector<std::vector<std::string>> inputs, const std::string& text_key, double cross_term,
                     double cross_damping, int64_t learn_steps, int64_t learn_batch, double learn_rate, bool learn_rows,
                     int64_t distill_steps) {
  std::optional<AskedModel> asked;
  if (!ask.is_none())
    asked.emplace(nb::cast<nb::callable>(ask), std::move(inputs), text_key, learn_steps > 0, learn_rows,
                  distill_steps > 0);
  const nb::gil_scoped_release unlocked;
  CommonOptions common;
  common.quiet = quiet;
  QuantizeRequest request;
  request.checkpoint = checkpoint;
  request.config = config;
  request.output = output;
  request.hessians = hessians;
  request.budget_bytes = budget_bytes;
  request.slope_target.bits_per_weight = bits_per_weight;
  request.fisher = fisher;
  request.cross_term = 0;
  request.distill_steps = 0;
  request.calibration.sequences = request.calibration.length = 0;  // no text is read
  request.work_folder = work_folder;
  request.device = open_device("cpu", common.numerics);
  choose_method(request, MethodKind::kSlope, {min_elements, "", false});
  StageTimes times;
  OpenedCheckpoint source = times.time("open", [&] { return OpenedCheckpoint(checkpoint, config); });
  finish_options(request, {MethodKind::kSlope}, kBitsOfTrace, source.spec());
  if (asked)
    run_outside(*asked, request, cross_term, cross_damping, {learn_steps, learn_batch, learn_rate}, distill_steps);
  const std::unique_ptr<Ranks> ranks = join_ranks();
  Console console(common);
  console.plan(quantize_plan(request, false, std::nullopt));
  QuantizeReport report;
  report.outcome = run_quantize(request, source, *ranks, times, console);
  report.request = request;
  report.device = "cpu";
  return to_json(report, times).dump();
}

}  // namespace

void bind_quantizer(nb::module_& module) {
  module.def("quantize", &quantize, nb::arg("checkpoint"), nb::arg("config"), nb::arg("hessians"), nb::arg("output"),
             nb::arg("budget_bytes").none(), nb::arg("bits_per_weight").none(), nb::arg("min_elements").none(),
             nb::arg("fisher"), nb::arg("work_folder"), nb::arg("quiet"), nb::arg("ask").none() = nb::none(),
             nb::arg("inputs") = std::vector<std::vector<std::string>>(), nb::arg("text_key") = "",
             nb::arg("cross_term") = 0.0, nb::arg("cross_damping") = SlopeOptions().cross_damping,
             nb::arg("learn_steps") = 0, nb::arg("learn_batch") = CodeLearnerOptions().batch,
             nb::arg("learn_rate") = CodeLearnerOptions().rate, nb::arg("learn_rows") = false,
             nb::arg("distill_steps") = 0);
  module.attr("FREE_CODES") = kFreeCodes;
  // Whether the program runs models with this config.json.
  module.def(
      "runs",
      [](const std::string& config) { return find_family(parse_json(as_bytes_of(config), "config"), {}) != nullptr; },
      nb::arg("config"));
}

}  // namespace thimble
