// artifact_input.h: the file that a fuzzer's bytes stand for. The first byte picks how the rest becomes one, because
// random bytes pass neither a checksum nor a canonical header:
//   0: the rest is the file, with length and checksums made right;
//   1: the rest is header JSON up to a zero byte, then section entries and contents;
//   2: the rest describes a small tensor table, whose header and plan are right, then section contents.
// Where THIMBLE_FUZZ_FILES names a folder, the files go there too: scripts/portable-check decodes them elsewhere.
#pragma once

#include <cstdlib>
#include <fstream>
#include <optional>

#include "packer/artifact.h"
#include "packer/codecs/codec.h"
#include "packer/layout/stored_model.h"
#include "runtime/codes/trellis.h"
#include "tests/packer/reseal.h"

namespace thimble {

// Takes numbers and runs of bytes from the fuzzer's input; zeros and empty runs once it is used up.
class FuzzInput {
 public:
  explicit FuzzInput(Bytes bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  uint8_t number() { return bytes_.empty() ? uint8_t{0} : std::to_integer<uint8_t>(take(1)[0]); }
  Bytes take(size_t count) {
    Bytes taken = bytes_.first(std::min(count, bytes_.size()));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }
  Bytes take_to_zero() {
    auto end = std::ranges::find(bytes_, std::byte{0});
    Bytes text = take(static_cast<size_t>(end - bytes_.begin()));
    take(1);
    return text;
  }
  Bytes rest() { return take(bytes_.size()); }

 private:
  Bytes bytes_;
};

// A section whose stored bytes are the fuzzer's, or those bytes compressed, in a codec of its choice.
inline std::shared_ptr<const PackedSection> make_section(FuzzInput& input, SectionKind kind, LayoutId layout,
                                                         std::optional<uint64_t> raw_bytes) {
  const uint8_t choice = input.number();
  const Codec& codec = all_codecs()[choice % all_codecs().size()];
  Bytes bytes = input.take(raw_bytes && codec.id == CodecId::kNone ? *raw_bytes : input.number());
  const ContentShape shape{kind, 1, bytes.size(), 1, kMaxCode};
  const bool lowest = std::ranges::count(bytes, std::byte{0x80}) > 0;  // -128 is no code
  const bool may_compress =
      codec_takes(codec.id, shape, layout) && !(codec.id == CodecId::kRans && (lowest || bytes.empty()));
  PackedSection section;
  section.stored =
      choice & 0x80 && may_compress ? codec.compress(bytes, shape) : ByteVector(bytes.begin(), bytes.end());
  section.entry = {kind,
                   codec.id,
                   layout,
                   static_cast<uint32_t>(raw_bytes.value_or(bytes.size())),
                   static_cast<uint32_t>(section.stored.size()),
                   xxh3(section.stored)};
  return std::make_shared<PackedSection>(std::move(section));
}

inline std::shared_ptr<const PackedSection> header_section(Bytes text) {
  ContentShape shape{SectionKind::kHeader, 1, text.size()};
  return std::make_shared<PackedSection>(pack_section_as(shape, text, LayoutId::kPlain, CodecId::kNone));
}

inline ByteVector file_from_header_text(FuzzInput& input) {
  PackedSections sections = {header_section(input.take_to_zero())};
  while (!input.empty()) {
    const auto kind = static_cast<SectionKind>(input.number() % kSectionKindNames.size());
    const auto layout = static_cast<LayoutId>(input.number() % kLayoutNames.size());
    sections.push_back(make_section(input, kind, layout, std::nullopt));
  }
  return write_container(1 + input.number() % 3, sections);
}

inline ByteVector file_from_table(FuzzInput& input) {
  constexpr DType kRawTypes[] = {DType::kF16, DType::kF32, DType::kU8, DType::kI64};
  ArtifactHeader header{"{}", "{}", false, {}};
  const int tensor_count = input.number() % 4;
  for (int i = 0; i < tensor_count; ++i) {
    TensorEntry tensor{std::string(1, static_cast<char>('a' + i)), {input.number() % 9, input.number() % 9}};
    tensor.encoding = static_cast<Encoding>(input.number() % 4);
    if (tensor.encoding == Encoding::kRowScaled) tensor.max_code = 1 + input.number() % kMaxCode;
    if (tensor.encoding == Encoding::kStepped)
      tensor.trellis_bits = std::max(1, input.number() % (kMaxTrellisBits + 1)) / 2 * 2;
    tensor.dtype = kRawTypes[input.number() % std::size(kRawTypes)];
    header.tensors.push_back(std::move(tensor));
  }
  const ArtifactPlan plan = plan_artifact(header, header_text(header, "fuzz"), "fuzz");
  PackedSections sections = {header_section(as_bytes_of(plan.text))};
  for (size_t i = 1; i < plan.sections.size(); ++i) {
    const ContentShape& shape = plan.sections[i].shape;
    const std::vector<LayoutId> layouts = allowed_layouts(shape);
    LayoutId layout = layouts[input.number() % layouts.size()];
    sections.push_back(make_section(input, shape.kind, layout, laid_out_bytes(layout, shape)));
  }
  return write_container(format_version_of(header), sections);
}

inline ByteVector file_of_any_kind(Bytes data) {
  FuzzInput input(data);
  switch (input.number() % 3) {
    case 1: return file_from_header_text(input);
    case 2: return file_from_table(input);
    default: break;
  }
  Bytes rest = input.rest();
  ByteVector file(rest.begin(), rest.end());
  reseal(file, Reseal::kChecksumsAndLength);
  return file;
}

inline ByteVector file_from(Bytes data) {
  ByteVector file = file_of_any_kind(data);
  if (const char* folder = std::getenv("THIMBLE_FUZZ_FILES")) {
    std::ofstream out(std::string(folder) + "/" + std::to_string(xxh3(file)) + ".thmb", std::ios::binary);
    out.write(reinterpret_cast<const char*>(file.data()), std::ssize(file));
  }
  return file;
}

}  // namespace thimble
