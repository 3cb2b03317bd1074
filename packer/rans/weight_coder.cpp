// weight_coder.cpp: puts fit, rANS blocks and escapes together into one stream, and takes them apart.
#include "packer/rans/weight_coder.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>

#include "packer/rans/lane_rans.h"
#include "packer/rans/scale_fit.h"
#include "packer/rans/weight_blocks.h"
#include "packer/rans/weight_escapes.h"

namespace thimble {
namespace {

constexpr int kShapeBits = 4;  // of the first byte; the others hold the bits of the trellis

uint32_t most_magnitude_of(int trellis_bits) { return kMaxCodeMagnitude - (trellis_bits == 0 ? 0 : 1); }

// Of the values of rows and columns.
const ScaleTables& axis_tables() {
  static const ScaleTables kTables = make_scale_tables(0, max_reach(1));
  return kTables;
}

// Classes of the codes of rows, then columns.
std::vector<uint8_t> axis_classes(const ScaleFit& fit) {
  std::vector<uint8_t> classes(fit.rows.values.size(), static_cast<uint8_t>(fit.rows.spread));
  classes.resize(classes.size() + fit.columns.values.size(), static_cast<uint8_t>(fit.columns.spread));
  return classes;
}

// Of each element of a block.
void fill_classes(const ScaleFit& fit, const WeightBlock& block, std::vector<uint8_t>& classes) {
  const uint64_t columns = fit.columns.values.size();
  classes.resize(block.elements());
  auto next = classes.begin();
  for (uint64_t i = 0; i < block.rows; ++i) {
    const uint64_t begin = block.begin + i * block.stride;
    uint64_t r = begin / columns, k = begin % columns;
    for (uint64_t j = 0; j < block.width; ++j) {
      *next++ = static_cast<uint8_t>(class_of(fit.rows.values[r], fit.columns.values[k]));
      if (++k < columns) continue;
      k = 0;
      ++r;
    }
  }
}

// What comes before the blocks, with the values of rows and columns, whose codes are the first block.
struct StreamHead {
  ScaleFit fit;
  int escape_order = 0;
  int lanes_log2 = 0;
  uint32_t max_magnitude = 0;
};

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

int check_bounds(const ByteCursor& cursor, std::string_view object, int value, int lowest, int highest) {
  if (value < lowest || value > highest)
    throw FormatError(cursor.path(), fmt::format("{} {}, {} to {} allowed", object, value, lowest, highest));
  return value;
}

template <typename T>
int read_bounded(ByteCursor& cursor, std::string_view object, int lowest, int highest) {
  return check_bounds(cursor, object, cursor.read<T>(object), lowest, highest);
}

StreamHead read_head(ByteCursor& cursor, int trellis_bits, uint32_t most_magnitude) {
  constexpr int kLastClass = kScaleClasses - 1;
  StreamHead head;
  ScaleFit& fit = head.fit;
  const int first = cursor.read<uint8_t>("trellis and shape");
  if (first >> kShapeBits != trellis_bits)
    throw FormatError(cursor.path(),
                      fmt::format("codes of a trellis of {} bits, {} expected", first >> kShapeBits, trellis_bits));
  fit.shape = check_bounds(cursor, "shape", first & ((1 << kShapeBits) - 1), 0, kTableShapes - 1);
  head.escape_order = read_bounded<uint8_t>(cursor, "escape order", 0, kMaxEscapeOrder);
  head.lanes_log2 = read_bounded<uint8_t>(cursor, "log2 of the lanes", 0, std::bit_width(kMaxLanes) - 1);
  fit.rows.center = read_bounded<int8_t>(cursor, "center of the rows", 0, kLastClass);
  fit.rows.spread = read_bounded<uint8_t>(cursor, "spread of the rows", 0, kLastClass);
  fit.columns.center = read_bounded<int8_t>(cursor, "center of the columns", -kLastClass, kLastClass);
  fit.columns.spread = read_bounded<uint8_t>(cursor, "spread of the columns", 0, kLastClass);
  head.max_magnitude = cursor.read<uint32_t>("largest magnitude");
  if (head.max_magnitude > most_magnitude)
    throw FormatError(cursor.path(),
                      fmt::format("largest magnitude {}, at most {} allowed", head.max_magnitude, most_magnitude));
  return head;
}

// The stored bytes of all blocks, cut out before anything is decoded: the axes' first.
std::vector<Bytes> take_blocks(ByteCursor& cursor, uint64_t count, uint64_t lanes) {
  if (count >= cursor.remaining() / sizeof(uint32_t))
    throw FormatError(cursor.path(), fmt::format("ends within the lengths of its {} blocks", count));
  std::vector<uint64_t> lengths;
  for (uint64_t i = 0; i <= count; ++i) {
    const uint64_t states = i == 0 ? 1 : lanes;
    lengths.push_back(states * sizeof(uint32_t) +
                      uint64_t{cursor.read<uint32_t>("words of a block")} * sizeof(uint16_t));
  }
  std::vector<Bytes> blocks;
  for (uint64_t length : lengths) blocks.push_back(cursor.take(length, "a block"));
  return blocks;
}

// Decodes blocks of one set of tables, each with its escapes, which must be read in the order of blocks.
class BlockDecoder {
 public:
  BlockDecoder(ScaleTables tables, uint32_t max_magnitude, EscapeReader& escapes, const std::string& where)
      : tables_(std::move(tables)), index_(tables_), max_magnitude_(max_magnitude), escapes_(escapes), where_(where) {}

