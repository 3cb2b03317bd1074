// safetensors.h: the .safetensors format, read from bytes and written to files.
//
//   8 B  header length N, little-endian, at most kMaxSafetensorsHeaderBytes
//   N B  JSON object, first byte '{', may end in spaces:
//          "<tensor name>": {"dtype": "BF16", "shape": [512, 1792], "data_offsets": [begin, end]}
//          "__metadata__":  {"<text>": "<text>"}                                           (optional)
//   rest data; offsets count from its first byte; the tensors cover it without holes or overlaps
//
// Non-goals: the dtypes that dtype.h does not have (complex, 4-, 6- and 8-bit floats, unsigned 32 and 64 bits).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "quantizer/formats/checkpoint_contents.h"

namespace thimble {

// The reference implementation allows 100 MB. Parsed JSON takes up to 33 times its length in memory; 16 MB hold more
// than 100,000 tensors.
constexpr uint64_t kMaxSafetensorsHeaderBytes = 16'000'000;

// Tensors and metadata. Validates the whole header before it returns; FormatErrors name the tensor. `path` names the
// file in errors.
CheckpointContents read_safetensors(Bytes file, const std::string& path);

// Writes tensors and metadata atomically. Equal contents give equal bytes: wider element types come first, so that
// every tensor starts at a multiple of its element size, and names ascend within one width. The data goes out tensor by
// tensor and is never copied. A tensor whose bytes do not match its shape, or a name that is not UTF-8, is a
// FormatError.
void write_safetensors(const std::string& path, const TensorMap& tensors,
                       const std::map<std::string, std::string>& metadata = {});

// The same for tensors that are not in memory together: `shapes` have no bytes, `bytes_of` is called once for each name
// in the order of the data.
void write_safetensors(const std::string& path, const TensorMap& shapes,
                       const std::map<std::string, std::string>& metadata,
                       const std::function<ByteVector(const std::string& name)>& bytes_of);

// The same with a checksum, so that damage is noticed: the metadata key "xxh3" holds the XXH3-64 of everything else.
// For what this program writes and reads again: Hessians, finished work.
void write_checksummed_safetensors(const std::string& path, const TensorMap& tensors,
                                   std::map<std::string, std::string> metadata);
// `bytes_of` is called twice for each name.
void write_checksummed_safetensors(const std::string& path, const TensorMap& shapes,
                                   std::map<std::string, std::string> metadata,
                                   const std::function<ByteVector(const std::string& name)>& bytes_of);

// Whether the contents carry a checksum. One that does not agree with them is a FormatError(path).
bool verify_checksum(const CheckpointContents& contents, const std::string& path);

}  // namespace thimble
