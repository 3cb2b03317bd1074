// checksummed_safetensors.cpp: the checksum behind checksummed_safetensors.h.
#include "quantizer/checkpoints/checksummed_safetensors.h"

#include "quantizer/console/quoted_name.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace thimble {
namespace {

constexpr const char* kChecksumKey = "xxh3";

// Names, dtypes, shapes and bytes in ascending order of names, then the metadata without the checksum itself.
std::string checksum_of(const TensorMap& tensors, const std::map<std::string, std::string>& metadata) {
  Hasher hasher;
  for (const auto& [name, tensor] : tensors)
    hasher.add(name).add(dtype_name(tensor.dtype)).add(shape_text(tensor.shape)).add(tensor.bytes);
  for (const auto& [key, value] : metadata)
    if (key != kChecksumKey) hasher.add(key).add(value);
  return hex64(hasher.digest());
}

}  // namespace

void write_checksummed_safetensors(const std::string& path, const TensorMap& tensors,
                                   std::map<std::string, std::string> metadata) {
  metadata[kChecksumKey] = checksum_of(tensors, metadata);
  write_safetensors(path, tensors, metadata);
}

bool verify_checksum(const SafetensorsContents& contents, const std::string& path) {
  auto found = contents.metadata.find(kChecksumKey);
  if (found == contents.metadata.end()) return false;
  std::string computed = checksum_of(contents.tensors, contents.metadata);
  if (found->second != computed)
    throw FormatError(path, "metadata key 'xxh3' is " + quoted_name(found->second) + ", the contents hash to '" +
                                computed + "': the file is damaged");
  return true;
}

}  // namespace thimble