  void decode(const BlockContext& context, Bytes stored, uint32_t lanes, std::span<int32_t> codes) {
    open_.clear();
    decode_block(tables_, index_, context, stored, lanes, codes, open_, where_);
    for (const OpenEscape& escape : open_)
      codes[escape.element] = escapes_.read_code(tables_[escape.table], escape.symbol, max_magnitude_);
  }

 private:
  ScaleTables tables_;
  SlotIndex index_;
  uint32_t max_magnitude_;
  EscapeReader& escapes_;
  const std::string& where_;
  std::vector<OpenEscape> open_;
};

// Reads the values of rows and columns, whose centers and spreads are known.
void decode_axes(ScaleFit& fit, Bytes block, EscapeReader& escapes, const std::string& where) {
  const std::vector<uint8_t> classes = axis_classes(fit);
  std::vector<int32_t> codes(classes.size());
  BlockDecoder(axis_tables(), max_reach(1), escapes, where).decode({classes}, block, 1, codes);
  auto take = [&](AxisScales& axis, size_t first, int lowest, std::string_view what) {
    for (size_t i = 0; i < axis.values.size(); ++i) {
      const int value = codes[first + i] + axis.center;
      if (value < lowest || value >= kScaleClasses)
        throw FormatError(
            where, fmt::format("{} {} has scale {}, {} to {} allowed", what, i, value, lowest, kScaleClasses - 1));
      axis.values[i] = static_cast<int8_t>(value);
    }
  };
  take(fit.rows, 0, 0, "row");
  take(fit.columns, fit.rows.values.size(), 1 - kScaleClasses, "column");
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
  const auto add = [&](const ScaleTables& tables, std::span<const uint8_t> table_of, std::span<const int32_t> part,
                       uint32_t lanes) {
    blocks.push_back(encode_block(tables, table_of, part, lanes));
    append_escapes(escapes, tables, table_of, part);
  };
  std::vector<int32_t> part;
  for (const AxisScales* axis : {&head.fit.rows, &head.fit.columns})
    for (int value : axis->values) part.push_back(value - axis->center);
  add(axis_tables(), axis_classes(head.fit), part, 1);

  const ScaleTables tables = make_scale_tables(head.fit.shape, levels.largest_code, levels.sets);
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
    add(tables, table_of, part, uint32_t{1} << head.lanes_log2);
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

void decode_weights(const TakeCodes& take, Bytes stored, uint64_t rows, uint64_t columns, const std::string& where,
                    int trellis_bits, uint32_t most_magnitude) {
  assert(rows > 0 && columns > 0 && Trellis::has_bits(trellis_bits));
  ByteCursor cursor(stored, where);
  StreamHead head = read_head(cursor, trellis_bits, std::min(most_magnitude, most_magnitude_of(trellis_bits)));
  const BlockCut cut(rows, columns, trellis_bits != 0, head.lanes_log2);
  const uint32_t lanes = uint32_t{1} << head.lanes_log2;
  if (lanes > cut.most_lanes())
    throw FormatError(where,
                      fmt::format("{} lanes, at most one for each of {} columns allowed", lanes, cut.most_lanes()));
  const std::vector<Bytes> blocks = take_blocks(cursor, cut.blocks(), lanes);
  EscapeReader escapes(cursor.take(cursor.remaining(), "escapes"), head.escape_order, where);

  head.fit.rows.values.resize(rows);
  head.fit.columns.values.resize(columns);
  decode_axes(head.fit, blocks[0], escapes, where);
  BlockDecoder decoder(make_scale_tables(head.fit.shape, head.max_magnitude, trellis_bits == 0 ? 1 : 2),
                       head.max_magnitude, escapes, where);
  std::vector<uint8_t> classes;
  std::vector<int32_t> band_codes, stripe_codes;
  for (uint64_t band = 0; band < cut.bands(); ++band) {
    band_codes.resize(cut.band_elements(band));
    for (uint64_t stripe = 0; stripe < cut.stripes(); ++stripe) {
      const WeightBlock block = cut.block(band, stripe);
      std::vector<int32_t>& codes = cut.stripes() == 1 ? band_codes : stripe_codes;
      codes.resize(block.elements());
      fill_classes(head.fit, block, classes);
      decoder.decode({classes, Trellis(trellis_bits), block.width}, blocks[1 + band * cut.stripes() + stripe], lanes,
                     codes);
      if (cut.stripes() == 1) continue;
      const uint64_t first = block.begin - cut.band_begin(band);
      for (uint64_t r = 0; r < block.rows; ++r)
        std::ranges::copy(std::span(codes).subspan(r * block.width, block.width),
                          &band_codes[first + r * block.stride]);
    }
    take(band_codes);
  }
  escapes.finish();
}

}  // namespace thimble
