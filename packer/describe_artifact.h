// describe_artifact.h: what an artifact holds and where its bytes go. For people: `inspect`.
// Reads the table and the header; codes stay compressed.
#pragma once

#include <string>
#include <vector>

#include "packer/layout/format.h"
#include "runtime/base/byte_cursor.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

struct SectionSummary {
  std::string kind;            // "header", "codes", "scales", "raw"
  std::string codec;           // "brotli", ...
  std::string layout;          // "columns", ...
  std::string tensor;          // name, when the section holds one tensor only
  uint64_t content_bytes = 0;  // elements as they are in memory
  uint64_t raw_bytes = 0;      // laid out, before compression
  uint64_t stored_bytes = 0;
};

struct StoredTensorSummary {
  std::string name;
  Shape shape;
  std::string precision;  // "int5" for codes of up to 5 bits, "steps", "trellis8" (states), "nvfp4", "F16"
  int max_code = 0;       // of row-scaled codes, else 0
  uint64_t elements = 0;
  bool coded = false;
  // Exact for codes; scales and raw tensors have their share, by length, of the sections they lie in.
  double stored_bytes = 0;
  double bits_per_weight = 0;  // 8 * stored_bytes / elements; 0 for an empty tensor
};

struct ArtifactSummary {
  uint64_t file_bytes = 0;
  uint64_t container_bytes = 0;  // prefix and section table
  uint32_t format_version = 0;
  bool banked = false;
  std::string config_json;
  std::string provenance_json;
  std::vector<SectionSummary> sections;
  std::vector<StoredTensorSummary> tensors;
};

// Throws FormatError(path, ...) as decode_artifact() does, except for faults inside codes, scales and raw tensors.
ArtifactSummary describe_artifact(Bytes file, const std::string& path);

}  // namespace thimble
