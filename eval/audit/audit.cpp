// audit.cpp: the checks that need no model, and the report.
#include "eval/audit/audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/count_text.h"

namespace thimble {

bool AuditReport::passed() const {
  return !checks.empty() && std::all_of(checks.begin(), checks.end(), [](const AuditCheck& c) { return c.passed; });
}

Json to_json(const AuditReport& report) {
  Json checks = Json::array();
  for (const AuditCheck& check : report.checks)
    checks.push_back({{"name", check.name},
                      {"passed", check.passed},
                      {"detail", check.detail},
                      // JSON has no NaN: a measurement that failed to be a number is null.
                      {"measured", std::isfinite(check.measured) ? Json(check.measured) : Json(nullptr)}});
  return {{"checks", checks}, {"passed", report.passed()}};
}

std::string to_text(const AuditReport& report) {
  std::string text;
  for (const AuditCheck& check : report.checks)
    text += fmt::format("{}  {}: {}\n", check.passed ? "pass" : "FAIL", check.name, check.detail);
  return text;
}

AuditCheck audit_coverage(std::span<const Window> windows, int64_t targets, int64_t context) {
  std::vector<uint8_t> times_scored(targets, 0);
  int64_t bad_windows = 0, outside = 0;
  for (const Window& window : windows) {
    bool fits = 0 <= window.first_token && window.first_token <= window.target_begin &&
                window.target_begin < window.target_end && window.input_count() <= context;
    bad_windows += fits ? 0 : 1;
    for (int64_t target = window.target_begin; target < window.target_end; ++target) {
      if (target < 0 || target >= targets) {
        ++outside;
      } else if (times_scored[target] < 2) {
        ++times_scored[target];
      }
    }
  }
  auto missed = std::count(times_scored.begin(), times_scored.end(), 0);
  auto repeated = std::count(times_scored.begin(), times_scored.end(), 2);
  return {
      .name = "coverage",
      .passed = targets > 0 && missed == 0 && repeated == 0 && outside == 0 && bad_windows == 0,
      .detail = fmt::format("{} in {}: {} not scored, {} scored more than once, {} outside the stream; {} malformed "
                            "or longer than the context of {}",
                            counted(targets, "target"), counted(windows.size(), "window"), missed, repeated, outside,
                            counted(bad_windows, "window"), context),
      .measured = static_cast<double>(missed + repeated + outside)};
}

AuditCheck audit_loss_total(const Evaluation& evaluation) {
  const BpbReport& report = evaluation.report;
  const double sum = total_loss_nats(evaluation.nll_nats);
  return {.name = "loss total",
          .passed = sum == report.loss_nats && static_cast<int64_t>(evaluation.nll_nats.size()) == report.targets,
          .detail = fmt::format("reported {} nats over {}; the sum of {} is {}", report.loss_nats,
                                counted(report.targets, "target"), counted(evaluation.nll_nats.size(), "score"), sum),
          .measured = report.loss_nats - sum};
}

AuditCheck audit_subset_label(const std::string& printed, const Json& json, int64_t scored_targets,
                              int64_t available_targets) {
  const bool is_subset = scored_targets < available_targets;
  // From the counts, not from the report.
  const std::string truth = is_subset ? fmt::format("first {} of {} targets (subset)", count_text(scored_targets),
                                                    count_text(available_targets))
                            : available_targets == 1 ? "the only target"
                                                     : fmt::format("all {} targets", count_text(available_targets));
  const bool json_is_true = json.at("is_subset") == is_subset && json.at("targets") == scored_targets &&
                            json.at("total_targets") == available_targets && json.at("scope") == truth;
  return {.name = "subset label",
          .passed = scored_targets > 0 && scored_targets <= available_targets && printed.starts_with(truth + ",") &&
                    json_is_true,
          .detail = fmt::format("printed \"{}\"{}; the tokens hold {}, {} of them scored", printed,
                                json_is_true ? "" : ", the JSON says something else",
                                counted(available_targets, "target"), count_text(scored_targets)),
          .measured = static_cast<double>(available_targets - scored_targets)};
}

AuditReport audit(Scorer& scorer, std::span<const Token> tokens, const Tokenizer& tokenizer,
                  const Evaluation& evaluation, const std::optional<SourceText>& source, const AuditOptions& options,
                  Progress& progress) {
  const BpbReport& report = evaluation.report;
  AuditReport result;
  result.checks.push_back(audit_coverage(evaluation.windows, report.targets, report.context));
  result.checks.push_back(audit_loss_total(evaluation));
  result.checks.push_back(audit_subset_label(scored_text(report), to_json(report),
                                             static_cast<int64_t>(evaluation.nll_nats.size()),
                                             static_cast<int64_t>(tokens.size()) - 1));
  result.checks.push_back(audit_byte_total(report, tokenizer, tokens));
  if (source) result.checks.push_back(audit_source_text(report, tokenizer, tokens, *source));
  // Windows that do not cover the scores give nothing to probe; the report fails already.
  if (!result.checks.front().passed) return result;
  for (AuditCheck& check : audit_scorer(scorer, tokens, evaluation, options, progress))
    result.checks.push_back(std::move(check));
  return result;
}

}  // namespace thimble
