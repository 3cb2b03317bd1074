// tensor_reader.cpp: see tensor_reader.h.
#include "packer/embed/tensor_reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <new>

#include "packer/rans/weight_coder.h"
#include "runtime/base/checked.h"
#include "runtime/base/format_error.h"
#include "runtime/base/hash.h"
#include "runtime/codes/trellis.h"

namespace thimble {
namespace {

// Levels to values, which go on to `take`.
class ValueSink : public LevelSink {
 public:
  ValueSink(const TensorReader& reader, size_t index, const TensorReader::TakeValues& take)
      : reader_(reader), index_(index), take_(take), entry_(reader.tensor(index)) {
    scales_.columns = reader.column_scales(index);
    scales_.blocks = reader.scale_blocks(index);
    scales_.block_columns = scales_.blocks == 1 ? entry_.columns() : kNvfp4Block;
  }

  void begin_rows(uint64_t first, uint64_t count) override {
    scales_.first_row = first;
    scales_.rows = reader_.row_scales(index_, first, count);
  }

  void take(uint64_t r, uint64_t k, std::span<const int32_t> levels) override {
    const std::span<float> values = std::span(values_).first(levels.size());
    scale_levels(levels, r, k, scales_, values);
    take_(r * entry_.columns() + k, values);
  }

