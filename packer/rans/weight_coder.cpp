// weight_coder.cpp: puts fit, rANS blocks and escapes together into one stream, and takes them apart.
#include "packer/rans/weight_coder.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include "packer/rans/fitted_codes.h"
#include "packer/rans/lane_rans.h"
#include "packer/rans/weight_escapes.h"
#include "runtime/base/checked.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

constexpr uint64_t kStreamHeadBytes = 7 * sizeof(uint8_t) + sizeof(uint32_t);
constexpr int kShapeBits = 4;  // of the first byte; the others hold the bits of the trellis

// Of the values of rows and columns.
const ScaleTables& axis_tables() {
  static const ScaleTables kTables = make_scale_tables(0, max_reach(1));
  return kTables;
}

// Rows, then columns, as distances from their centers.
struct AxisCodes {
  std::vector<int8_t> codes;
  std::vector<uint8_t> classes;
};

AxisCodes axis_codes(const ScaleFit& fit) {
  AxisCodes axes;
  for (const AxisScales* axis : {&fit.rows, &fit.columns})
    for (int value : axis->values) {
      axes.codes.push_back(static_cast<int8_t>(value - axis->center));
      axes.classes.push_back(static_cast<uint8_t>(axis->spread));
    }
  return axes;
}

void append_block(ByteVector& out, const RansBlock& block) {
  for (uint32_t state : block.states) append_little_endian(out, state);
  for (uint16_t word : block.words) append_little_endian(out, word);
}

// What comes before the blocks.
struct StreamHead {
  int trellis_bits = 0;
  int shape = 0;
  int escape_order = 0;
  int lanes_log2 = 0;
  int row_center = 0, row_spread = 0, column_center = 0, column_spread = 0;
  uint32_t max_magnitude = 0;
};

void append_head(ByteVector& out, const StreamHead& head) {
  append_little_endian(out, static_cast<uint8_t>(head.trellis_bits << kShapeBits | head.shape));
  append_little_endian(out, static_cast<uint8_t>(head.escape_order));
  append_little_endian(out, static_cast<uint8_t>(head.lanes_log2));
  append_little_endian(out, static_cast<int8_t>(head.row_center));
  append_little_endian(out, static_cast<uint8_t>(head.row_spread));
  append_little_endian(out, static_cast<int8_t>(head.column_center));
  append_little_endian(out, static_cast<uint8_t>(head.column_spread));
  append_little_endian(out, head.max_magnitude);
}

int check_bounds(const ByteCursor& cursor, std::string_view object, int value, int lowest, int highest) {
  if (value < lowest || value > highest)
    throw FormatError(cursor.path(), std::string(object) + " " + std::to_string(value) + ", " + std::to_string(lowest) +
                                         " to " + std::to_string(highest) + " allowed");
  return value;
}

template <typename T>
int read_bounded(ByteCursor& cursor, std::string_view object, int lowest, int highest) {
  return check_bounds(cursor, object, cursor.read<T>(object), lowest, highest);
}

StreamHead read_head(ByteCursor& cursor, int trellis_bits, uint32_t largest_allowed) {
  constexpr int kLastClass = kScaleClasses - 1;
  StreamHead head;
  const int first = cursor.read<uint8_t>("trellis and shape");
  head.trellis_bits = first >> kShapeBits;
  if (head.trellis_bits != trellis_bits)
    throw FormatError(cursor.path(), "codes of a trellis of " + std::to_string(head.trellis_bits) + " bits, " +
                                         std::to_string(trellis_bits) + " expected");
  head.shape = check_bounds(cursor, "shape", first & ((1 << kShapeBits) - 1), 0, kTableShapes - 1);
  head.escape_order = read_bounded<uint8_t>(cursor, "escape order", 0, kMaxEscapeOrder);
  head.lanes_log2 = read_bounded<uint8_t>(cursor, "log2 of the lanes", 0, std::bit_width(kMaxLanes) - 1);
  head.row_center = read_bounded<int8_t>(cursor, "center of the rows", 0, kLastClass);
  head.row_spread = read_bounded<uint8_t>(cursor, "spread of the rows", 0, kLastClass);
  head.column_center = read_bounded<int8_t>(cursor, "center of the columns", -kLastClass, kLastClass);
  head.column_spread = read_bounded<uint8_t>(cursor, "spread of the columns", 0, kLastClass);
  head.max_magnitude = cursor.read<uint32_t>("largest magnitude");
  if (head.max_magnitude > largest_allowed)
    throw FormatError(cursor.path(), "largest magnitude " + std::to_string(head.max_magnitude) + ", at most " +
                                         std::to_string(largest_allowed) + " allowed");
  return head;
}

// Puts the escapes into the places that decoding left open.
template <typename Code>
void fill_escapes(EscapeReader& reader, const ScaleTables& tables, uint32_t max_magnitude,
                  const std::vector<OpenEscape>& open, std::span<Code> codes, const std::string& where) {
  for (const OpenEscape& escape : open)
    codes[escape.element] =
        static_cast<Code>(read_escaped(reader, tables[escape.table], escape.symbol, max_magnitude, where));
}

