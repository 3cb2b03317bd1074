// weight_encoder.cpp: puts fit, rANS blocks and escapes together into one stream.
#include <algorithm>
#include <cassert>

#include "packer/rans/lane_encoder.h"
#include "packer/rans/weight_stream.h"

namespace thimble {
namespace {

void append_head(ByteVector& out, const StreamHead& head, int trellis_bits) {
  append_little_endian(out, static_cast<uint8_t>(trellis_bits << kShapeBits | head.fit.shape));
  append_little_endian(out, static_cast<uint8_t>(head.escape_order));
  append_little_endian(out, static_cast<uint8_t>(head.lanes_log2));
  for (const AxisScales* axis : {&head.fit.rows, &head.fit.columns}) {
    append_little_endian(out, static_cast<int8_t>(axis->center));
    append_little_endian(out, static_cast<uint8_t>(axis->spread));
  }
  append_little_endian(out, head.max_magnitude);
}

}  // namespace

ByteVector encode_weights(std::span<const int32_t> codes, uint64_t rows, uint64_t columns, int trellis_bits) {
  assert(rows > 0 && columns > 0 && codes.size() == rows * columns && Trellis::has_bits(trellis_bits));
  const CodeLevels levels = code_levels(codes, rows, columns, trellis_bits);
  assert(levels.largest_code <= most_magnitude_of(trellis_bits));
  StreamHead head{fit_scales(levels, rows, columns), 0, BlockCut::lanes_log2_for(rows, columns, trellis_bits != 0),
                  levels.largest_code};
  std::vector<ByteVector> blocks;
  std::vector<Escape> escapes;
  std::vector<int32_t> part;
  for (const AxisScales* axis : {&head.fit.rows, &head.fit.columns})
    for (int value : axis->values) part.push_back(value - axis->center);
  blocks.push_back(encode_block({axis_tables(), axis_range(head.fit)}, axis_classes(head.fit), part, 1, escapes));

  const SymbolTables tables(make_scale_tables(head.fit.shape, levels.largest_code, levels.sets), class_range(head.fit));
  const BlockCut cut(rows, columns, trellis_bits != 0, head.lanes_log2);
  std::vector<uint8_t> table_of;
  for (uint64_t i = 0; i < cut.blocks(); ++i) {
    const WeightBlock block = cut.block(i / cut.stripes(), i % cut.stripes());
    fill_classes(head.fit, block, table_of);
    part.clear();
    for (uint64_t r = 0; r < block.rows; ++r) {
      const uint64_t begin = block.begin + r * block.stride;
      part.insert(part.end(), &codes[begin], &codes[begin] + block.width);
      if (levels.sets == 1) continue;
      uint8_t* table = &table_of[r * block.width];
      for (uint16_t level : std::span(levels.magnitudes).subspan(begin, block.width))
        *table++ += static_cast<uint8_t>(kScaleClasses * (level & 1));
    }
    blocks.push_back(encode_block(tables, table_of, part, uint32_t{1} << head.lanes_log2, escapes));
  }

  head.escape_order = cheapest_escape_order(escapes);
  ByteVector out;
  append_head(out, head, trellis_bits);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const uint64_t states = i == 0 ? 1 : uint64_t{1} << head.lanes_log2;
    const uint64_t words = (blocks[i].size() - states * sizeof(uint32_t)) / sizeof(uint16_t);
    append_little_endian(out, static_cast<uint32_t>(words));
  }
  for (const ByteVector& block : blocks) append_bytes(out, block);
  append_bytes(out, write_escapes(escapes, head.escape_order));
  return out;
}

}  // namespace thimble