 private:
  const TensorReader& reader_;
  size_t index_;
  const TensorReader::TakeValues& take_;
  const TensorEntry& entry_;
  LevelScales scales_;
  std::array<float, kRun> values_;
};

class LargestLevel : public LevelSink {
 public:
  void take(uint64_t, uint64_t, std::span<const int32_t> levels) override {
    for (int32_t level : levels) largest = std::max(largest, static_cast<uint32_t>(level < 0 ? -level : level));
  }
  uint32_t largest = 0;
};

}  // namespace

TensorReader::TensorReader(ArtifactBytes file, std::string path) : file_(file), path_(std::move(path)) {
  ByteVector room;
  const auto first = static_cast<size_t>(std::min<uint64_t>(kLeastFrontBytes, file_.size()));
  const uint64_t wanted = front_bytes(file_.read(0, first, room, path_), path_);
  // A file that is shorter than its front is: read_table() says what it lacks.
  const Bytes front = file_.read(0, to_size(std::min(wanted, file_.size())), room, path_);
  ContainerTable table = read_table(front, file_.size(), path_);
  checksum_ = table.checksum;
  entries_ = std::move(table.entries);
  uint64_t end = kPrefixBytes + entries_.size() * kSectionEntryBytes;
  for (size_t i = 0; i < entries_.size(); ++i) {
    offsets_.push_back(end);
    end += entries_[i].stored_bytes;
    if (end > file_.size())
      throw_format_error(path_, "section {} ends at byte {}, the file has {} B", i, end, file_.size());
  }
  offsets_.push_back(end);
  if (end < file_.size()) throw_format_error(path_, "{} B after the last section", file_.size() - end);
  const Bytes header = front.subspan(static_cast<size_t>(offsets_[0]));
  check_section_checksum(header, entries_[0], 0, path_);
  plan_ = plan_stored(table.version, entries_, header, file_.size(), path_);
  find_places();
  for (size_t i = 0; i < places_.size(); ++i) decode_memory_ = std::max(decode_memory_, memory_of(i));
}

void TensorReader::find_places() {
  places_.resize(plan_.header.tensors.size());
  for (TensorPlace& place : places_) place.codes_end = place.end = offsets_[1];
  for (size_t s = 1; s < plan_.sections.size(); ++s) {
    const PlannedSection& section = plan_.sections[s];
    uint64_t section_byte = 0;
    for (const TensorSlice& slice : section.slices) {
      TensorPlace& place = places_[slice.tensor];
      const TensorPiece piece{s, section_byte, slice.first_byte, slice.bytes};
      section_byte += slice.bytes;
      place.end = offsets_[s + 1];
      if (section.shape.kind == SectionKind::kCodes) {
        place.codes.push_back(piece);
        place.codes_end = place.end;
        place.codes_bytes += entries_[s].stored_bytes;
      } else {
        place.others.push_back(piece);
        place.others_bytes += entries_[s].stored_bytes * slice.bytes / section.shape.content_bytes();
      }
    }
  }
}

// While a section's content is made: what was stored, the same decompressed and put in order, and a codec's window.
uint64_t TensorReader::load_memory(size_t section) const {
  const SectionEntry& entry = entries_[section];
  const uint64_t stored = file_.in_memory() ? 0 : entry.stored_bytes,
                 content = plan_.sections[section].shape.content_bytes();
  constexpr uint64_t kOfCodec = 1 << 20;
  const bool windowed = entry.codec != CodecId::kNone;
  const uint64_t window = windowed ? kOfCodec + std::min(std::bit_ceil(content), uint64_t{1} << kCodecWindowLog) : 0;
  return stored + 3 * content + window;
}

uint64_t TensorReader::memory_of(size_t index) const {
  constexpr uint64_t kOfRuns = 64 << 10;
  const TensorEntry& entry = tensor(index);
  uint64_t of_codes = 0, of_others = 0, kept = 0;
  for (const TensorPiece& piece : places_[index].codes) {
    const ContentShape& shape = plan_.sections[piece.section].shape;
    const SectionEntry& stored = entries_[piece.section];
    const uint64_t decoding = stored.codec == CodecId::kRans
                                  ? (file_.in_memory() ? 0 : stored.stored_bytes) +
                                        decoder_memory(shape.rows, shape.columns, shape.trellis_bits)
                                  : load_memory(piece.section);
    const uint64_t scales = shape.rows * scale_blocks(index) * (sizeof(float) + entry.scale_element_bytes());
    of_codes = std::max(of_codes, decoding + scales);
  }
  for (const TensorPiece& piece : places_[index].others) {
    of_others = std::max(of_others, load_memory(piece.section));
    kept = std::max(kept, plan_.sections[piece.section].shape.content_bytes());
  }
  const uint64_t of_columns = entry.coded() ? entry.columns() * (sizeof(float) + sizeof(int16_t) + 1) : 0;
  return kOfRuns + of_columns + kept + std::max(of_codes, of_others);
}

uint64_t TensorReader::scale_blocks(size_t index) const {
  const TensorEntry& entry = tensor(index);
  return entry.encoding == Encoding::kNvfp4 ? static_cast<uint64_t>(nvfp4_blocks(static_cast<int64_t>(entry.columns())))
                                            : 1;
}

Bytes TensorReader::read_section(size_t section, ByteVector& room) const {
  const Bytes stored = file_.read(offsets_[section], entries_[section].stored_bytes, room, path_);
  check_section_checksum(stored, entries_[section], section, path_);
  return stored;
}

void TensorReader::load(size_t section, Content& content) const {
  if (content.section == section) return;
  content = {};
  ByteVector room;
  const SectionEntry& entry = entries_[section];
  const Bytes stored = read_section(section, room);
  if (entry.codec == CodecId::kNone && entry.layout == LayoutId::kPlain && entry.stored_bytes == entry.raw_bytes) {
    content.room = std::move(room);
    content.bytes = stored;
  } else {
    content.room = read_content({entry, stored}, plan_, section, path_);
    content.bytes = content.room;
  }
  content.section = section;
}

void TensorReader::copy_others(size_t index, uint64_t first_byte, std::span<std::byte> to) const {
  Content own;
  const bool is_free = !last_in_use_.test_and_set(std::memory_order_acquire);
  const auto give_back = [&](Content*) {
    if (is_free) last_in_use_.clear(std::memory_order_release);
  };
  const std::unique_ptr<Content, decltype(give_back)> content(is_free ? &last_ : &own, give_back);
  for (const TensorPiece& piece : places_[index].others) {
    const uint64_t first = std::max(piece.first_byte, first_byte);
    const uint64_t last = std::min(piece.first_byte + piece.bytes, first_byte + to.size());
    if (first >= last) continue;
    load(piece.section, *content);
    const Bytes part = content->bytes.subspan(static_cast<size_t>(piece.section_byte + first - piece.first_byte),
                                              static_cast<size_t>(last - first));
    std::ranges::copy(part, to.begin() + static_cast<std::ptrdiff_t>(first - first_byte));
  }
}

void TensorReader::decode_codes(const TensorPiece& piece, const TakeCodes& take) const {
  const SectionEntry& entry = entries_[piece.section];
  const ContentShape& shape = plan_.sections[piece.section].shape;
  const uint64_t begin = piece.first_byte / shape.element_bytes;
  ByteVector room;
  const Bytes stored = read_section(piece.section, room);
  if (entry.codec == CodecId::kRans) {
    const auto take_block = [&](const WeightBlock& block, std::span<const int32_t> codes) {
      for (uint64_t r = 0; r < block.rows; ++r)
        take(begin + block.begin + r * block.stride,
             codes.subspan(static_cast<size_t>(r * block.width), static_cast<size_t>(block.width)));
    };
    const std::string where = section_name(piece.section);
    return decode_weights(take_block, stored, shape.rows, shape.columns, where, shape.trellis_bits,
                          shape.has_stepped_codes() ? kMaxCodeMagnitude : kMaxCode);
  }
  const ByteVector content = read_content({entry, stored}, plan_, piece.section, path_);
  std::array<int32_t, kRun> codes;
  for (uint64_t done = 0; done < shape.elements();) {
    const auto count = static_cast<size_t>(std::min<uint64_t>(kRun, shape.elements() - done));
    const std::byte* from = &content[static_cast<size_t>(done * shape.element_bytes)];
    for (size_t i = 0; i < count; ++i, from += shape.element_bytes)
      codes[i] = shape.has_stepped_codes() ? load_little_endian<int32_t>(from) : load_little_endian<int8_t>(from);
    take(begin + done, std::span(codes).first(count));
    done += count;
  }
}

void TensorReader::decode_levels(size_t index, LevelSink& sink) const {
  const TensorEntry& entry = tensor(index);
  const std::string where = tensor_where(path_, entry.name);
  LevelMaker levels(entry, where, sink);
  // Rows without columns have scales all the same, and these rules.
  if (entry.elements() == 0)
    for (uint64_t first = 0; first < entry.rows(); first += kRun)
      sink.begin_rows(first, std::min<uint64_t>(kRun, entry.rows() - first));
  for (const TensorPiece& piece : places_[index].codes) {
    const uint64_t first = piece.first_byte / entry.element_bytes(), count = piece.bytes / entry.element_bytes();
    const uint64_t first_row = first / entry.columns(), last_row = (first + count - 1) / entry.columns();
    sink.begin_rows(first_row, last_row - first_row + 1);
    decode_codes(piece, [&](uint64_t at, std::span<const int32_t> codes) { levels.take(at, codes); });
  }
}

uint32_t TensorReader::largest_level(size_t index) const {
  const TensorEntry& entry = tensor(index);
  const std::vector<TensorPiece>& pieces = places_[index].codes;
  if (entry.encoding == Encoding::kNvfp4) return static_cast<uint32_t>(2 * kE2m1Max);
  const bool by_heads =
      std::ranges::all_of(pieces, [&](const auto& piece) { return entries_[piece.section].codec == CodecId::kRans; });
  if (!by_heads && entry.encoding == Encoding::kRowScaled) return static_cast<uint32_t>(entry.max_code);
  if (!by_heads) {
    LargestLevel sink;
    decode_levels(index, sink);
    return sink.largest;
  }
  uint32_t largest = 0;
  for (const TensorPiece& piece : pieces) {
    ByteVector room;
    const size_t head = std::min<size_t>(kStreamHeadBytes, entries_[piece.section].stored_bytes);
    const Bytes stored = file_.read(offsets_[piece.section], head, room, path_);
    largest = std::max(largest, largest_magnitude(stored, section_name(piece.section), entry.trellis_bits));
  }
  if (entry.encoding == Encoding::kRowScaled) return std::min(largest, static_cast<uint32_t>(entry.max_code));
  return 2 * std::min(largest, static_cast<uint32_t>(kMaxSteppedCode)) + (entry.trellis_bits == 0 ? 0 : 1);
}

std::vector<float> TensorReader::row_scales(size_t index, uint64_t first_row, uint64_t rows) const {
  const TensorEntry& entry = tensor(index);
  const uint64_t blocks = scale_blocks(index), bytes = entry.scale_element_bytes();
  const uint64_t begin = entry.encoding == Encoding::kNvfp4 ? sizeof(float) : 0;  // behind the tensor scale
  ByteVector stored(to_size(rows * blocks * bytes));
  copy_others(index, begin + first_row * blocks * bytes, stored);
  std::vector<float> scales(to_size(rows * blocks));
  const auto reject = [&](std::string_view kind, size_t i, std::string_view what) {
    throw_format_error(tensor_where(path_, entry.name), "{} {} {}", kind, first_row * blocks + i, what);
  };
  for (size_t i = 0; i < scales.size(); ++i) {
    const std::byte* at = &stored[i * static_cast<size_t>(bytes)];
    float& value = scales[i];
    if (entry.encoding == Encoding::kNvfp4) {
      const auto code = load_little_endian<uint8_t>(at);
      if (code > kUe4m3MaxCode)
        reject("block scale", i, fill_text("has the code {}, 0 to {} allowed", code, kUe4m3MaxCode));
      value = float_from_ue4m3(code) / 2;  // levels are doubled
    } else if (entry.encoding == Encoding::kRowScaled) {
      const auto scale = load_little_endian<uint16_t>(at);
      if (!is_row_scale(scale)) reject("row scale", i, "must be finite and above 0");
      value = float_from_fp16(scale);
    } else {
      const auto step = load_little_endian<int16_t>(at);
      if (!is_step(step)) reject("row step", i, fill_text("is {}, -{} to {} allowed", step, kMaxStep, kMaxStep));
      value = step_size(step);
    }
  }
  return scales;
}

std::vector<float> TensorReader::column_scales(size_t index) const {
  const TensorEntry& entry = tensor(index);
  const auto columns = to_size(entry.columns());
  if (entry.encoding == Encoding::kRowScaled) return std::vector<float>(columns, 1.0f);
  const std::string where = tensor_where(path_, entry.name);
  if (entry.encoding == Encoding::kNvfp4) {
    std::array<std::byte, sizeof(float)> stored;
    copy_others(index, 0, stored);
    const auto scale = std::bit_cast<float>(load_little_endian<uint32_t>(stored.data()));
    if (!is_nvfp4_tensor_scale(scale)) throw_format_error(where, "the tensor scale must be above 0 and at most 2^116");
    return std::vector<float>(columns, scale);
  }
  ByteVector stored(columns * sizeof(int16_t));
  copy_others(index, entry.rows() * sizeof(int16_t), stored);
  std::vector<float> scales(columns);
  for (size_t k = 0; k < columns; ++k) {
    const auto step = load_little_endian<int16_t>(&stored[k * sizeof(int16_t)]);
    if (!is_step(step))
      throw_format_error(where, "column step {} is {}, -{} to {} allowed", k, step, kMaxStep, kMaxStep);
    scales[k] = step_size(step);
  }
  return scales;
}

void TensorReader::decode_values(size_t index, const TakeValues& take) const {
  const TensorEntry& entry = tensor(index);
  if (entry.coded()) {
    ValueSink sink(*this, index, take);
    return decode_levels(index, sink);
  }
  const uint64_t element_bytes = entry.element_bytes(), count = entry.elements();
  ByteVector stored(kRun * static_cast<size_t>(element_bytes));
  for (uint64_t first = 0; first < count; first += kRun) {
    const auto n = static_cast<size_t>(std::min<uint64_t>(kRun, count - first));
    const std::span piece = std::span(stored).first(n * static_cast<size_t>(element_bytes));
    copy_others(index, first * element_bytes, piece);
    take(first, to_float32(entry.dtype, piece));
  }
}

}  // namespace thimble
