// artifact.h: the packer's interface: a quantized model to the bytes of an artifact (.thmb), and back; what an artifact
// holds, whether it is sound, and whether it fits a budget.
// docs/reference/format.md describes the file. Equal models, options and library versions give equal bytes, whatever
// the number of threads; decode_artifact(encode_artifact(m)) == m, bit for bit. `path` only names the file in errors.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "packer/container/section_packer.h"
#include "runtime/base/parallel.h"
#include "runtime/base/progress.h"
#include "runtime/codes/quantized_model.h"

namespace thimble {

// Throws FormatError when the model breaks a rule of the format (see plan_artifact in section_plan.h).
// Progress: one stage, in bytes of content.
ByteVector encode_artifact(const QuantizedModel& model, const EncodeOptions& options, SectionCache& cache,
                           Progress& progress);
// How many these are, for who tries many: they are packed, and not put together.
uint64_t count_artifact_bytes(const QuantizedModel& model, const EncodeOptions& options, SectionCache& cache,
                              Progress& progress);

// Begins to pack the codes of a tensor that models to come will have, where these are made with `options` and `cache`,
// which must outlive `tasks`.
void pack_codes_ahead(const QuantizedTensor& tensor, const EncodeOptions& options, SectionCache& cache,
                      BackgroundTasks& tasks);

// Verifies checksums and every rule of the format; whatever is wrong with the file is a FormatError.
// Memory: the model, at most kExpansionFloorBytes + kMaxExpansion x the file (checked first), and a few sections more.
QuantizedModel decode_artifact(Bytes file, const std::string& path);

// What an artifact holds and where its bytes go. For people: `inspect`.

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
  // Of floating tensors without codes: all values are multiples of 2^log2_step, the longest such step, and as integers
  // have at most so many bits, with a sign. None where a value is not finite or all are 0, and where such tensors take
  // more than 64 MiB in all.
  struct Steps {
    int log2_step = 0, bits = 0;
  };
  std::optional<Steps> raw_steps;
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

// Reads the table, the header and raw tensors; codes stay compressed. Throws FormatError(path, ...) as
// decode_artifact() does, except for faults inside codes and scales.
ArtifactSummary describe_artifact(Bytes file, const std::string& path);

// Whether an artifact is undamaged, decodes, and is what encoding the decoded model gives.
struct VerifyReport {
  bool container_ok = false;  // prefix, lengths and all checksums
  bool decodes = false;       // every rule of the format holds
  bool canonical = false;     // the decoded model, laid out again, gives the same bytes before compression
  bool identical = false;     // and compressing them again gives the same file, byte for byte
  // Sections whose compressed bytes differ although their contents are the same: they were written by another version
  // of their compression library, or with other settings. No fault.
  std::vector<size_t> recompressed_differently;
  std::string problem;  // why the first check that failed did; empty otherwise

  bool ok() const { return container_ok && decodes && canonical; }
};

// Codec and layout of each section are taken from the file. Costs as much as encoding without a cache.
// Faults of the file are reported, not thrown.
VerifyReport verify_artifact(Bytes file, const std::string& path, Progress& progress);

// Does an artifact, together with the code that runs it, fit in a byte limit? All sizes are decimal bytes.
struct BudgetReport {
  uint64_t artifact_bytes = 0;
  uint64_t code_bytes = 0;
  uint64_t total_bytes = 0;  // saturates
  uint64_t limit_bytes = 0;
  bool fits = false;  // total_bytes <= limit_bytes
};

inline BudgetReport check_budget(uint64_t artifact_bytes, uint64_t code_bytes, uint64_t limit_bytes) {
  BudgetReport report{artifact_bytes, code_bytes, 0, limit_bytes};
  if (__builtin_add_overflow(artifact_bytes, code_bytes, &report.total_bytes))
    report.total_bytes = std::numeric_limits<uint64_t>::max();
  report.fits = report.total_bytes <= limit_bytes;
  return report;
}

}  // namespace thimble
