// audit.h: is an evaluation what it claims to be? Each check looks for one known way to report a wrong number.
// In: the evaluation that was run, with the scorer, tokens and tokenizer it used. Out: named checks with a measurement.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/score/bpb.h"
#include "eval/tokenizers/tokenizer.h"
#include "runtime/base/json.h"
#include "runtime/base/progress.h"

namespace thimble {

struct AuditCheck {
  std::string name;
  bool passed = false;
  std::string detail;   // what was compared and found
  double measured = 0;  // the number the verdict rests on; its unit is in `detail`
};

struct AuditReport {
  std::vector<AuditCheck> checks;
  bool passed() const;  // there are checks, and all passed
};

Json to_json(const AuditReport& report);
// One line per check.
std::string to_text(const AuditReport& report);

struct AuditOptions {
  int64_t samples = 4;  // random positions probed, besides three fixed ones; each costs about five batches of windows
  uint64_t seed = 1;
  // How far score() may lie from log_probabilities(): both round the same logits.
  double score_tolerance_nats = 1e-3;
};

constexpr double kNormalisationTolerance = 1e-5;

// The text that the tokens were made from, where it is at hand.
struct SourceText {
  std::string_view text;
  std::string path;
};

// All checks below; the scorer is probed only when the windows cover the scores. Tokens must lie in the vocabulary, as
// evaluate() has made sure.
AuditReport audit(Scorer& scorer, std::span<const Token> tokens, const Tokenizer& tokenizer,
                  const Evaluation& evaluation, const std::optional<SourceText>& source, const AuditOptions& options,
                  Progress& progress);

// Every target in [0, targets) lies in exactly one window, every window's context fits. Measured: targets that do not.
AuditCheck audit_coverage(std::span<const Window> windows, int64_t targets, int64_t context);

// The reported loss is the sum of the scores. Measured: the difference in nats.
AuditCheck audit_loss_total(const Evaluation& evaluation);

// What is said of a report says how many of the targets were scored, and calls a subset one. `printed` is what commands
// print of it (scored_text()), `json` what they put in JSON. Measured: targets left out.
AuditCheck audit_subset_label(const std::string& printed, const Json& json, int64_t scored_targets,
                              int64_t available_targets);

// The reported bytes are those of the text the library decodes the targets to; byte tokens that do not make up UTF-8
// are one byte each. Measured: bytes too many.
AuditCheck audit_byte_total(const BpbReport& report, const Tokenizer& tokenizer, std::span<const Token> tokens);

// The tokens are those of the text, none dropped, and the bytes counted are at most the text's own (a normaliser may
// lose some, which raises BPB; more would flatter it). Measured: bytes counted / bytes of text, in whole documents.
AuditCheck audit_source_text(const BpbReport& report, const Tokenizer& tokenizer, std::span<const Token> tokens,
                             const SourceText& source);

// Probes the scorer at a few positions, within the batches of windows that the evaluation used:
//   determinism           scoring again gives the reported scores, bit for bit
//   causality             changing the tokens after a target moves neither its score nor an earlier one
//   target independence   changing a target moves neither the distribution at it nor an earlier score
//   normalisation         the probabilities at a position sum to 1
//   score                 score() is the distribution's entry, for the true target and for another one in its place
std::vector<AuditCheck> audit_scorer(Scorer& scorer, std::span<const Token> tokens, const Evaluation& evaluation,
                                     const AuditOptions& options, Progress& progress);

}  // namespace thimble
