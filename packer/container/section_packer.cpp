// section_packer.cpp: tries the candidates and keeps the smallest.
#include "packer/container/section_packer.h"

#include "packer/container/layout_choice.h"
#include "runtime/base/hash.h"

namespace thimble {
namespace {

// For sections that the codec asked for does not take.
constexpr CodecId kCodecOfTheRest = CodecId::kXz;

PackedSection pack_smallest(const ContentShape& shape, Bytes content, const EncodeOptions& options) {
  std::optional<PackedSection> best;
  std::optional<CodecId> asked = options.codec;
  if (asked && !codec_of(*asked).takes(shape, LayoutId::kPlain)) asked = kCodecOfTheRest;
  for (const Codec& codec : all_codecs()) {
    bool wanted = !asked || *asked == codec.id || codec.id == CodecId::kNone;
    if (!wanted) continue;
    for (LayoutId layout : layout_candidates(codec.id, shape, content)) {
      PackedSection packed = pack_section_as(shape, content, layout, codec.id);
      if (!best || packed.stored.size() < best->stored.size()) best = std::move(packed);
    }
  }
  return std::move(*best);
}

}  // namespace

EncodeOptions encode_options_from(std::string_view codec_name) {
  if (codec_name == "auto") return {std::nullopt};
  std::string names = "auto";
  for (const Codec& codec : all_codecs()) {
    if (codec.name == codec_name) return {codec.id};
    names += ", " + std::string(codec.name);
  }
  throw UsageError("codec '" + std::string(codec_name) + "' is unknown, allowed: " + names);
}

std::shared_ptr<const PackedSection> SectionCache::pack(const ContentShape& shape, Bytes content,
                                                        const EncodeOptions& options) {
  const Key key{shape, options.codec, xxh3(content)};
  {
    std::lock_guard lock(mutex_);
    if (auto found = sections_.find(key); found != sections_.end()) return found->second;
  }
  auto packed = std::make_shared<const PackedSection>(pack_smallest(shape, content, options));
  std::lock_guard lock(mutex_);
  return sections_.insert_or_assign(key, std::move(packed)).first->second;
}

size_t SectionCache::size() const {
  std::lock_guard lock(mutex_);
  return sections_.size();
}

PackedSection pack_section_as(const ContentShape& shape, Bytes content, LayoutId layout, CodecId codec) {
  ByteVector raw = apply_layout(layout, shape, content);
  ByteVector stored = codec_of(codec).compress(raw, shape);
  SectionEntry entry{
      shape.kind, codec, layout, static_cast<uint32_t>(raw.size()), static_cast<uint32_t>(stored.size()), xxh3(stored)};
  return {entry, std::move(stored)};
}

}  // namespace thimble
