// gguf.cpp: the parser of gguf.h.
#include "quantizer/formats/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <set>
#include <tuple>

#include "eval/tokenizers/utf8.h"
#include "quantizer/console/quoted_name.h"
#include "runtime/base/checked.h"

namespace thimble {
namespace {

constexpr std::string_view kGgufMagic = "GGUF";
constexpr const char* kAlignmentKey = "general.alignment";
constexpr uint64_t kDefaultAlignment = 32, kMostAlignment = 1 << 16;
constexpr uint32_t kMostDimensions = 4;

// Bytes of a scalar, 0 for texts and arrays, which have none of their own.
uint64_t scalar_bytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool: return 1;
    case GgufType::kU16:
    case GgufType::kI16: return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32: return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64: return 8;
    case GgufType::kText:
    case GgufType::kArray: break;
  }
  return 0;
}

// 1e-5 in float32 is 9.99999974737875e-06; configs say 1e-05.
double shortest_decimal(float value) {
  const std::string text = fmt::format("{}", value);
  double parsed = value;  // of infinities and NaN, which stay
  std::from_chars(text.data(), text.data() + text.size(), parsed);
  return parsed;
}

class GgufParser {
 public:
  GgufParser(Bytes file, const std::string& path) : bytes_(file), cursor_(file, path), path_(path) {}

  GgufFile read() && {
    const auto [tensors, keys] = read_counts();
    for (uint64_t i = 0; i < keys; ++i) read_key();
    for (uint64_t i = 0; i < tensors; ++i) read_tensor_header();
    place_tensors();
    return std::move(file_);
  }

 private:
  struct Header {
    std::string name;
    uint64_t offset = 0, bytes = 0;
  };

  std::pair<uint64_t, uint64_t> read_counts() {
    if (cursor_.take_text(kGgufMagic.size(), "magic") != kGgufMagic)
      throw FormatError(path_, "does not begin with 'GGUF'");
    const auto version = cursor_.read<uint32_t>("version");
    if (version != 2 && version != 3)
      throw FormatError(path_, fmt::format("version {}, read are 2 and 3{}", version,
                                           (version & 0xFFFF) == 0 ? " (is it big-endian?)" : ""));
    const auto tensors = cursor_.read<uint64_t>("number of tensors"), keys = cursor_.read<uint64_t>("number of keys");
    for (const auto& [count, most, what] :
         {std::tuple(tensors, kMostGgufTensors, "tensors"), std::tuple(keys, kMostGgufKeys, "keys")})
      if (count > most) throw FormatError(path_, fmt::format("{} {}, at most {} are read", count, what, most));
    return {tensors, keys};
  }

  std::string read_name(uint64_t most, const char* object) {
    const auto length = cursor_.read<uint64_t>(object);
    if (length == 0 || length > most)
      throw FormatError(path_, fmt::format("{} of {} B, allowed are 1 to {}", object, length, most));
    const std::string_view name = cursor_.take_text(length, object);
    if (first_invalid_utf8(name))
      throw FormatError(path_, fmt::format("{} {} is not UTF-8", object, quoted_name(name)));
    return std::string(name);
  }

  GgufType read_type(const std::string& where) {
    const auto type = cursor_.read<uint32_t>(where);
    if (type > static_cast<uint32_t>(GgufType::kF64))
      throw FormatError(path_, fmt::format("{} is of unknown type {}", where, type));
    return static_cast<GgufType>(type);
  }

  void read_key() {
    const std::string key = read_name(kMostGgufKeyBytes, "name of a key"), where = "key " + quoted_name(key);
    if (!seen_.insert(key).second) throw FormatError(path_, where + " is there twice");
    const GgufType type = read_type(where);
    if (type == GgufType::kArray)
      read_array(key, where);
    else
      file_.metadata[key] = read_value(type, where);
  }

  Json read_value(GgufType type, const std::string& where) {
    switch (type) {
      case GgufType::kU8: return cursor_.read<uint8_t>(where);
      case GgufType::kI8: return cursor_.read<int8_t>(where);
      case GgufType::kU16: return cursor_.read<uint16_t>(where);
      case GgufType::kI16: return cursor_.read<int16_t>(where);
      case GgufType::kU32: return cursor_.read<uint32_t>(where);
      case GgufType::kI32: return cursor_.read<int32_t>(where);
      case GgufType::kU64: return cursor_.read<uint64_t>(where);
      case GgufType::kI64: return cursor_.read<int64_t>(where);
      case GgufType::kF32: return shortest_decimal(std::bit_cast<float>(cursor_.read<uint32_t>(where)));
      case GgufType::kF64: return std::bit_cast<double>(cursor_.read<uint64_t>(where));
      case GgufType::kBool: {
        const auto value = cursor_.read<uint8_t>(where);
        if (value > 1) throw FormatError(path_, fmt::format("{} is {}, a truth value is 0 or 1", where, value));
        return value == 1;
      }
      case GgufType::kText: {
        const std::string_view text = cursor_.take_text(cursor_.read<uint64_t>(where), where);
        if (first_invalid_utf8(text)) throw FormatError(path_, where + " is not UTF-8");
        return std::string(text);
      }
      case GgufType::kArray: break;
    }
    throw FormatError(path_, where + " is an array of arrays, which are not read");
  }

