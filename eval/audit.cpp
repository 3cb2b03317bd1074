// audit.cpp: the checks that need no model, and the report.
#include "eval/audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

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
  AuditCheck check{.name = "coverage", .passed = false, .detail = {}, .measured = 0};
  check.measured = static_cast<double>(missed + repeated + outside);
  check.passed = targets > 0 && missed == 0 && repeated == 0 && outside == 0 && bad_windows == 0;
  check.detail = fmt::format(
      "{} targets in {} windows: {} not scored, {} scored more than once, {} outside the stream; {} windows malformed "
      "or "
      "longer than the context of {}",
      targets, windows.size(), missed, repeated, outside, bad_windows, context);
  return check;
}

AuditCheck audit_loss_total(const Evaluation& evaluation) {
  const BpbReport& report = evaluation.report;
  AuditCheck check{.name = "loss total", .passed = false, .detail = {}, .measured = 0};
  double sum = total_loss_nats(evaluation.nll_nats);
  check.measured = report.loss_nats - sum;
  check.passed = sum == report.loss_nats && static_cast<int64_t>(evaluation.nll_nats.size()) == report.targets;
  check.detail = fmt::format("reported {} nats over {} targets, the {} scores sum to {}", report.loss_nats,
                             report.targets, evaluation.nll_nats.size(), sum);
  return check;
}

AuditCheck audit_subset_label(const BpbReport& report, int64_t available_targets) {
  const bool is_subset = report.targets < available_targets;
  const bool text_says_subset = to_text(report).find("(subset)") != std::string::npos;
  const bool json_says_subset = to_json(report).at("is_subset").get<bool>();
  AuditCheck check{.name = "subset label", .passed = false, .detail = {}, .measured = 0};
  check.measured = static_cast<double>(available_targets - report.targets);
  check.passed = report.targets >= 0 && report.targets <= available_targets &&
                 report.total_targets == available_targets && text_says_subset == is_subset &&
                 json_says_subset == is_subset;
  check.detail = fmt::format("reported \"{}\"; the tokens hold {} targets, {} of them scored", report.scope(),
                             available_targets, report.targets);
  return check;
}

AuditReport audit(TokenScorer& scorer, std::span<const uint16_t> tokens, const Tokenizer& tokenizer,
                  const Evaluation& evaluation, const std::optional<SourceText>& source, const AuditOptions& options,
                  Progress& progress) {
  const BpbReport& report = evaluation.report;
  AuditReport result;
  result.checks.push_back(audit_coverage(evaluation.windows, report.targets, report.context));
  result.checks.push_back(audit_loss_total(evaluation));
  result.checks.push_back(audit_subset_label(report, static_cast<int64_t>(tokens.size()) - 1));
  result.checks.push_back(audit_byte_total(report, tokenizer, tokens));
  if (source) result.checks.push_back(audit_source_text(report, tokenizer, tokens, *source));
  // Windows that do not cover the scores give nothing to probe; the report fails already.
  if (!result.checks.front().passed) return result;
  for (AuditCheck& check : audit_scorer(scorer, tokens, evaluation, options, progress))
    result.checks.push_back(std::move(check));
  return result;
}

}  // namespace thimble
