// section_packer.cpp: chooses candidates, tries them and keeps the smallest.
#include "packer/container/section_packer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "packer/codecs/codec.h"
#include "runtime/base/hash.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

// What is asked for of a section of this shape; nothing: the smallest.
std::optional<CodecId> codec_for(const ContentShape& shape, const EncodeOptions& options) {
  if (!options.codec || codec_takes(*options.codec, shape, LayoutId::kPlain)) return options.codec;
  return options.portable ? CodecId::kNone : CodecId::kXz;
}

// Sections of at most this many content bytes are compressed in every layout. Floats are compared up to the second
// bound; above it splitting bytes always pays.
constexpr uint64_t kTryAllCodes = 16 << 10;
constexpr uint64_t kTryAllFloats = 256 << 10;

// Half-octave classes of a mean in 1/256 units: 0, 1, then two per power of two.
constexpr int kClasses = 32;
int magnitude_class(unsigned mean_256) {
  if (mean_256 < 2) return static_cast<int>(mean_256);
  int octave = std::bit_width(mean_256) - 1;
  int half = static_cast<int>((mean_256 >> (octave - 1)) & 1);
  return 2 * octave + half;
}

std::vector<LayoutId> code_candidates(const ContentShape& shape, Bytes content) {
  bool by_columns = adaptive_code_bits(content, shape.rows, shape.columns, true) <
                    adaptive_code_bits(content, shape.rows, shape.columns, false);
  std::vector<LayoutId> candidates = {by_columns ? LayoutId::kColumns : LayoutId::kPlain};
  // Narrow codes: a prefix code wastes a part of a bit on every symbol, which digits share among several codes; but
  // bytes keep the neighbours that contexts are made of. Either may win.
  if (digits_per_byte(shape.max_code) > 1)
    candidates.push_back(by_columns ? LayoutId::kDigitColumns : LayoutId::kDigits);
  return candidates;
}

bool chooses_by_content(const ContentShape& shape) {
  return shape.kind == SectionKind::kCodes && !shape.has_stepped_codes();
}

// One way to pack a section of a list.
struct Attempt {
  size_t section = 0;
  LayoutId layout = LayoutId::kPlain;
  CodecId codec = CodecId::kNone;
};

std::vector<Attempt> attempts_of(size_t section, const ContentShape& shape, Bytes content,
                                 const EncodeOptions& options) {
  std::vector<Attempt> attempts;
  const std::optional<CodecId> asked = codec_for(shape, options);
  for (const Codec& codec : all_codecs())
    if (!asked || *asked == codec.id || codec.id == CodecId::kNone)
      for (LayoutId layout : layout_candidates(codec.id, shape, content))
        attempts.push_back({section, layout, codec.id});
  return attempts;
}

// In time, roughly: byte compressors take a microsecond or so for a byte, the weight coder far less, copying nothing.
uint64_t cost_of(const Attempt& attempt, const ContentShape& shape) {
  if (attempt.codec == CodecId::kNone) return 0;
  return shape.content_bytes() / (attempt.codec == CodecId::kRans ? 64 : 1);
}

uint64_t key_of(const ContentShape& shape, std::optional<CodecId> codec, uint64_t content_hash) {
  Hasher hasher;
  for (uint64_t value :
       {static_cast<uint64_t>(shape.kind), shape.rows, shape.columns, static_cast<uint64_t>(shape.element_bytes),
        static_cast<uint64_t>(shape.max_code), static_cast<uint64_t>(shape.trellis_bits),
        codec ? static_cast<uint64_t>(*codec) : UINT64_MAX, content_hash})
    hasher.add(value);
  return hasher.digest();
}

// The smallest result so far of a section's attempts, of equal ones the first in their order.
struct Smallest {
  size_t attempts_left = 0;
  size_t attempt = 0;
  std::shared_ptr<const PackedSection> packed;

  bool beaten_by(uint64_t bytes, size_t other) const {
    return !packed || std::pair(bytes, other) < std::pair(uint64_t{packed->stored.size()}, attempt);
  }
};

}  // namespace

double adaptive_code_bits(Bytes codes, uint64_t rows, uint64_t columns, bool by_columns) {
  std::array<std::array<uint32_t, 256>, kClasses> counts{};
  unsigned mean_256 = 0;  // decays by 1/16 a step
  auto visit = [&](std::byte code) {
    ++counts[static_cast<size_t>(magnitude_class(mean_256))][std::to_integer<size_t>(code)];
    auto magnitude = static_cast<unsigned>(std::abs(static_cast<int>(static_cast<int8_t>(code))));
    mean_256 = mean_256 - mean_256 / 16 + magnitude * 16;
  };
  if (by_columns) {
    for (uint64_t c = 0; c < columns; ++c)
      for (uint64_t r = 0; r < rows; ++r) visit(codes[r * columns + c]);
  } else {
    std::ranges::for_each(codes, visit);
  }
  double bits = 0;
  for (const auto& histogram : counts) {
    double total = 0;
    for (uint32_t count : histogram) total += count;
    for (uint32_t count : histogram)
      if (count > 0) bits -= count * std::log2(count / total);
  }
  return bits;
}

