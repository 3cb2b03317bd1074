// artifact_header.h: the JSON of section 0 (what the model is and which tensors follow) and the rules a model must obey
// to be stored. The header is written and read in one canonical form, so that equal models give equal bytes.
//   {"banked":false,"config":{...},"provenance":{...},"tensors":[["name",[512,1792],15],["name",[8],"F16"],...]}
// The third member of a tensor is max_code of its row-scaled codes, "T0" to "T8" (the state bits of its trellis) of its
// stepped codes, "NVFP4", or the dtype of a raw tensor.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/codes/code_numbers.h"
#include "runtime/codes/nvfp4.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

enum class Encoding : uint8_t { kRaw, kRowScaled, kStepped, kNvfp4 };

// Sections hold the codes of NVFP4 as the signed place of their element among 0, 0.5, 1, 1.5, 2, 3, 4, 6.
constexpr int kMaxNvfp4Level = 7;
constexpr std::string_view kNvfp4Name = "NVFP4";  // as the header has it

struct TensorEntry {
  std::string name;
  Shape shape;
  Encoding encoding = Encoding::kRaw;
  int max_code = 0;           // 1..kMaxCode for row-scaled codes, else 0
  int trellis_bits = 0;       // of stepped codes
  DType dtype = DType::kF16;  // of a raw tensor

  bool coded() const { return encoding != Encoding::kRaw; }
  uint64_t elements() const { return static_cast<uint64_t>(element_count(shape)); }
  uint64_t rows() const { return static_cast<uint64_t>(shape.at(0)); }        // of a coded tensor
  uint64_t columns() const { return rows() == 0 ? 0 : elements() / rows(); }  // of a coded tensor
  // Bytes of sections: int8 or int32 codes or raw elements; fp16 row scales, int16 steps, or the tensor scale and the
  // block scales of NVFP4.
  uint64_t element_bytes() const;
  uint64_t content_bytes() const { return elements() * element_bytes(); }
  uint64_t scale_bytes() const;
  uint64_t nvfp4_code_bytes() const {  // in memory: two codes to a byte
    return rows() * static_cast<uint64_t>(nvfp4_row_bytes(static_cast<int64_t>(columns())));
  }
  uint64_t nvfp4_scales() const {
    return rows() * static_cast<uint64_t>(nvfp4_blocks(static_cast<int64_t>(columns())));
  }
  uint64_t scale_element_bytes() const { return encoding == Encoding::kNvfp4 ? 1 : sizeof(uint16_t); }
  // Codes of the sections of a coded tensor lie within +-this; 0 of stepped ones.
  int max_section_code() const { return encoding == Encoding::kNvfp4 ? kMaxNvfp4Level : max_code; }
};

struct ArtifactHeader {
  std::string config_json;
  std::string provenance_json;
  bool banked = false;
  std::vector<TensorEntry> tensors;
};

// FormatError(object, ...) unless all codes lie in [-max_code, max_code].
void check_code_range(std::span<const int8_t> codes, int max_code, const std::string& object);

// "<where>: tensor '<name>'", for errors.
std::string tensor_where(const std::string& where, const std::string& name);

// How reports name what a tensor is stored as: "int1" to "int8", "steps", "trellis4" to "trellis256", "nvfp4", "F16".
std::string precision_name(const TensorEntry& tensor);

// The oldest format version that can hold these tensors: the one that is written.
uint32_t format_version_of(const ArtifactHeader& header);

// From untrusted bytes: the canonical JSON that header_text() (stored_model.h) writes, or a FormatError(where, ...); of
// numbers in config and provenance only that they are numbers.
ArtifactHeader parse_header(Bytes text, const std::string& where);

}  // namespace thimble
