// safetensors.cpp: reader and writer of safetensors.h.
#include "quantizer/formats/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <vector>

#include "quantizer/console/quoted_name.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/checked.h"
#include "runtime/base/count_text.h"
#include "runtime/base/hash.h"
#include "runtime/base/json.h"

namespace thimble {
namespace {

constexpr const char* kMetadataKey = "__metadata__";
constexpr const char* kChecksumKey = "xxh3";
constexpr uint64_t kAlignmentBytes = 8;

Json read_json_header(ByteCursor& cursor) {
  auto length = cursor.read<uint64_t>("header length");
  if (length > kMaxSafetensorsHeaderBytes)
    throw FormatError(cursor.path(), fmt::format("safetensors header of {} B, at most {} B allowed", length,
                                                 kMaxSafetensorsHeaderBytes));
  Bytes text = cursor.take(length, "safetensors header");
  if (text.empty() || text.front() != std::byte{'{'})
    throw FormatError(cursor.path(), "safetensors header does not start with '{'");
  return parse_json(text, cursor.path() + ": safetensors header");
}

std::map<std::string, std::string> read_metadata(const Json& value, const std::string& where) {
  if (!value.is_object()) throw FormatError(where, "is not a JSON object of texts");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) throw FormatError(where, "value of " + quoted_name(key) + " is not a text");
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

const Json& field(const Json& tensor, const char* name, const std::string& where) {
  auto found = tensor.find(name);
  if (found == tensor.end()) throw FormatError(where, fmt::format("has no '{}'", name));
  return *found;
}

// A JSON array of integers from 0 to 2^63 - 1.
Shape read_integers(const Json& values, const char* name, const std::string& where) {
  if (!values.is_array()) throw FormatError(where, fmt::format("'{}' is not an array of integers", name));
  Shape integers;
  integers.reserve(values.size());
  for (const Json& value : values) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > std::numeric_limits<int64_t>::max())
      throw FormatError(where, fmt::format("'{}' holds {}, must be an integer from 0 to 2^63 - 1", name,
                                           quoted_name(value.dump(-1, ' ', true, Json::error_handler_t::replace))));
    integers.push_back(value.get<int64_t>());
  }
  return integers;
}

TensorView read_tensor(const Json& entry, Bytes data, const std::string& where) {
  if (!entry.is_object()) throw FormatError(where, "is not a JSON object");
  const Json& dtype = field(entry, "dtype", where);
  if (!dtype.is_string()) throw FormatError(where, "'dtype' is not a text");
  TensorView tensor;
  const auto& type = dtype.get_ref<const std::string&>();
  if (type.starts_with("F8_") || type.starts_with("F6_") || type.starts_with("F4"))
    throw FormatError(where, fmt::format("dtype {} is of a checkpoint that is quantized already: give the one in F32, "
                                         "F16 or BF16 that it was made from",
                                         quoted_name(type)));
  tensor.dtype = dtype_from_name(type, where);
  tensor.shape = read_integers(field(entry, "shape", where), "shape", where);
  Shape offsets = read_integers(field(entry, "data_offsets", where), "data_offsets", where);
  if (entry.size() != 3)
    throw FormatError(where, counted(entry.size(), "key") + ", allowed are dtype, shape and data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1] || static_cast<uint64_t>(offsets[1]) > data.size())
    throw FormatError(where, fmt::format("data_offsets {}, must be [begin, end] with begin <= end <= {}",
                                         shape_text(offsets), data.size()));
  const auto begin = static_cast<uint64_t>(offsets[0]), held = static_cast<uint64_t>(offsets[1]) - begin;
  const uint64_t needed = tensor_bytes_or_throw(tensor.dtype, tensor.shape, where);
  if (held != needed)
    throw FormatError(where,
                      fmt::format("shape {} of {} needs {} B, data_offsets {} hold {} B", shape_text(tensor.shape),
                                  dtype_name(tensor.dtype), needed, shape_text(offsets), held));
  tensor.bytes = data.subspan(begin, needed);
  return tensor;
}

// The tensors must lie one after the other and cover the data, whatever the order of the header.
void check_coverage(const TensorMap& tensors, Bytes data, const std::string& path) {
  std::vector<std::tuple<uint64_t, uint64_t, std::string_view>> places;  // begin, end, name
  for (const auto& [name, tensor] : tensors) {
    const auto begin = static_cast<uint64_t>(tensor.bytes.data() - data.data());
    places.emplace_back(begin, begin + tensor.bytes.size(), name);
  }
  std::ranges::sort(places);
  uint64_t covered = 0;
  for (const auto& [begin, end, name] : places) {
    if (begin != covered)
      throw FormatError(
          path,
          fmt::format("tensor {}: data starts at {}, {} at {}: tensors must cover the data exactly", quoted_name(name),
                      begin, begin < covered ? "inside the one before that ends" : "after a hole", covered));
    covered = end;
  }
  if (covered != data.size())
    throw FormatError(path, fmt::format("the tensors cover {} B of data, the file holds {} B", covered, data.size()));
}

// Names in the order of their data.
std::vector<std::string> data_order(const TensorMap& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return dtype_bytes(tensors.at(a).dtype) > dtype_bytes(tensors.at(b).dtype);
  });
  return names;
}

void check_bytes(const TensorView& tensor, uint64_t held, const std::string& where) {
  const uint64_t needed = tensor_bytes_or_throw(tensor.dtype, tensor.shape, where);
  if (held != needed)
    throw FormatError(where, fmt::format("shape {} of {} needs {} B, {} B given", shape_text(tensor.shape),
                                         dtype_name(tensor.dtype), needed, held));
}

