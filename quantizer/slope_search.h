// slope_search.h: the c of the method `slope` whose real artifact meets a target: a byte budget, bits per weight, or a
// gap in bits per byte.
#pragma once

#include <functional>
#include <optional>

#include "packer/artifact.h"
#include "quantizer/console.h"
#include "quantizer/slope_layers.h"

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

struct SlopeOutcome {
  double log2_c = 0;
  QuantizedModel model;
  ByteVector artifact;
  std::map<std::string, SlopeReport> reports;
  int64_t encodes = 0;  // artifacts encoded on the way
};

class SlopeSearch {
 public:
  // `fixed`: the model with all tensors but those of `layers`. `measure_gap` (for bpb_gap only): the gap in bits per
  // byte of an artifact.
  SlopeSearch(QuantizedModel fixed, const SlopeLayers& layers, const EncodeOptions& encode, StageTimes& times,
              Progress& progress, std::function<double(const SlopeOutcome&)> measure_gap);

  // The artifact with the most bytes found within the limit, at least kFill of it; with a gap for target, the smallest
  // found whose gap is at most that. Throws CheckError when none is.
  SlopeOutcome run(const SlopeTarget& target);

  // Room to leave within the limit for what is added after the search, from the first artifact.
  using Reserve = std::function<int64_t(const SlopeOutcome&, SectionCache&)>;
  void set_reserve(Reserve reserve) { reserve_ = std::move(reserve); }
  SectionCache& cache() { return cache_; }

  static constexpr double kFill = 0.999;
  static constexpr int kMaxEncodes = 12;
  static constexpr double kDefaultBits = 3;

 private:
  SlopeOutcome encode(double log2_c);
  SlopeOutcome fit_bytes(uint64_t limit);
  SlopeOutcome fit_gap(double gap, double first_log2_c);

  QuantizedModel fixed_;
  const SlopeLayers& layers_;
  const EncodeOptions& encode_;
  StageTimes& times_;
  Progress& progress_;
  std::function<double(const SlopeOutcome&)> measure_gap_;
  SectionCache cache_;
  Reserve reserve_;
  double shrinkage_;
  int64_t encodes_ = 0;
};

}  // namespace thimble