// The stored bytes of all blocks, cut out before anything is decoded: the axes' first.
std::vector<Bytes> take_blocks(ByteCursor& cursor, uint64_t count, uint64_t lanes) {
  if (count >= cursor.remaining() / sizeof(uint32_t))
    throw FormatError(cursor.path(), "ends within the lengths of its " + std::to_string(count) + " blocks");
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

// Reads rows and columns, whose centers and spreads the head gives.
void decode_axes(const StreamHead& head, Bytes block, EscapeReader& escapes, AxisScales& rows, AxisScales& columns,
                 const std::string& where) {
  const ScaleTables& tables = axis_tables();
  std::vector<uint8_t> classes(rows.values.size(), static_cast<uint8_t>(head.row_spread));
  classes.resize(rows.values.size() + columns.values.size(), static_cast<uint8_t>(head.column_spread));
  std::vector<int8_t> codes(classes.size());
  std::vector<OpenEscape> open;
  decode_block<int8_t>(tables, SlotIndex(tables), {classes}, block, 1, codes, open, where);
  fill_escapes<int8_t>(escapes, tables, max_reach(1), open, codes, where);
  auto take = [&](AxisScales& axis, int center, size_t first, int lowest, std::string_view what) {
    for (size_t i = 0; i < axis.values.size(); ++i) {
      const int value = codes[first + i] + center;
      if (value < lowest || value >= kScaleClasses)
        throw FormatError(where, std::string(what) + " " + std::to_string(i) + " has scale " + std::to_string(value) +
                                     ", " + std::to_string(lowest) + " to " + std::to_string(kScaleClasses - 1) +
                                     " allowed");
      axis.values[i] = static_cast<int8_t>(value);
    }
  };
  take(rows, head.row_center, 0, 0, "row");
  take(columns, head.column_center, rows.values.size(), 1 - kScaleClasses, "column");
}

// Copies a block's runs to their places in `out`, the first one at `begin`.
template <typename Code>
void scatter_runs(std::span<const Code> codes, const WeightBlock& block, std::span<Code> out, uint64_t begin) {
  for (uint64_t i = 0; i < block.rows; ++i)
    std::ranges::copy(codes.subspan(i * block.width, block.width), &out[begin + i * block.stride]);
}

}  // namespace

template <typename Code>
ByteVector encode_weights(std::span<const Code> codes, uint64_t rows, uint64_t columns, int trellis_bits) {
  const FittedCodes<Code> fitted(codes, rows, columns, trellis_bits);
  const ScaleFit& fit = fitted.fit();
  const ScaleTables& tables_of_axes = axis_tables();
  const AxisCodes axes = axis_codes(fit);
  EscapeList escapes;
  escapes.add<int8_t>(tables_of_axes, axes.classes, axes.codes);
  std::vector<RansBlock> blocks = {encode_block<int8_t>(tables_of_axes, axes.classes, axes.codes, 1)};
  fitted.for_each_block([&](std::span<const uint8_t> table_of, std::span<const Code> part) {
    escapes.add(fitted.tables(), table_of, part);
    blocks.push_back(encode_block(fitted.tables(), table_of, part, uint32_t{1} << fitted.lanes_log2()));
  });

  const int order = escapes.cheapest_order();
  ByteVector out;
  append_head(out, {trellis_bits, fit.shape, order, fitted.lanes_log2(), fit.rows.center, fit.rows.spread,
                    fit.columns.center, fit.columns.spread, fitted.max_magnitude()});
  for (const RansBlock& block : blocks) append_little_endian(out, static_cast<uint32_t>(block.words.size()));
  for (const RansBlock& block : blocks) append_block(out, block);
  append_bytes(out, escapes.write(order));
  return out;
}

