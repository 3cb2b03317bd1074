// weight_coder.cpp: puts fit, rANS blocks and escapes together into one stream, and takes them apart.
#include "packer/weight_coder.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdlib>
#include <limits>

#include "packer/escape_bits.h"
#include "packer/lane_rans.h"
#include "packer/scale_fit.h"
#include "runtime/checked.h"
#include "runtime/parallel.h"

namespace thimble {
namespace {

// A lane's steps in a full block. Longer blocks cost fewer bytes (a lane costs 2), shorter ones decode more in
// parallel.
constexpr uint64_t kBlockSteps = uint64_t{1} << 14;
constexpr uint64_t kStreamHeadBytes = 7 * sizeof(uint8_t) + sizeof(uint32_t);

// As few lanes as keep within kBlockSteps, so that small matrices pay for few.
int lanes_log2_for(uint64_t elements) {
  const uint64_t wanted = (elements + kBlockSteps - 1) / kBlockSteps;
  return static_cast<int>(std::bit_width(std::min<uint64_t>(std::bit_ceil(wanted), kMaxLanes))) - 1;
}

uint64_t block_count(uint64_t elements, int lanes_log2) {
  const uint64_t block = kBlockSteps << lanes_log2;
  return elements / block + (elements % block != 0 ? 1 : 0);
}

template <typename Code>
uint32_t largest_magnitude(std::span<const Code> codes) {
  uint32_t largest = 0;
  for (Code code : codes) largest = std::max(largest, static_cast<uint32_t>(std::abs(int64_t{code})));
  return largest;
}

// Classes of the elements [begin, begin + classes.size()) of a matrix.
void fill_classes(const AxisScales& rows, const AxisScales& columns, uint64_t begin, std::span<uint8_t> classes) {
  const uint64_t width = columns.values.size();
  uint64_t r = begin / width, k = begin % width;
  for (uint8_t& scale_class : classes) {
    scale_class = static_cast<uint8_t>(class_of(rows.values[r], columns.values[k]));
    if (++k < width) continue;
    k = 0;
    ++r;
  }
}

// Collects what does not fit into tables; the order is chosen at the end.
class EscapeList {
 public:
  template <typename Code>
  void add(const ScaleTables& tables, std::span<const uint8_t> classes, std::span<const Code> codes) {
    for (size_t e = 0; e < codes.size(); ++e) {
      const auto magnitude = static_cast<uint32_t>(std::abs(int64_t{codes[e]}));
      const uint32_t reach = tables[classes[e]].reach;
      if (magnitude > reach) escapes_.push_back({magnitude - reach - 1, codes[e] < 0});
    }
  }

  uint64_t length_bits(int order) const {
    uint64_t bits = 0;
    for (const Escape& escape : escapes_) bits += escape_length_bits(escape.distance, order);
    return bits;
  }

  int cheapest_order() const {
    int best = 0;
    uint64_t best_bits = std::numeric_limits<uint64_t>::max();
    for (int order = 0; order <= kMaxEscapeOrder; ++order) {
      const uint64_t bits = length_bits(order);
      if (bits >= best_bits) continue;
      best_bits = bits;
      best = order;
    }
    return best;
  }

  ByteVector write(int order) const {
    EscapeWriter writer(order);
    for (const Escape& escape : escapes_) writer.write(escape);
    return writer.take();
  }

