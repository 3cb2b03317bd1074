// levels.cpp: see levels.h.
#include "packer/embed/levels.h"

#include <algorithm>

#include "runtime/base/format_error.h"

namespace thimble {

LevelMaker::LevelMaker(const TensorEntry& entry, const std::string& where, LevelSink& sink)
    : entry_(entry),
      columns_(entry.columns()),
      where_(where),
      sink_(sink),
      trellis_(entry.trellis_bits),
      most_(entry.encoding == Encoding::kStepped ? kMaxSteppedCode : entry.max_section_code()) {
  if (entry.trellis_bits != 0) states_.resize(to_size(columns_));
}

void LevelMaker::take(uint64_t first, std::span<const int32_t> codes) {
  while (!codes.empty()) {
    const uint64_t r = first / columns_, k = first % columns_;
    const size_t count = static_cast<size_t>(std::min<uint64_t>({codes.size(), kRun, columns_ - k}));
    take_run(r, k, codes.first(count));
    codes = codes.subspan(count);
    first += count;
  }
}

void LevelMaker::take_run(uint64_t r, uint64_t k, std::span<const int32_t> codes) {
  check(r * columns_ + k, codes);
  if (entry_.encoding == Encoding::kRowScaled) return sink_.take(r, k, codes);
  const size_t count = codes.size();
  if (entry_.encoding == Encoding::kNvfp4) {
    constexpr int32_t kDoubled[] = {0, 1, 2, 3, 4, 6, 8, 12};  // twice the magnitudes of E2M1
    for (size_t i = 0; i < count; ++i) levels_[i] = codes[i] < 0 ? -kDoubled[-codes[i]] : kDoubled[codes[i]];
  } else if (trellis_.bits() == 0) {
    for (size_t i = 0; i < count; ++i) levels_[i] = 2 * codes[i];
  } else {
    uint8_t* states = &states_[static_cast<size_t>(k)];
    if (r % kTrellisRows == 0) std::fill_n(states, count, uint8_t{0});
    for (size_t i = 0; i < count; ++i) {
      levels_[i] = static_cast<int32_t>(Trellis::level(states[i], codes[i]));
      states[i] = static_cast<uint8_t>(trellis_.next(states[i], codes[i]));
    }
  }
  sink_.take(r, k, std::span(levels_).first(count));
}

void LevelMaker::check(uint64_t first, std::span<const int32_t> codes) const {
  int32_t least = 0, greatest = 0;
  for (int32_t code : codes) {
    least = std::min(least, code);
    greatest = std::max(greatest, code);
  }
  if (least >= -most_ && greatest <= most_) return;
  size_t i = 0;
  while (codes[i] >= -most_ && codes[i] <= most_) ++i;
  throw_format_error(where_, "code {} is {}, -{} to {} allowed", first + i, codes[i], most_, most_);
}

void scale_levels(std::span<const int32_t> levels, uint64_t r, uint64_t k, const LevelScales& scales,
                  std::span<float> values) {
  const float* row = &scales.rows[static_cast<size_t>((r - scales.first_row) * scales.blocks)];
  const float* column = &scales.columns[static_cast<size_t>(k)];
  for (size_t i = 0; i < levels.size();) {
    const uint64_t b = (k + i) / scales.block_columns;
    const size_t end = static_cast<size_t>(std::min<uint64_t>(levels.size(), (b + 1) * scales.block_columns - k));
    for (const float scale = row[b]; i < end; ++i) values[i] = static_cast<float>(levels[i]) * scale * column[i];
  }
}

}  // namespace thimble
