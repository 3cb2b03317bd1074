// slope_search.h: the c of the method `slope` whose real artifact meets a target: a byte limit, or a gap in bits per
// byte. What is found is distilled (distill.h) and then meets the target as it is stored.
#pragma once

#include <functional>
#include <map>
#include <optional>

#include "packer/artifact.h"
#include "quantizer/console.h"
#include "quantizer/cross_terms.h"
#include "quantizer/slope_fill.h"
#include "quantizer/slope_outcome.h"

namespace thimble {

// Nothing at all: about kDefaultBits for each quantized weight, without a search.
struct SlopeTarget {
  std::optional<double> bits_per_weight;  // of the whole artifact, by all parameters of the model
  std::optional<uint64_t> limit_bytes;    // of the artifact; what budget and bits per weight come to
  std::optional<double> bpb_gap;
  std::optional<double> log2_c;  // no search
};

// Of an artifact with so many bits for each parameter of the model.
uint64_t bytes_at(double bits_per_weight, int64_t parameters);

// The gap in bits per byte between a model and the original.
using GapMeter = std::function<double(const QuantizedModel&)>;

class SlopeSearch {
 public:
  // `fixed`: the model with all tensors but those of `layers`. `cross_terms`: who solves the
  // layers of what was found once more; null: nobody. `distill`: null for none.
  SlopeSearch(QuantizedModel fixed, const SlopeLayers& layers, const CrossTermSolver* cross_terms,
              const EncodeOptions& encode, const DistillInput* distill, GapMeter measure_gap, StageTimes& times,
              Progress& progress);

  // - A limit: an artifact within it, at least SlopeFill::kFill of it. A CheckError that names the smallest artifact
  //   there is, before anything is solved where even that is above the limit.
  // - A gap: the smallest artifact found whose gap is at most that, kCloseGap of it where the model allows.
  //   A CheckError when there is none, or when it is above the limit.
  SlopeOutcome run(const SlopeTarget& target);

  static constexpr double kCloseGap = 0.95;
  static constexpr int kMaxEncodes = 12;
  static constexpr double kDefaultBits = 3;

 private:
  // `crossed`: solved with cross terms, where there are any.
  SlopeOutcome encode(double log2_c, bool crossed = false);
  SlopeOutcome cross(SlopeOutcome outcome, double wanted_bytes);
  SlopeOutcome fit_bytes(uint64_t limit);
  SlopeOutcome approach(SlopeOutcome nearest, double wanted_bytes);
  double next_log2_c(double wanted_bytes);
  double next_log2_c_of_gap(const std::map<double, double>& gaps, double wanted) const;
  double bits_per_weight(double bytes) const;
  double predicted_log2_c(double bytes) const;
  bool fill(uint64_t limit, const RowChanges& changes, SlopeOutcome& outcome);
  void tune(std::optional<uint64_t> limit, SlopeOutcome& outcome);
  SlopeOutcome fit_gap(double gap, double first_log2_c);

  // The smallest artifact of the method: all codes are 0. 0: no file may hold so large a model.
  uint64_t smallest_bytes();
  int64_t reserve_bytes(const SlopeOutcome& outcome, uint64_t limit);

  QuantizedModel fixed_;
  const SlopeLayers& layers_;
  const CrossTermSolver* cross_terms_;
  const EncodeOptions& encode_;
  const DistillInput* distill_;
  GapMeter measure_gap_;
  StageTimes& times_;
  Progress& progress_;
  SectionCache cache_;
  SlopeFill fill_;
  double lowest_log2_c_;
  double smallest_bytes_ = 0;
  double shrinkage_;
  std::map<double, double> bytes_;  // of artifacts by log2_c, with this shrinkage
  int64_t encodes_ = 0;
  std::vector<EncodedPoint> encoded_;
};

}  // namespace thimble
