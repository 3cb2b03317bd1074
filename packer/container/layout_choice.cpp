// layout_choice.cpp: the statistic and the rules.
#include "packer/container/layout_choice.h"

#include "packer/layout/section_layout.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>

namespace thimble {
namespace {

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
  if (shape.kind == SectionKind::kCodes && !shape.has_stepped_codes())
    return content.size() <= kTryAllCodes ? allowed : code_candidates(shape, content);
  if (content.size() <= kTryAllFloats) return allowed;
  return {allowed.back()};
}

}  // namespace thimble
