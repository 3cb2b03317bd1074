// weight_decoder.cpp: takes a stream of weight_encoder.cpp apart.
#include <algorithm>
#include <bit>
#include <cassert>

#include "packer/rans/lane_rans.h"
#include "packer/rans/weight_stream.h"
#include "runtime/base/format_error.h"

namespace thimble {
namespace {

int check_bounds(const ByteCursor& cursor, std::string_view object, int value, int lowest, int highest) {
  if (value < lowest || value > highest)
    throw_format_error(cursor.path(), "{} {}, {} to {} allowed", object, value, lowest, highest);
  return value;
}

template <typename T>
int read_bounded(ByteCursor& cursor, std::string_view object, int lowest, int highest) {
  return check_bounds(cursor, object, cursor.read<T>(object), lowest, highest);
}

StreamHead read_head(ByteCursor& cursor, int trellis_bits, uint32_t most_magnitude) {
  StreamHead head;
  ScaleFit& fit = head.fit;
  const int first = cursor.read<uint8_t>("trellis and shape");
  if (first >> kShapeBits != trellis_bits)
    throw_format_error(cursor.path(), "codes of a trellis of {} bits, {} expected", first >> kShapeBits, trellis_bits);
  fit.shape = check_bounds(cursor, "shape", first & ((1 << kShapeBits) - 1), 0, kTableShapes - 1);
  head.escape_order = read_bounded<uint8_t>(cursor, "escape order", 0, kMaxEscapeOrder);
  head.lanes_log2 = read_bounded<uint8_t>(cursor, "log2 of the lanes", 0, std::bit_width(kMaxLanes) - 1);
  fit.rows.center = read_bounded<int8_t>(cursor, "center of the rows", 0, kLastClass);
  fit.rows.spread = read_bounded<uint8_t>(cursor, "spread of the rows", 0, kLastClass);
  fit.columns.center = read_bounded<int8_t>(cursor, "center of the columns", -kLastClass, kLastClass);
  fit.columns.spread = read_bounded<uint8_t>(cursor, "spread of the columns", 0, kLastClass);
  head.max_magnitude = cursor.read<uint32_t>("largest magnitude");
  if (head.max_magnitude > most_magnitude)
    throw_format_error(cursor.path(), "largest magnitude {}, at most {} allowed", head.max_magnitude, most_magnitude);
  return head;
}

// The stored bytes of all blocks, cut out before anything is decoded: the axes' first.
std::vector<Bytes> take_blocks(ByteCursor& cursor, uint64_t count, uint64_t lanes) {
  if (count >= cursor.remaining() / sizeof(uint32_t))
    throw_format_error(cursor.path(), "ends within the lengths of its {} blocks", count);
  std::vector<uint64_t> lengths;
  lengths.reserve(count + 1);
  for (uint64_t i = 0; i <= count; ++i) {
    const uint64_t states = i == 0 ? 1 : lanes;
    lengths.push_back(states * sizeof(uint32_t) +
                      uint64_t{cursor.read<uint32_t>("words of a block")} * sizeof(uint16_t));
  }
  std::vector<Bytes> blocks;
  blocks.reserve(count + 1);
  for (uint64_t length : lengths) blocks.push_back(cursor.take(length, "a block"));
  return blocks;
}

// Decodes blocks of one set of tables, which must be read in their order: so their escapes lie.
class BlockDecoder {
 public:
  BlockDecoder(SlotTables tables, uint32_t max_magnitude, EscapeReader& escapes, const std::string& where)
      : tables_(std::move(tables)), escapes_(escapes), where_(where) {
    escapes.set_max_magnitude(max_magnitude);
  }

  void decode(const BlockContext& context, Bytes stored, uint32_t lanes, std::span<int32_t> codes) {
    decode_block(tables_, context, stored, lanes, codes, escapes_, where_);
  }