 private:
  std::vector<Escape> escapes_;
};

// Of the values of rows and columns.
const ScaleTables& axis_tables() {
  static const ScaleTables kTables = make_scale_tables(0, kMaxReach);
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
  int shape = 0;
  int escape_order = 0;
  int lanes_log2 = 0;
  int row_center = 0, row_spread = 0, column_center = 0, column_spread = 0;
  uint32_t max_magnitude = 0;
};

void append_head(ByteVector& out, const StreamHead& head) {
  append_little_endian(out, static_cast<uint8_t>(head.shape));
  append_little_endian(out, static_cast<uint8_t>(head.escape_order));
  append_little_endian(out, static_cast<uint8_t>(head.lanes_log2));
  append_little_endian(out, static_cast<int8_t>(head.row_center));
  append_little_endian(out, static_cast<uint8_t>(head.row_spread));
  append_little_endian(out, static_cast<int8_t>(head.column_center));
  append_little_endian(out, static_cast<uint8_t>(head.column_spread));
  append_little_endian(out, head.max_magnitude);
}

template <typename T>
int read_bounded(ByteCursor& cursor, std::string_view object, int lowest, int highest) {
  const int value = cursor.read<T>(object);
  if (value < lowest || value > highest)
    throw FormatError(cursor.path(), std::string(object) + " " + std::to_string(value) + ", " + std::to_string(lowest) +
                                         " to " + std::to_string(highest) + " allowed");
  return value;
}

StreamHead read_head(ByteCursor& cursor, uint32_t largest_allowed) {
  constexpr int kLastClass = kScaleClasses - 1;
  StreamHead head;
  head.shape = read_bounded<uint8_t>(cursor, "shape", 0, kTableShapes - 1);
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
void fill_escapes(EscapeReader& reader, const ScaleTables& tables, std::span<const uint8_t> classes,
                  uint32_t max_magnitude, const std::vector<uint64_t>& places, std::span<Code> codes) {
  for (uint64_t e : places) {
    const uint32_t reach = tables[classes[e]].reach;
    const Escape escape = reader.read(max_magnitude - reach - 1);
    const int64_t magnitude = int64_t{escape.distance} + reach + 1;
    codes[e] = static_cast<Code>(escape.negative ? -magnitude : magnitude);
  }
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
  std::vector<uint64_t> places;
  decode_block<int8_t>(tables, SlotIndex(tables), classes, block, 1, codes, places, where);
  fill_escapes<int8_t>(escapes, tables, classes, kMaxReach, places, codes);
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

}  // namespace

template <typename Code>
ByteVector encode_weights(std::span<const Code> codes, uint64_t rows, uint64_t columns) {
  assert(rows > 0 && columns > 0 && codes.size() == rows * columns);
  const uint32_t max_magnitude = largest_magnitude(codes);
  assert(max_magnitude <= static_cast<uint32_t>(std::numeric_limits<Code>::max()));
  const ScaleFit fit = fit_scales(codes, rows, columns, max_magnitude);
  const int lanes_log2 = lanes_log2_for(codes.size());
  const uint64_t block_elements = kBlockSteps << lanes_log2;

  const ScaleTables& tables_of_axes = axis_tables();
  const AxisCodes axes = axis_codes(fit);
  EscapeList escapes;
  escapes.add<int8_t>(tables_of_axes, axes.classes, axes.codes);
  std::vector<RansBlock> blocks = {encode_block<int8_t>(tables_of_axes, axes.classes, axes.codes, 1)};

  const ScaleTables tables = make_scale_tables(fit.shape, max_magnitude);
  std::vector<uint8_t> classes;
  for (uint64_t begin = 0; begin < codes.size(); begin += block_elements) {
    const std::span<const Code> part = codes.subspan(begin, std::min(block_elements, codes.size() - begin));
    classes.resize(part.size());
    fill_classes(fit.rows, fit.columns, begin, classes);
    escapes.add<Code>(tables, classes, part);
    blocks.push_back(encode_block<Code>(tables, classes, part, uint32_t{1} << lanes_log2));
  }

  const int order = escapes.cheapest_order();
  ByteVector out;
  append_head(out, {fit.shape, order, lanes_log2, fit.rows.center, fit.rows.spread, fit.columns.center,
                    fit.columns.spread, max_magnitude});
  for (const RansBlock& block : blocks) append_little_endian(out, static_cast<uint32_t>(block.words.size()));
  for (const RansBlock& block : blocks) append_block(out, block);
  append_bytes(out, escapes.write(order));
  return out;
}

template <typename Code>
void decode_weights_into(const CodeRoom<Code>& room, Bytes stored, uint64_t rows, uint64_t columns,
                         const std::string& where) {
  const uint64_t elements = mul_or_throw(rows, columns, where);
  assert(elements > 0);
  ByteCursor cursor(stored, where);
  const StreamHead head = read_head(cursor, static_cast<uint32_t>(std::numeric_limits<Code>::max()));
  const uint32_t lanes = uint32_t{1} << head.lanes_log2;
  const std::vector<Bytes> blocks = take_blocks(cursor, block_count(elements, head.lanes_log2), lanes);
  EscapeReader escapes(cursor.take(cursor.remaining(), "escapes"), head.escape_order, where);

  AxisScales row_scales{std::vector<int8_t>(rows)}, column_scales{std::vector<int8_t>(columns)};
  decode_axes(head, blocks[0], escapes, row_scales, column_scales, where);
  const ScaleTables tables = make_scale_tables(head.shape, head.max_magnitude);
  const SlotIndex index(tables);
  std::vector<uint8_t> classes;
  std::vector<uint64_t> places;
  uint64_t done = 0;
  for (size_t i = 1; i < blocks.size(); ++i) {
    const uint64_t count = std::min(kBlockSteps << head.lanes_log2, elements - done);
    const std::span<Code> codes = room(count);
    classes.resize(count);
    fill_classes(row_scales, column_scales, done, classes);
    places.clear();
    decode_block<Code>(tables, index, classes, blocks[i], lanes, codes, places, where);
    fill_escapes<Code>(escapes, tables, classes, head.max_magnitude, places, codes);
    done += count;
  }
  escapes.finish();
}

template <typename Code>
std::vector<Code> decode_weights(Bytes stored, uint64_t rows, uint64_t columns, const std::string& where) {
  std::vector<Code> codes;
  const CodeRoom<Code> room = [&](uint64_t count) {
    codes.resize(codes.size() + count);
    return std::span(codes).last(count);
  };
  decode_weights_into(room, stored, rows, columns, where);
  return codes;
}

template <typename Code>
uint64_t estimate_weight_bytes(std::span<const Code> codes, uint64_t rows, uint64_t columns) {
  const uint32_t max_magnitude = largest_magnitude(codes);
  const ScaleFit fit = fit_scales(codes, rows, columns, max_magnitude);
  const ScaleTables tables = make_scale_tables(fit.shape, max_magnitude);
  EscapeList escapes;
  std::vector<uint8_t> classes(columns);
  for (uint64_t r = 0; r < rows; ++r) {
    fill_classes(fit.rows, fit.columns, r * columns, classes);
    escapes.add<Code>(tables, classes, codes.subspan(r * columns, columns));
  }
  const int lanes_log2 = lanes_log2_for(codes.size());
  const uint64_t blocks = block_count(codes.size(), lanes_log2);
  // A state of 32 bits holds half as many bits of codes when its lane ends; the axes have a lane of their own.
  const uint64_t lanes = 1 + (blocks << lanes_log2);
  return kStreamHeadBytes + (blocks + 1) * sizeof(uint32_t) + lanes * sizeof(uint16_t) +
         (fit.code_bits + fit.axis_bits) / (8 * kBitUnits) + escapes.length_bits(escapes.cheapest_order()) / 8;
}

std::vector<ByteVector> encode_weights(std::span<const CodeMatrix> matrices) {
  std::vector<ByteVector> streams(matrices.size());
  parallel_for(static_cast<int64_t>(matrices.size()), [&](int64_t i) {
    const CodeMatrix& matrix = matrices[static_cast<size_t>(i)];
    streams[static_cast<size_t>(i)] = encode_weights(matrix.codes, matrix.rows, matrix.columns);
  });
  return streams;
}

std::vector<uint64_t> estimate_weight_bytes(std::span<const CodeMatrix> matrices) {
  std::vector<uint64_t> bytes(matrices.size());
  parallel_for(static_cast<int64_t>(matrices.size()), [&](int64_t i) {
    const CodeMatrix& matrix = matrices[static_cast<size_t>(i)];
    bytes[static_cast<size_t>(i)] = estimate_weight_bytes(matrix.codes, matrix.rows, matrix.columns);
  });
  return bytes;
}

template ByteVector encode_weights(std::span<const int8_t>, uint64_t, uint64_t);
template ByteVector encode_weights(std::span<const int32_t>, uint64_t, uint64_t);
template void decode_weights_into(const CodeRoom<int8_t>&, Bytes, uint64_t, uint64_t, const std::string&);
template void decode_weights_into(const CodeRoom<int32_t>&, Bytes, uint64_t, uint64_t, const std::string&);
template std::vector<int8_t> decode_weights(Bytes, uint64_t, uint64_t, const std::string&);
template std::vector<int32_t> decode_weights(Bytes, uint64_t, uint64_t, const std::string&);
template uint64_t estimate_weight_bytes(std::span<const int8_t>, uint64_t, uint64_t);
template uint64_t estimate_weight_bytes(std::span<const int32_t>, uint64_t, uint64_t);

}  // namespace thimble