template <typename Code>
void decode_weights_into(const CodeRoom<Code>& room, Bytes stored, uint64_t rows, uint64_t columns,
                         const std::string& where, int trellis_bits) {
  [[maybe_unused]] const uint64_t elements = mul_or_throw(rows, columns, where);
  assert(elements > 0 && Trellis::has_bits(trellis_bits));
  ByteCursor cursor(stored, where);
  const StreamHead head = read_head(cursor, trellis_bits, largest_allowed<Code>(trellis_bits));
  const BlockCut cut(rows, columns, trellis_bits != 0, head.lanes_log2);
  const uint32_t lanes = uint32_t{1} << head.lanes_log2;
  if (lanes > cut.most_lanes())
    throw FormatError(where, std::to_string(lanes) + " lanes, at most one for each of " +
                                 std::to_string(cut.most_lanes()) + " columns allowed");
  const std::vector<Bytes> blocks = take_blocks(cursor, cut.blocks(), lanes);
  EscapeReader escapes(cursor.take(cursor.remaining(), "escapes"), head.escape_order, where);

  AxisScales row_scales{std::vector<int8_t>(rows)}, column_scales{std::vector<int8_t>(columns)};
  decode_axes(head, blocks[0], escapes, row_scales, column_scales, where);
  const ScaleTables tables = make_scale_tables(head.shape, head.max_magnitude, trellis_bits == 0 ? 1 : 2);
  const SlotIndex index(tables);
  std::vector<uint8_t> classes;
  std::vector<Code> stripe_codes;
  std::vector<OpenEscape> open;
  for (uint64_t band = 0; band < cut.bands(); ++band) {
    const std::span<Code> out = room(cut.band_elements(band));
    for (uint64_t stripe = 0; stripe < cut.stripes(); ++stripe) {
      const WeightBlock block = cut.block(band, stripe);
      const bool whole_band = cut.stripes() == 1;
      if (!whole_band) stripe_codes.resize(block.elements());
      const std::span<Code> codes = whole_band ? out : std::span(stripe_codes);
      classes.resize(block.elements());
      fill_classes(row_scales, column_scales, block, classes);
      open.clear();
      decode_block<Code>(tables, index, {classes, Trellis(trellis_bits), block.width},
                         blocks[1 + band * cut.stripes() + stripe], lanes, codes, open, where);
      fill_escapes(escapes, tables, head.max_magnitude, open, codes, where);
      if (!whole_band) scatter_runs<Code>(codes, block, out, block.begin - cut.band_begin(band));
    }
  }
  escapes.finish();
}

template <typename Code>
std::vector<Code> decode_weights(Bytes stored, uint64_t rows, uint64_t columns, const std::string& where,
                                 int trellis_bits) {
  std::vector<Code> codes;
  const CodeRoom<Code> room = [&](uint64_t count) {
    codes.resize(codes.size() + count);
    return std::span(codes).last(count);
  };
  decode_weights_into(room, stored, rows, columns, where, trellis_bits);
  return codes;
}

template <typename Code>
uint64_t estimate_weight_bytes(std::span<const Code> codes, uint64_t rows, uint64_t columns, int trellis_bits) {
  const FittedCodes<Code> fitted(codes, rows, columns, trellis_bits);
  EscapeList escapes;
  fitted.for_each_block([&](std::span<const uint8_t> table_of, std::span<const Code> part) {
    escapes.add(fitted.tables(), table_of, part);
  });
  const uint64_t blocks = fitted.cut().blocks();
  // A state of 32 bits holds half as many bits of codes when its lane ends; the axes have a lane of their own.
  const uint64_t lanes = 1 + (blocks << fitted.lanes_log2());
  return kStreamHeadBytes + (blocks + 1) * sizeof(uint32_t) + lanes * sizeof(uint16_t) +
         (fitted.fit().code_bits + fitted.fit().axis_bits) / (8 * kBitUnits) +
         escapes.length_bits(escapes.cheapest_order()) / 8;
}

std::vector<ByteVector> encode_weights(std::span<const CodeMatrix> matrices) {
  std::vector<ByteVector> streams(matrices.size());
  parallel_for(static_cast<int64_t>(matrices.size()), [&](int64_t i) {
    const CodeMatrix& matrix = matrices[static_cast<size_t>(i)];
    streams[static_cast<size_t>(i)] = encode_weights(matrix.codes, matrix.rows, matrix.columns, matrix.trellis_bits);
  });
  return streams;
}

std::vector<uint64_t> estimate_weight_bytes(std::span<const CodeMatrix> matrices) {
  std::vector<uint64_t> bytes(matrices.size());
  parallel_for(static_cast<int64_t>(matrices.size()), [&](int64_t i) {
    const CodeMatrix& matrix = matrices[static_cast<size_t>(i)];
    bytes[static_cast<size_t>(i)] =
        estimate_weight_bytes(matrix.codes, matrix.rows, matrix.columns, matrix.trellis_bits);
  });
  return bytes;
}

template ByteVector encode_weights(std::span<const int8_t>, uint64_t, uint64_t, int);
template ByteVector encode_weights(std::span<const int32_t>, uint64_t, uint64_t, int);
template void decode_weights_into(const CodeRoom<int8_t>&, Bytes, uint64_t, uint64_t, const std::string&, int);
template void decode_weights_into(const CodeRoom<int32_t>&, Bytes, uint64_t, uint64_t, const std::string&, int);
template std::vector<int8_t> decode_weights(Bytes, uint64_t, uint64_t, const std::string&, int);
template std::vector<int32_t> decode_weights(Bytes, uint64_t, uint64_t, const std::string&, int);
template uint64_t estimate_weight_bytes(std::span<const int8_t>, uint64_t, uint64_t, int);
template uint64_t estimate_weight_bytes(std::span<const int32_t>, uint64_t, uint64_t, int);

}  // namespace thimble