 private:
  SlotTables tables_;
  EscapeReader& escapes_;
  const std::string& where_;
};

// Reads the values of rows and columns, whose centers and spreads are known.
void decode_axes(ScaleFit& fit, Bytes block, EscapeReader& escapes, const std::string& where) {
  const std::vector<uint8_t> classes = axis_classes(fit);
  std::vector<int32_t> codes(classes.size());
  BlockDecoder({axis_tables(), axis_range(fit)}, max_reach(1), escapes, where).decode({classes}, block, 1, codes);
  auto take = [&](AxisScales& axis, size_t first, int lowest, std::string_view what) {
    for (size_t i = 0; i < axis.values.size(); ++i) {
      const int value = codes[first + i] + axis.center;
      if (value < lowest || value >= kScaleClasses)
        throw_format_error(where, "{} {} has scale {}, {} to {} allowed", what, i, value, lowest, kScaleClasses - 1);
      axis.values[i] = static_cast<int8_t>(value);
    }
  };
  take(fit.rows, 0, 0, "row");
  take(fit.columns, fit.rows.values.size(), 1 - kScaleClasses, "column");
}

}  // namespace

void decode_weights(const TakeBlock& take, Bytes stored, uint64_t rows, uint64_t columns, const std::string& where,
                    int trellis_bits, uint32_t most_magnitude) {
  assert(rows > 0 && columns > 0 && Trellis::has_bits(trellis_bits));
  ByteCursor cursor(stored, where);
  StreamHead head = read_head(cursor, trellis_bits, std::min(most_magnitude, most_magnitude_of(trellis_bits)));
  const BlockCut cut(rows, columns, trellis_bits != 0, head.lanes_log2);
  const uint32_t lanes = uint32_t{1} << head.lanes_log2;
  if (lanes > cut.most_lanes())
    throw_format_error(where, "{} lanes, at most one for each of {} columns allowed", lanes, cut.most_lanes());
  const std::vector<Bytes> blocks = take_blocks(cursor, cut.blocks(), lanes);
  EscapeReader escapes(cursor.take(cursor.remaining(), "escapes"), head.escape_order, max_reach(1), where);

  head.fit.rows.values.resize(rows);
  head.fit.columns.values.resize(columns);
  decode_axes(head.fit, blocks[0], escapes, where);
  BlockDecoder decoder(
      {make_scale_tables(head.fit.shape, head.max_magnitude, trellis_bits == 0 ? 1 : 2), class_range(head.fit)},
      head.max_magnitude, escapes, where);
  std::vector<uint8_t> classes;
  std::vector<int32_t> codes;
  for (uint64_t i = 0; i < cut.blocks(); ++i) {
    const WeightBlock block = cut.block(i / cut.stripes(), i % cut.stripes());
    codes.resize(block.elements());
    fill_classes(head.fit, block, classes);
    decoder.decode({classes, Trellis(trellis_bits), block.width}, blocks[1 + i], lanes, codes);
    take(block, codes);
  }
  escapes.finish();
}

uint64_t decoder_memory(uint64_t rows, uint64_t columns, int trellis_bits) {
  constexpr uint64_t kTables = (128 << 10) + 2 * kScaleClasses * SlotTables::kTableBytes;  // of both sets
  constexpr uint64_t kOfBlock = 8 + sizeof(Bytes);  // its length, and where it lies
  constexpr uint64_t kOfElement = 1 + sizeof(int32_t);
  const bool trellis = trellis_bits != 0;
  const BlockCut shortest(rows, columns, trellis, 0), longest(rows, columns, trellis, std::bit_width(kMaxLanes) - 1);
  const uint64_t most_elements = longest.block(0, longest.stripes() - 1).elements();
  // Of rows and columns: values, and their classes and codes while these are decoded.
  return kTables + (1 + kOfElement) * (rows + columns) + kOfBlock * (shortest.blocks() + 1) +
         kOfElement * most_elements + (trellis ? kStripeColumns : 0);
}

uint32_t largest_magnitude(Bytes stored, const std::string& where, int trellis_bits) {
  ByteCursor cursor(stored, where);
  return read_head(cursor, trellis_bits, most_magnitude_of(trellis_bits)).max_magnitude;
}

}  // namespace thimble
