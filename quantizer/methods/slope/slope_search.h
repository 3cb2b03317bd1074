// slope_search.h: the c of the method `slope` whose real artifact meets a target: a byte limit, or a gap in bits per
// byte. Of what is found codes are learned (learn_codes.h) and gains distilled (distill.h), and then it meets the
// target as it is stored.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <tuple>

#include "packer/artifact.h"
#include "quantizer/console/console.h"
#include "quantizer/methods/slope/cross_terms.h"
#include "quantizer/methods/slope/slope_fill.h"
#include "quantizer/methods/slope/teacher.h"

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
  // `fixed`: the model with all tensors but those of the layers. `cross_terms`: who solves the
  // layers of what was found once more; null: nobody. `teacher`: null for neither distillation nor learning.
  SlopeSearch(QuantizedModel fixed, const SlopeTools& tools, const CrossTerms* cross_terms, Teacher* teacher,
              GapMeter measure_gap);

  // - A limit: an artifact within it, filled (is_filled()) or with a fill_reason. A CheckError that names the smallest
  //   artifact there is, before anything is solved where even that is above the limit. All matrices are solved at most
  //   kMaxEncodes times, twice more with cross terms, and where sizes leap for each of up to three runs of
  //   bridge_limit().
  // - A gap: the smallest artifact found whose gap is at most that, kCloseGap of it where the model allows, and the
  //   smallest there is where the gap is met by that. A CheckError when there is none, or when it is above the limit.
  //   kMaxEncodes, and kGapHalvings runs of bridge_limit().
  // A codec that takes far longer than rans encodes what was found with rans, and the few artifacts that tell how sizes
  // with the one follow from sizes with the other.
  SlopeOutcome run(const SlopeTarget& target);

  static constexpr double kCloseGap = 0.95;
  static constexpr int kMaxEncodes = 12;
  static constexpr int kGapHalvings = 6;
  static constexpr double kDefaultBits = 3;

 private:
  // All tensors but those of the layers, as a model with this common step has them.
  QuantizedModel fixed_at(double log2_c) const;
  // With search_encode_, as all of the search until finish(). `crossed`: solved with cross terms, where there are any.
  SlopeOutcome encode(double log2_c, bool crossed = false);
  // Bytes that an artifact is going to have in the end.
  double size_of(const SlopeOutcome& outcome) const;
  // Bytes with the codec asked for over bytes with search_encode_, of one in so many tensors.
  double measure_ratio(const SlopeOutcome& outcome, size_t one_in);
  // Sets ratio_ by a sample of the tensors.
  void calibrate(const SlopeOutcome& outcome);
  // Encodes with what was asked for.
  void finish(SlopeOutcome& outcome);
  // Of so many bytes or near to them, with cross terms.
  SlopeOutcome cross(double log2_c, double wanted_bytes);
  // How far the search has come: all that one without cross terms leaves to what follows.
  struct State {
    double log2_c = 0, wanted_bytes = 0;  // found, and wanted of an artifact before distillation
    double ratio = 1;        // bytes with the codec asked for over bytes with search_encode_, near what is searched for
    double ratio_scale = 1;  // ratio of all tensors over that of the sample
    int64_t encodes = 0;
    std::vector<EncodedPoint> encoded;

    friend auto members(State& s) {
      return std::tie(s.log2_c, s.wanted_bytes, s.ratio, s.ratio_scale, s.encodes, s.encoded);
    }
  };
  // Of the aim, less what distillation is going to take.
  SlopeOutcome search_bytes(uint64_t limit, double aim, uint64_t smallest);
  uint64_t search_key(uint64_t limit) const;
  SlopeOutcome fit_bytes(uint64_t limit);
  SlopeOutcome fit_step(double log2_c);
  SlopeOutcome approach(SlopeOutcome nearest, double wanted_bytes);
  SlopeOutcome approach_with_ratio(SlopeOutcome nearest, double wanted_bytes);
  double next_log2_c(double wanted_bytes);
  double next_log2_c_of_gap(const std::map<double, double>& gaps, double wanted) const;
  double predicted_log2_c(double bytes) const;
  bool fill(uint64_t limit, const RowChanges& changes, SlopeOutcome& outcome);
  void tune(std::optional<uint64_t> limit, const EncodeOptions& encode, SlopeOutcome& outcome);
  SlopeOutcome with_learned(size_t block, double divergence, std::optional<uint64_t> limit, const EncodeOptions& encode,
                            const SlopeOutcome& outcome);
  bool learn(std::optional<uint64_t> limit, const EncodeOptions& encode, SlopeOutcome& outcome);
  bool distill(std::optional<uint64_t> limit, const EncodeOptions& encode, SlopeOutcome& outcome);
  double fit_codes(const LearnedCodes& learned, uint64_t limit, const EncodeOptions& encode, SlopeOutcome& outcome);
  bool learns() const { return teacher_ && teacher_->learns(); }
  bool distills() const { return teacher_ && teacher_->distills(); }
  SlopeOutcome fit_gap(double gap, double first_log2_c);
  struct MetGap {
    SlopeOutcome outcome;  // with search_encode_
    double gap;
  };
  std::optional<MetGap> follow_gap(double gap, double first_log2_c, double& smallest_gap);
  SlopeOutcome halve_bytes(double gap, SlopeOutcome best);

  bool can_hold_zeros() const;
  // The smallest artifact of the method: all codes are 0.
  SlopeOutcome zeros();
  // Bytes of the model, which has no others, with these matrices; 0: no file may hold so large a model.
  uint64_t bytes_with(QuantizedModel model, std::vector<QuantizedTensor> matrices, const EncodeOptions& encode);
  int64_t reserve_bytes(const SlopeOutcome& outcome, uint64_t limit);

  // `wanted`, or near the end of the interval that it is at or beyond.
  static double inside(double wanted, double low, double high);
  static constexpr double kLongestMove = 4;  // octaves, at most, beyond what was seen

  QuantizedModel fixed_;
  const SlopeTools& tools_;
  const CrossTerms* cross_terms_;
  const EncodeOptions search_encode_;
  Teacher* teacher_;
  GapMeter measure_gap_;
  const double lowest_log2_c_;
  double fixed_bytes_ = 0;  // of an artifact without its codes and the steps of its rows
  State state_;
  std::map<double, uint64_t> bytes_;  // with search_encode_, by log2_c
};

}  // namespace thimble