std::vector<LayoutId> layout_candidates(CodecId codec, const ContentShape& shape, Bytes content) {
  std::vector<LayoutId> allowed = allowed_layouts(shape);
  if (codec == CodecId::kRans)
    return shape.kind == SectionKind::kCodes ? std::vector{LayoutId::kPlain} : std::vector<LayoutId>();
  if (codec == CodecId::kNone)
    return {*std::ranges::min_element(allowed, {}, [&](LayoutId layout) { return laid_out_bytes(layout, shape); })};
  if (chooses_by_content(shape))
    return shape.content_bytes() <= kTryAllCodes ? allowed : code_candidates(shape, content);
  if (shape.content_bytes() <= kTryAllFloats) return allowed;
  return {allowed.back()};
}

EncodeOptions encode_options_from(std::string_view name) {
  if (name == "auto") return {std::nullopt};
  std::string names = "auto";
  for (const Codec& codec : all_codecs()) {
    if (codec.name() == name) return {codec.id};
    names += ", " + std::string(codec.name());
  }
  throw UsageError("codec '" + std::string(name) + "' is unknown, allowed: " + names);
}

SectionCache::Claim SectionCache::claim(uint64_t key) {
  {
    std::lock_guard lock(mutex_);
    if (auto found = sections_.find(key); found != sections_.end()) {
      found->second.last_use = calls_;
      return {key, found->second.packed, false};
    }
    if (!under_way_.insert(key).second) return {key, nullptr, false};
  }
  Claim claimed{key, nullptr, true};
  if (!store_) return claimed;
  try {
    claimed.packed = store_->find(key);
  } catch (...) {
    const ClaimsEnd end{*this, {&claimed, 1}};
    throw;
  }
  if (claimed.packed) {
    keep(key, claimed.packed);
    claimed.is_mine = false;
  }
  return claimed;
}

void SectionCache::keep(uint64_t key, std::shared_ptr<const PackedSection> packed) {
  std::lock_guard lock(mutex_);
  sections_.insert_or_assign(key, Kept{std::move(packed), calls_});
  under_way_.erase(key);
  ended_.notify_all();
}

SectionCache::ClaimsEnd::~ClaimsEnd() {
  std::lock_guard lock(cache.mutex_);
  cache.ahead_bytes_ -= ahead_bytes;
  for (const Claim& claim : claims)
    if (claim.is_mine && !claim.packed) cache.under_way_.erase(claim.key);
  cache.ended_.notify_all();
}

std::shared_ptr<const PackedSection> SectionCache::wait_for(uint64_t key) {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return !under_way_.contains(key); });
  const auto found = sections_.find(key);
  return found == sections_.end() ? nullptr : found->second.packed;
}

void SectionCache::forget_oldest() {
  std::lock_guard lock(mutex_);
  uint64_t bytes = 0;
  std::map<uint64_t, uint64_t> of_call;  // bytes by last use
  for (const auto& [key, kept] : sections_) {
    of_call[kept.last_use] += kept.packed->stored.size();
    bytes += kept.packed->stored.size();
  }
  uint64_t oldest = 0;  // to stay
  for (auto use = of_call.begin(); bytes > most_bytes_ && use != of_call.end() && use->first + 2 <= calls_; ++use) {
    bytes -= use->second;
    oldest = use->first + 1;
  }
  std::erase_if(sections_, [oldest](const auto& item) { return item.second.last_use < oldest; });
}

PackedSections SectionCache::pack(std::span<const ContentShape> shapes, const SectionContents& contents,
                                  const EncodeOptions& options, Progress& progress) {
  {
    std::lock_guard lock(mutex_);
    ++calls_;
  }
  uint64_t content_bytes = 0;
  for (const ContentShape& shape : shapes) content_bytes += shape.content_bytes();
  progress.begin("packing", static_cast<int64_t>(content_bytes), "B");
  const auto done = [&](size_t i) { progress.advance(static_cast<int64_t>(shapes[i].content_bytes())); };

  std::vector<Claim> claims(shapes.size());
  const ClaimsEnd end{*this, claims};
  std::vector<uint64_t> hashed;
  for (const ContentShape& shape : shapes) hashed.push_back(shape.content_bytes());
  parallel_within(hashed, working_bytes_, [&](int64_t index) {
    const auto i = static_cast<size_t>(index);
    claims[i] = claim(key_of(shapes[i], codec_for(shapes[i], options), contents.hash(i)));
    if (claims[i].packed) done(i);
  });
  pack_claimed(shapes, contents, options, claims, done);
  PackedSections packed;
  for (size_t i = 0; i < shapes.size(); ++i) {
    // Of another thread, or equal to one before; once more where that failed.
    for (Claim& found = claims[i]; !found.packed;) {
      found.packed = wait_for(found.key);
      if (!found.packed && (found = claim(found.key)).is_mine)
        pack_claimed(shapes.subspan(i, 1), contents.from(i), options, {&found, 1}, [](size_t) {});
      if (found.packed) done(i);
    }
    packed.push_back(std::move(claims[i].packed));
  }
  progress.end();
  forget_oldest();
  return packed;
}

