// stored_tensors.cpp: 8 bytes of header length, a JSON header, the tensors' bytes.
#include "tests/gptq/trace/stored_tensors.h"

#include "runtime/base/file.h"
#include "runtime/base/json.h"

namespace thimble {

std::map<std::string, Tensor> read_stored_tensors(const std::string& path) {
  MappedFile file(path);
  ByteCursor cursor(file.bytes(), path);
  auto header_bytes = cursor.read<uint64_t>("header length");
  Json header = parse_json(cursor.take(header_bytes, "header"), path);
  Bytes data = cursor.take(cursor.remaining(), "data");
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    auto offsets = entry.at("data_offsets").get<std::vector<size_t>>();
    Bytes bytes = data.subspan(offsets.at(0), offsets.at(1) - offsets.at(0));
    tensors[name] = {dtype_from_name(entry.at("dtype").get<std::string>(), path), entry.at("shape").get<Shape>(),
                     ByteVector(bytes.begin(), bytes.end())};
  }
  return tensors;
}

}  // namespace thimble
