// weight_escapes.h: codes beyond their tables: what the escape symbol leaves open is a sign and a distance, counted
// from the nearest code that the same symbol stands for with that sign. escape_bits.h writes both.
#pragma once

#include <string>
#include <vector>

#include "packer/rans/escape_bits.h"
#include "packer/rans/lane_rans.h"
#include "packer/rans/scale_tables.h"

namespace thimble {

// Of a code that is not within the table's reach.
Escape escape_of(const ScaleTable& table, int64_t code);

// The code that `symbol` of the table stands for, the rest read from `reader`. Its magnitude is at most max_magnitude,
// or a FormatError(where, ...).
int64_t read_escaped(EscapeReader& reader, const ScaleTable& table, uint32_t symbol, uint32_t max_magnitude,
                     const std::string& where);

// Collects what does not fit into tables; the order is chosen at the end.
class EscapeList {
 public:
  // table_of and codes: (elements), as encode_block() takes them.
  template <typename Code>
  void add(const ScaleTables& tables, std::span<const uint8_t> table_of, std::span<const Code> codes) {
    for (size_t e = 0; e < codes.size(); ++e) {
      const ScaleTable& table = tables[table_of[e]];
      if (table.symbol_of(codes[e]) >= table.first_escape()) escapes_.push_back(escape_of(table, codes[e]));
    }
  }

  uint64_t length_bits(int order) const;
  int cheapest_order() const;
  ByteVector write(int order) const;

 private:
  std::vector<Escape> escapes_;
};

}  // namespace thimble
