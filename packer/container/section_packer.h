// section_packer.h: from a section's content to its stored bytes: layout, compression, and a cache of results.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "packer/container/container.h"
#include "packer/layout/section_layout.h"
#include "runtime/base/progress.h"

namespace thimble {

struct EncodeOptions {
  // The compressor of every section; nothing: the one that is smallest, section by section (several times slower).
  // A section that does not shrink is stored without compression whatever is asked for, and one that is not for this
  // codec (rans takes codes only) with xz, so that Python's standard library and numpy can read the file.
  std::optional<CodecId> codec = CodecId::kBrotli;
  // What rans does not take is not compressed at all, so that a decoder needs no library for it (packer/embed).
  bool portable = false;
  bool operator==(const EncodeOptions&) const = default;
};

// "brotli", "zstd", "xz", "rans", "none" or "auto". Throws UsageError for other names.
EncodeOptions encode_options_from(std::string_view name);

// What sections hold, by number and from any thread: the content, which is asked for once for each candidate of layout
// and codec, so that memory does not grow with the number of sections, and a hash that tells contents of one shape
// apart, for those that have been compressed before.
struct SectionContents {
  std::function<ByteVector(size_t)> content;
  std::function<uint64_t(size_t)> hash;

  // The i-th and those after it; this must outlive the result.
  SectionContents from(size_t i) const {
    return {[this, i](size_t j) { return content(i + j); }, [this, i](size_t j) { return hash(i + j); }};
  }
};

// Sections already compressed, by a hash of contents, shape and options. Encoding many models that share most
// tensors (the search for a byte budget) compresses each tensor once per precision. Beyond `most_bytes` of compressed
// sections it forgets those used longest ago, but not what the last two models were made of. One pack() at a time,
// beside pack_ahead() from any thread.
class SectionCache {
 public:
  // Where sections outlive the cache; from any thread.
  class Store {
   public:
    virtual ~Store() = default;
    // Null: not there. `key` hashes shape, codec and the contents' hash (XXH3-64).
    virtual std::shared_ptr<const PackedSection> find(uint64_t key) const = 0;
    virtual void insert(uint64_t key, const PackedSection& section) const = 0;
  };
  // `store`, unless null, must outlive the cache. Sections are packed at a time while they take at most `working_bytes`
  // together (packing_bytes()), a single one whatever it takes.
  explicit SectionCache(const Store* store = nullptr, uint64_t most_bytes = kMostBytes,
                        uint64_t working_bytes = UINT64_MAX)
      : store_(store), most_bytes_(most_bytes), working_bytes_(working_bytes) {}

  // Sections of these shapes, in this order, compressed now unless they have been before: every candidate of layout and
  // codec is a task of its own, those that take longest first. Progress: one stage, in bytes of content.
  PackedSections pack(std::span<const ContentShape> shapes, const SectionContents& contents,
                      const EncodeOptions& options, Progress& progress);
  // A section that models to come have, number 0 of `contents`, so that pack() finds it; left to pack() where those
  // that are packed ahead take half of the working bytes already.
  void pack_ahead(const ContentShape& shape, const SectionContents& contents, const EncodeOptions& options);
  size_t size() const;

  static constexpr uint64_t kMostBytes = uint64_t{256} << 20;

 private:
  struct Kept {
    std::shared_ptr<const PackedSection> packed;
    uint64_t last_use = 0;  // number of a call of pack()
  };
  // A section as it was found: packed, or to be packed by who asked, or under way in another thread.
  struct Claim {
    uint64_t key = 0;
    std::shared_ptr<const PackedSection> packed;
    bool is_mine = false;
  };
  Claim claim(uint64_t key);
  // Ends a claim.
  void keep(uint64_t key, std::shared_ptr<const PackedSection> packed);
  // Ends those that an exception has left without.
  struct ClaimsEnd {
    SectionCache& cache;
    std::span<const Claim> claims;
    uint64_t ahead_bytes = 0;  // that were taken for them
    ~ClaimsEnd();
  };
  // What became of what was under way in another thread; null where that failed.
  std::shared_ptr<const PackedSection> wait_for(uint64_t key);
  // Packs those that are the caller's, into the claims. `done` is called with the number of each, from any thread.
  void pack_claimed(std::span<const ContentShape> shapes, const SectionContents& contents, const EncodeOptions& options,
                    std::span<Claim> claims, const std::function<void(size_t)>& done);
  void forget_oldest();

  const Store* store_;
  const uint64_t most_bytes_, working_bytes_;
  mutable std::mutex mutex_;
  std::map<uint64_t, Kept> sections_;  // by Store's keys
  std::set<uint64_t> under_way_;       // keys of claims
  std::condition_variable ended_;      // one of these
  uint64_t calls_ = 0;                 // of pack()
  uint64_t ahead_bytes_ = 0;           // that sections packed ahead take now
};

// What a section takes of memory while it is packed, about.
uint64_t packing_bytes(const ContentShape& shape, CodecId codec);

// Which layouts are worth really compressing: one or a few, the best for `codec` (nearly always) among them; none when
// the codec does not take this shape. Only of codes that are not stepped is the content looked at. Compressing every
// one with Brotli at quality 11 costs seconds per megabyte; the direction of a code matrix is decided by a statistic
// instead. A function of its arguments alone.
std::vector<LayoutId> layout_candidates(CodecId codec, const ContentShape& shape, Bytes content);

// That statistic: ideal length in bits of `codes` (rows, columns) read row by row (or column by column) under
// histograms chosen by the running mean of |code|: what contexts and block types of a byte compressor can gain.
double adaptive_code_bits(Bytes codes, uint64_t rows, uint64_t columns, bool by_columns);

// Contents in one given layout and codec.
PackedSection pack_section_as(const ContentShape& shape, Bytes content, LayoutId layout, CodecId codec);

}  // namespace thimble