void SectionCache::pack_ahead(const ContentShape& shape, const SectionContents& contents,
                              const EncodeOptions& options) {
  const std::optional<CodecId> codec = codec_for(shape, options);
  const uint64_t bytes = packing_bytes(shape, codec.value_or(CodecId::kBrotli));
  const uint64_t most = working_bytes_ / 2;  // for there is other work meanwhile
  {
    std::lock_guard lock(mutex_);
    if (ahead_bytes_ > 0 && (ahead_bytes_ > most || bytes > most - ahead_bytes_)) return;
    ahead_bytes_ += bytes;
  }
  Claim claimed;
  const ClaimsEnd end{*this, {&claimed, 1}, bytes};
  claimed = claim(key_of(shape, codec, contents.hash(0)));
  pack_claimed({&shape, 1}, contents, options, {&claimed, 1}, [](size_t) {});
}

void SectionCache::pack_claimed(std::span<const ContentShape> shapes, const SectionContents& contents,
                                const EncodeOptions& options, std::span<Claim> claims,
                                const std::function<void(size_t)>& done) {
  std::vector<Smallest> smallest(shapes.size());
  std::vector<std::vector<Attempt>> of_section(shapes.size());
  std::vector<uint64_t> gathered;
  for (size_t i = 0; i < shapes.size(); ++i)
    gathered.push_back(claims[i].is_mine && chooses_by_content(shapes[i]) ? shapes[i].content_bytes() : 0);
  parallel_within(gathered, working_bytes_, [&](int64_t index) {
    const auto i = static_cast<size_t>(index);
    if (!claims[i].is_mine) return;
    const ByteVector content = chooses_by_content(shapes[i]) ? contents.content(i) : ByteVector();
    of_section[i] = attempts_of(i, shapes[i], content, options);
    smallest[i].attempts_left = of_section[i].size();
  });

  std::vector<Attempt> attempts;
  for (const auto& some : of_section) attempts.insert(attempts.end(), some.begin(), some.end());
  std::vector<size_t> order(attempts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater{},
                           [&](size_t a) { return cost_of(attempts[a], shapes[attempts[a].section]); });
  std::vector<uint64_t> taken;
  for (size_t a : order) taken.push_back(packing_bytes(shapes[attempts[a].section], attempts[a].codec));
  std::mutex results;
  parallel_within(taken, working_bytes_, [&](int64_t turn) {
    const size_t a = order[static_cast<size_t>(turn)];
    const auto [i, layout, codec] = attempts[a];
    Smallest& best = smallest[i];
    const auto wins = [&](uint64_t bytes) {
      std::lock_guard lock(results);
      return best.beaten_by(bytes, a);
    };
    std::shared_ptr<const PackedSection> packed;
    if (codec != CodecId::kNone || wins(laid_out_bytes(layout, shapes[i])))  // bytes that are copied can be foretold
      packed = std::make_shared<const PackedSection>(pack_section_as(shapes[i], contents.content(i), layout, codec));
    {
      std::lock_guard lock(results);
      if (packed && best.beaten_by(packed->stored.size(), a))
        std::tie(best.packed, best.attempt) = std::pair(packed, a);
      if (--best.attempts_left > 0) return;
    }
    if (store_) store_->insert(claims[i].key, *best.packed);
    keep(claims[i].key, best.packed);
    claims[i].packed = std::move(best.packed);
    done(i);
  });
}

uint64_t packing_bytes(const ContentShape& shape, CodecId codec) {
  const uint64_t content = shape.content_bytes();
  if (codec == CodecId::kNone) return 2 * content;
  // The weight coder's levels and where their costs are, and what comes out, twice: at most about 8 bits of a code,
  // blocks and then all of them.
  if (codec == CodecId::kRans) return content + shape.elements() * (2 * sizeof(uint16_t) + 2);
  return 3 * content;  // in another layout, and room for what does not shrink
}

size_t SectionCache::size() const {
  std::lock_guard lock(mutex_);
  return sections_.size();
}

PackedSection pack_section_as(const ContentShape& shape, Bytes content, LayoutId layout, CodecId codec) {
  const ByteVector laid_out = layout == LayoutId::kPlain ? ByteVector() : apply_layout(layout, shape, content);
  const Bytes raw = layout == LayoutId::kPlain ? content : Bytes(laid_out);
  ByteVector stored = codec_of(codec).compress(raw, shape);
  SectionEntry entry{
      shape.kind, codec, layout, static_cast<uint32_t>(raw.size()), static_cast<uint32_t>(stored.size()), xxh3(stored)};
  return {entry, std::move(stored)};
}

}  // namespace thimble
