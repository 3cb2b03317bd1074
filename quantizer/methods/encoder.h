// encoder.h: the artifacts of the models that a method tries on its way. Rank 0 packs them, and keeps each packed
// section as a piece of the work; every rank gets the bytes, or how many they are.
#pragma once

#include <algorithm>
#include <memory>
#include <type_traits>

#include "packer/artifact.h"
#include "quantizer/console/console.h"
#include "quantizer/methods/shared_work.h"
#include "runtime/base/parallel.h"

namespace thimble {

class Encoder final : private SectionCache::Store {
 public:
  // Both must outlive it. `times`: of a stage "encode"; null: another stage's. `working_bytes`: what sections that are
  // packed at a time may take, `cached_bytes`: those that are kept at least (SectionCache).
  Encoder(const SharedWork& work, StageTimes* times, uint64_t working_bytes = UINT64_MAX, uint64_t cached_bytes = 0)
      : work_(work), times_(times), cache_(this, std::max(SectionCache::kMostBytes, cached_bytes), working_bytes) {}

  // Begins to pack the codes of a matrix that models to come will have, while others are solved. From any thread.
  void begin(const QuantizedTensor& tensor, const EncodeOptions& options) {
    if (work_.ranks().is_root()) pack_codes_ahead(tensor, options, cache_, begun_);
  }
  // encode_artifact(). Collective.
  ByteVector artifact(const QuantizedModel& model, const EncodeOptions& options, Progress& progress) {
    return timed([&] { return work_.of_root([&] { return encode_artifact(model, options, cache_, progress); }); });
  }
  // Of that. Collective.
  uint64_t bytes(const QuantizedModel& model, const EncodeOptions& options, Progress& progress) {
    return timed([&] {
      uint64_t bytes = 0;
      if (work_.ranks().is_root()) bytes = count_artifact_bytes(model, options, cache_, progress);
      return work_.of_rank(bytes, 0);
    });
  }

 private:
  template <typename Encode>
  std::invoke_result_t<Encode> timed(const Encode& encode) {
    const auto with_begun = [&] {
      std::invoke_result_t<Encode> encoded = encode();
      begun_.wait();  // for what has been left to encode()
      return encoded;
    };
    return times_ ? times_->time("encode", with_begun) : with_begun();
  }
  std::shared_ptr<const PackedSection> find(uint64_t key) const override {
    const std::optional<ByteVector> bytes = work_.folder().load({WorkKind::kSection, key});
    return bytes ? std::make_shared<const PackedSection>(unpack<PackedSection>(*bytes)) : nullptr;
  }
  void insert(uint64_t key, const PackedSection& section) const override {
    if (work_.folder().keeps()) work_.folder().save({WorkKind::kSection, key}, pack(section));
  }

  const SharedWork& work_;
  StageTimes* times_;
  SectionCache cache_;
  BackgroundTasks begun_;
};

}  // namespace thimble