std::string where_of(const std::string& path, const std::string& name) {
  return path + ": tensor " + quoted_name(name);
}

// The header's text, padded with spaces so that the data starts at a multiple of 8.
std::string header_text(const std::string& path, const TensorMap& tensors, const std::vector<std::string>& order,
                        const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  uint64_t offset = 0;
  for (const std::string& name : order) {
    const TensorView& tensor = tensors.at(name);
    const std::string where = where_of(path, name);
    if (name == kMetadataKey) throw FormatError(where, "the name is reserved");
    uint64_t end = add_or_throw(offset, tensor_bytes_or_throw(tensor.dtype, tensor.shape, where), where);
    header[name] = {{"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = canonical_json(header);
  } catch (const Json::exception& error) {
    throw FormatError(path, std::string("cannot write the safetensors header: ") + error.what());
  }
  text.resize((text.size() + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes, ' ');
  if (text.size() > kMaxSafetensorsHeaderBytes)
    throw FormatError(
        path, fmt::format("safetensors header of {} B, at most {} B allowed", text.size(), kMaxSafetensorsHeaderBytes));
  return text;
}

// Names, dtypes, shapes and bytes in ascending order of names, then the metadata without the checksum itself.
// add_bytes(hasher, name) adds the bytes.
template <typename AddBytes>
std::string checksum_of(const TensorMap& tensors, const std::map<std::string, std::string>& metadata,
                        const AddBytes& add_bytes) {
  Hasher hasher;
  for (const auto& [name, tensor] : tensors) {
    hasher.add(name).add(dtype_name(tensor.dtype)).add(shape_text(tensor.shape));
    add_bytes(hasher, name);
  }
  for (const auto& [key, value] : metadata)
    if (key != kChecksumKey) hasher.add(key).add(value);
  return hex64(hasher.digest());
}

std::string checksum_of(const TensorMap& tensors, const std::map<std::string, std::string>& metadata) {
  return checksum_of(tensors, metadata,
                     [&](Hasher& hasher, const std::string& name) { hasher.add(tensors.at(name).bytes); });
}

// The file, whose data write_tensor(file, name) adds tensor by tensor.
template <typename WriteTensor>
void write_data(const std::string& path, const TensorMap& shapes, const std::map<std::string, std::string>& metadata,
                const WriteTensor& write_tensor) {
  const std::vector<std::string> order = data_order(shapes);
  const std::string header = header_text(path, shapes, order, metadata);
  ByteVector length;
  append_little_endian(length, uint64_t{header.size()});
  AtomicFile file(path);
  file.write(length);
  file.write(as_bytes_of(header));
  for (const std::string& name : order) write_tensor(file, name);
  file.commit();
}

}  // namespace

CheckpointContents read_safetensors(Bytes file, const std::string& path) {
  ByteCursor cursor(file, path);
  Json header = read_json_header(cursor);
  Bytes data = cursor.take(cursor.remaining(), "data");
  CheckpointContents contents;
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadataKey)
      contents.metadata = read_metadata(entry, path + ": __metadata__");
    else
      contents.tensors.emplace(name, read_tensor(entry, data, path + ": tensor " + quoted_name(name)));
  }
  check_coverage(contents.tensors, data, path);
  return contents;
}

void write_safetensors(const std::string& path, const TensorMap& tensors,
                       const std::map<std::string, std::string>& metadata) {
  for (const auto& [name, tensor] : tensors) check_bytes(tensor, tensor.bytes.size(), where_of(path, name));
  write_data(path, tensors, metadata, [&](AtomicFile& file, const std::string& name) {
    file.write(tensors.at(name).bytes);  // never copied
  });
}

void write_safetensors(const std::string& path, const TensorMap& shapes,
                       const std::map<std::string, std::string>& metadata,
                       const std::function<ByteVector(const std::string& name)>& bytes_of) {
  write_data(path, shapes, metadata, [&](AtomicFile& file, const std::string& name) {
    const ByteVector bytes = bytes_of(name);
    check_bytes(shapes.at(name), bytes.size(), where_of(path, name));
    file.write(bytes);
  });
}

void write_checksummed_safetensors(const std::string& path, const TensorMap& tensors,
                                   std::map<std::string, std::string> metadata) {
  metadata[kChecksumKey] = checksum_of(tensors, metadata);
  write_safetensors(path, tensors, metadata);
}

void write_checksummed_safetensors(const std::string& path, const TensorMap& shapes,
                                   std::map<std::string, std::string> metadata,
                                   const std::function<ByteVector(const std::string& name)>& bytes_of) {
  metadata[kChecksumKey] = checksum_of(
      shapes, metadata, [&](Hasher& hasher, const std::string& name) { hasher.add(Bytes(bytes_of(name))); });
  write_safetensors(path, shapes, metadata, bytes_of);
}

bool verify_checksum(const CheckpointContents& contents, const std::string& path) {
  auto found = contents.metadata.find(kChecksumKey);
  if (found == contents.metadata.end()) return false;
  std::string computed = checksum_of(contents.tensors, contents.metadata);
  if (found->second != computed)
    throw FormatError(path, "metadata key 'xxh3' is " + quoted_name(found->second) + ", the contents hash to '" +
                                computed + "': the file is damaged");
  return true;
}

}  // namespace thimble
