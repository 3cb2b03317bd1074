// encoder.h: the artifacts of the models that a method tries on its way. Rank 0 packs them, and keeps each packed
// section as a piece of the work; every rank gets the bytes.
#pragma once

#include <memory>

#include "packer/artifact.h"
#include "quantizer/console/console.h"
#include "quantizer/methods/shared_work.h"

namespace thimble {

class Encoder final : private SectionCache::Store {
 public:
  // Both must outlive it. `times`: of a stage "encode"; null: another stage's. `working_bytes`: what sections that are
  // packed at a time may take (SectionCache).
  Encoder(const SharedWork& work, StageTimes* times, uint64_t working_bytes = UINT64_MAX)
      : work_(work), times_(times), cache_(this, SectionCache::kMostBytes, working_bytes) {}

  // encode_artifact(). Collective.
  ByteVector artifact(const QuantizedModel& model, const EncodeOptions& options, Progress& progress) {
    auto encode = [&] { return work_.of_root([&] { return encode_artifact(model, options, cache_, progress); }); };
    return times_ ? times_->time("encode", encode) : encode();
  }

 private:
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
};

}  // namespace thimble
