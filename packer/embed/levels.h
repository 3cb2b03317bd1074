// levels.h: from the codes of a tensor to its levels, and from levels to values.
//   value(r, k) = (level(r, k) * row scale(r, k / block)) * column scale(k)
// R = rows, K = columns, B = row scales of a row
#pragma once

#include <array>
#include <cstdint>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "packer/layout/artifact_header.h"
#include "runtime/codes/trellis.h"

namespace thimble {

// Codes, levels and values are handled in runs of at most this many, which stay in a processor's first cache.
constexpr size_t kRun = 1024;

// Room for more than memory can address is room that there is not: on machines of 32 bits.
inline size_t to_size(uint64_t bytes) {
  if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
  return static_cast<size_t>(bytes);
}

// What levels are decoded into.
class LevelSink {
 public:
  virtual ~LevelSink() = default;
  // Rows of which levels come next.
  virtual void begin_rows(uint64_t /*first*/, uint64_t /*count*/) {}
  // At most kRun levels of row r from column k on.
  virtual void take(uint64_t r, uint64_t k, std::span<const int32_t> levels) = 0;
};

// Makes levels of codes, which come in ascending order within each column. Throws FormatError(where, ...) for codes
// beyond what the tensor may have: no section's codec knows all of that.
class LevelMaker {
 public:
  // All must outlive the result.
  LevelMaker(const TensorEntry& entry, const std::string& where, LevelSink& sink);

  // Codes from number `first` on of the row-major matrix.
  void take(uint64_t first, std::span<const int32_t> codes);

 private:
  void take_run(uint64_t r, uint64_t k, std::span<const int32_t> codes);
  void check(uint64_t first, std::span<const int32_t> codes) const;

  const TensorEntry& entry_;
  uint64_t columns_;
  const std::string& where_;
  LevelSink& sink_;
  Trellis trellis_;
  int32_t most_;                 // magnitude of a code
  std::vector<uint8_t> states_;  // (K) of the columns' trellises
  std::array<int32_t, kRun> levels_;
};

struct LevelScales {
  uint64_t first_row = 0;  // of `rows`
  uint64_t blocks = 1;     // B
  uint64_t block_columns = 1;
  std::vector<float> rows;     // (some rows, B)
  std::vector<float> columns;  // (K)
};

// Values of levels of row r from column k on.
void scale_levels(std::span<const int32_t> levels, uint64_t r, uint64_t k, const LevelScales& scales,
                  std::span<float> values);

}  // namespace thimble