  void read_array(const std::string& key, const std::string& where) {
    const GgufType type = read_type(where);
    const auto count = cursor_.read<uint64_t>(where);
    const uint64_t begin = cursor_.position();
    if (type == GgufType::kText) {
      for (uint64_t i = 0; i < count; ++i) cursor_.take(cursor_.read<uint64_t>(where), where);  // at least 8 B each
    } else if (type == GgufType::kArray) {
      read_value(type, where);
    } else if (count > kShortGgufArray || count > elements_left_) {
      cursor_.take(mul_or_throw(count, scalar_bytes(type), path_ + ": " + where), where);
    } else {
      Json& values = file_.metadata[key] = Json::array();
      for (uint64_t i = 0; i < count; ++i) values.push_back(read_value(type, where));
      elements_left_ -= count;
    }
    file_.arrays[key] = {type, count, bytes_.subspan(begin, cursor_.position() - begin)};
  }

  void read_tensor_header() {
    const std::string name = read_name(kMostGgufNameBytes, "name of a tensor"), where = "tensor " + quoted_name(name);
    GgufTensor tensor;
    const auto dimensions = cursor_.read<uint32_t>(where);
    if (dimensions < 1 || dimensions > kMostDimensions)
      throw FormatError(path_,
                        fmt::format("{} has {} dimensions, allowed are 1 to {}", where, dimensions, kMostDimensions));
    for (uint32_t i = 0; i < dimensions; ++i) {
      const auto size = cursor_.read<uint64_t>(where);
      if (size == 0 || size > uint64_t{INT64_MAX})
        throw FormatError(path_, fmt::format("{} has a dimension of {}, allowed are 1 to 2^63 - 1", where, size));
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
    }
    const auto type = cursor_.read<uint32_t>(where);
    tensor.type = gguf_blocks(type);
    if (!tensor.type || !tensor.type->is_read())
      throw FormatError(
          path_, fmt::format("{} is of type {}, read are {}", where,
                             tensor.type ? std::string(tensor.type->name) : std::to_string(type), gguf_types_read()));
    if (tensor.shape.back() % tensor.type->elements != 0)
      throw FormatError(path_, fmt::format("{} of shape {}: rows of type {} are multiples of {}", where,
                                           shape_text(tensor.shape), tensor.type->name, tensor.type->elements));
    const uint64_t elements = element_count_or_throw(tensor.shape, path_ + ": " + where);
    // Four bytes for each element when it is dequantized.
    mul_or_throw(elements, sizeof(float), path_ + ": " + where);
    const uint64_t blocks = elements / static_cast<uint64_t>(tensor.type->elements);
    headers_.push_back(
        {name, cursor_.read<uint64_t>(where), mul_or_throw(blocks, tensor.type->bytes, path_ + ": " + where)});
    if (!file_.tensors.emplace(name, std::move(tensor)).second) throw FormatError(path_, where + " is there twice");
  }

  uint64_t read_alignment() const {
    const auto found = file_.metadata.find(kAlignmentKey);
    if (found == file_.metadata.end()) return kDefaultAlignment;
    const uint64_t alignment = found->is_number_unsigned() ? found->get<uint64_t>() : 0;
    if (alignment == 0 || alignment > kMostAlignment || alignment % 8 != 0)
      throw FormatError(path_, fmt::format("key '{}' is {}, allowed are multiples of 8 up to {}", kAlignmentKey,
                                           found->dump(), kMostAlignment));
    return alignment;
  }

  void place_tensors() {
    const uint64_t alignment = read_alignment();
    if (headers_.empty()) return;
    const uint64_t padding = (alignment - cursor_.position() % alignment) % alignment;
    cursor_.take(padding, "padding before the data");
    const Bytes data = cursor_.take(cursor_.remaining(), "data");
    std::ranges::sort(headers_, {}, [](const Header& header) { return std::pair(header.offset, header.bytes); });
    uint64_t end = 0;
    std::string before;
    for (const Header& header : headers_) {
      const std::string where = "tensor " + quoted_name(header.name);
      if (header.offset % alignment != 0)
        throw FormatError(path_,
                          fmt::format("{}: offset {}, allowed are multiples of {}", where, header.offset, alignment));
      if (header.offset > data.size() || header.bytes > data.size() - header.offset)
        throw FormatError(path_, fmt::format("{}: {} B at offset {}, the data have {} B", where, header.bytes,
                                             header.offset, data.size()));
      if (header.offset < end)
        throw FormatError(path_, fmt::format("{} at offset {} overlaps tensor {}, which ends at {}", where,
                                             header.offset, quoted_name(before), end));
      end = header.offset + header.bytes;
      before = header.name;
      file_.tensors.at(header.name).bytes = data.subspan(header.offset, header.bytes);
    }
  }

  Bytes bytes_;
  ByteCursor cursor_;
  const std::string& path_;
  GgufFile file_;
  std::set<std::string> seen_;  // keys, those of long arrays too
  std::vector<Header> headers_;
  uint64_t elements_left_ = kMostGgufElements;
};

}  // namespace

GgufFile read_gguf(Bytes file, const std::string& path) { return GgufParser(file, path).read(); }

bool looks_like_gguf(Bytes file) { return as_text(file).starts_with(kGgufMagic); }

}  // namespace thimble
