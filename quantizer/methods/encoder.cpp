// encoder.cpp: see encoder.h.
#include "quantizer/methods/encoder.h"

namespace thimble {

static auto members(PackedSection& section) {
  auto& [kind, codec, layout, raw_bytes, stored_bytes, checksum] = section.entry;
  return std::tie(kind, codec, layout, raw_bytes, stored_bytes, checksum, section.stored);
}

ByteVector Encoder::artifact(const QuantizedModel& model, const EncodeOptions& options, Progress& progress) {
  auto encode = [&] { return work_.of_root([&] { return encode_artifact(model, options, cache_, progress); }); };
  return times_ ? times_->time("encode", encode) : encode();
}

std::shared_ptr<const PackedSection> Encoder::find(uint64_t key) const {
  const std::optional<ByteVector> bytes = work_.folder().load({WorkKind::kSection, key});
  return bytes ? std::make_shared<const PackedSection>(unpack<PackedSection>(*bytes)) : nullptr;
}

void Encoder::insert(uint64_t key, const PackedSection& section) const {
  if (work_.folder().keeps()) work_.folder().save({WorkKind::kSection, key}, pack(section));
}

}  // namespace thimble
