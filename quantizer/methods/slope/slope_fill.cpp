// slope_fill.cpp: see slope_fill.h.
#include "quantizer/methods/slope/slope_fill.h"

#include <algorithm>
#include <cmath>

namespace thimble {
namespace {

constexpr int kMaxFillSolves = 16;
// Octaves that a solve moves a matrix's steps by at most, and how often the same one is moved.
constexpr double kMostShift = 0.25;
constexpr int kTries = 2;

struct Candidate {
  std::string name;
  double weights = 0;
  SlopeSetting setting;
  double response = 1;  // bits of a weight per octave, as seen; 1 at high rates
  int tries = kTries;

  double most_bytes() const { return kMostShift * response * weights / 8; }
};

// The smallest matrix that can make up for so many bytes, or the one that comes nearest to it; null when all had their
// tries. A large shift of a small matrix leaves more of the model as it was tuned than a small shift of a large one.
Candidate* choose(std::vector<Candidate>& candidates, double bytes) {
  Candidate* best = nullptr;
  for (Candidate& candidate : candidates) {
    if (candidate.tries == 0) continue;
    const bool is_enough = candidate.most_bytes() >= bytes;
    const bool best_is_enough = best && best->most_bytes() >= bytes;
    if (!best || is_enough > best_is_enough ||
        (is_enough == best_is_enough && (candidate.most_bytes() < best->most_bytes()) == is_enough))
      best = &candidate;
  }
  return best;
}

}  // namespace

bool is_filled(uint64_t bytes, uint64_t limit_bytes) {
  return bytes <= limit_bytes && static_cast<double>(bytes) >= kFill * static_cast<double>(limit_bytes);
}

void change_rows(const RowChanges& changes, QuantizedTensor& tensor) {
  auto found = changes.find(tensor.name);
  if (found == changes.end()) return;
  auto& [trellis_bits, codes, row_steps, column_steps] = std::get<SteppedCodes>(tensor.data);
  if (codes.is_zero()) return;
  for (size_t r = 0; r < row_steps.size(); ++r)
    row_steps[r] = static_cast<int16_t>(std::clamp(row_steps[r] + found->second[r], -kMaxStep, kMaxStep));
}

RowChanges row_changes(const QuantizedModel& solved, const QuantizedModel& tuned) {
  RowChanges changes;
  for (size_t i = 0; i < solved.tensors.size(); ++i) {
    const auto* before = std::get_if<SteppedCodes>(&solved.tensors[i].data);
    const auto* after = std::get_if<SteppedCodes>(&tuned.tensors[i].data);
    if (!before || before->row_steps == after->row_steps) continue;
    std::vector<int>& rows = changes[solved.tensors[i].name];
    for (size_t r = 0; r < before->row_steps.size(); ++r) rows.push_back(after->row_steps[r] - before->row_steps[r]);
  }
  return changes;
}

bool fill_by_shifts(const SlopeTools& tools, uint64_t limit_bytes, const RowChanges& changes, SlopeOutcome& outcome) {
  const auto limit = static_cast<double>(limit_bytes);
  const double aim = (1 + kFill) / 2 * limit;
  auto is_better = [&](double bytes, double than) {
    return (bytes <= limit) != (than <= limit) ? bytes <= limit : std::abs(bytes - aim) < std::abs(than - aim);
  };
  auto bytes = static_cast<double>(outcome.bytes);
  if (is_filled(outcome.bytes, limit_bytes)) return false;
  bool is_changed = false;

  std::vector<Candidate> candidates;
  for (const auto& [name, weights] : tools.layers.sizes())
    candidates.push_back({name, static_cast<double>(weights), outcome.settings.at(name)});
  SilentProgress silent;
  tools.progress.begin("filling the limit", kMaxFillSolves, "matrices");
  for (int i = 0; i < kMaxFillSolves && !is_filled(outcome.bytes, limit_bytes); ++i) {
    Candidate* matrix = choose(candidates, std::abs(aim - bytes));
    if (!matrix) break;
    --matrix->tries;
    const double shift = std::clamp(8 * (aim - bytes) / (matrix->response * matrix->weights), -kMostShift, kMostShift);
    SlopeSetting setting = matrix->setting;
    setting.log2_c -= shift;
    SlopeMatrix solved = std::move(tools.solve({{matrix->name, setting}}, tools.encode, silent).front());
    change_rows(changes, solved.tensor);
    QuantizedTensor& tensor = outcome.tensor(matrix->name);
    std::swap(tensor, solved.tensor);
    const uint64_t encoded = tools.encoder.bytes(outcome.model, tools.encode, silent);
    const auto found = static_cast<double>(encoded);
    matrix->response = std::clamp(8 * (found - bytes) / (shift * matrix->weights), 0.25, 2.0);
    if (is_better(found, bytes)) {
      matrix->setting = outcome.settings.at(matrix->name) = setting;
      bytes = found;
      is_changed = true;
      outcome.bytes = encoded;
      outcome.reports.at(matrix->name) = std::move(solved.report);
    } else {
      std::swap(tensor, solved.tensor);
    }
    tools.progress.advance(1);
  }
  tools.progress.end();
  return is_changed;
}

}  // namespace thimble
