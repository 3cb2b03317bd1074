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
  for (const Codec* codec : all_codecs()) {
    bool wanted = !asked || *asked == codec->id() || codec->id() == CodecId::kNone;
    if (!wanted) continue;
    for (LayoutId layout : layout_candidates(codec->id(), shape, content)) {
      PackedSection packed = pack_section_as(shape, content, layout, codec->id());
      if (!best || packed.stored.size() < best->stored.size()) best = std::move(packed);
    }
  }
  return std::move(*best);
}

}  // namespace

EncodeOptions encode_options_from(std::string_view codec_name) {
  if (codec_name == "auto") return {std::nullopt};
  std::string names = "auto";
  for (const Codec* codec : all_codecs()) {
    if (codec->name() == codec_name) return {codec->id()};
    names += ", " + std::string(codec->name());
  }
  throw UsageError("codec '" + std::string(codec_name) + "' is unknown, allowed: " + names);
}

SectionCache::Key SectionCache::key_of(const ContentShape& shape, const EncodeOptions& options, uint64_t content_hash) {
  return {shape.kind,     shape.rows,         shape.columns, shape.element_bytes,
          shape.max_code, shape.trellis_bits, options.codec, content_hash};
}

uint64_t SectionCache::hash_of(const Key& key) {
  Hasher hasher;
  auto add = [&](const auto& value) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::optional<CodecId>>)
      hasher.add(value ? static_cast<uint64_t>(*value) : UINT64_MAX);
    else
      hasher.add(static_cast<uint64_t>(value));
  };
  std::apply([&](const auto&... values) { (add(values), ...); }, key);
  return hasher.digest();
}

std::shared_ptr<const PackedSection> SectionCache::find(const ContentShape& shape, const EncodeOptions& options,
                                                        uint64_t content_hash) {
  const Key key = key_of(shape, options, content_hash);
  {
    std::lock_guard lock(mutex_);
    if (auto found = sections_.find(key); found != sections_.end()) return found->second;
  }
  auto stored = store_ ? store_->find(hash_of(key)) : nullptr;
  if (!stored) return nullptr;
  std::lock_guard lock(mutex_);
  return sections_.insert_or_assign(key, std::move(stored)).first->second;
}

void SectionCache::insert(const ContentShape& shape, const EncodeOptions& options, uint64_t content_hash,
                          std::shared_ptr<const PackedSection> section) {
  const Key key = key_of(shape, options, content_hash);
  if (store_) store_->insert(hash_of(key), *section);
  std::lock_guard lock(mutex_);
  sections_.insert_or_assign(key, std::move(section));
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

std::shared_ptr<const PackedSection> pack_section(const ContentShape& shape, Bytes content,
                                                  const EncodeOptions& options, SectionCache& cache) {
  const uint64_t content_hash = xxh3(content);
  if (auto found = cache.find(shape, options, content_hash)) return found;
  auto packed = std::make_shared<const PackedSection>(pack_smallest(shape, content, options));
  cache.insert(shape, options, content_hash, packed);
  return packed;
}

}  // namespace thimble
