// quantized_model.h: the compressed model in memory: integer codes with scales, and tensors kept as they are.
// What gptq/ produces, packer/ stores and this folder dequantizes. decode(encode(m)) == m, bit for bit.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/codes/code_array.h"
#include "runtime/codes/code_numbers.h"
#include "runtime/codes/nvfp4_matrix.h"
#include "runtime/tensor/stored_matrix.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

// Codes of a matrix with one scale per output row: weight(r, k) = code(r, k) * row_scale(r).
// R = output rows (first dimension), K = input columns (all others together).
struct RowScaledCodes {
  int max_code = 0;                  // codes lie in [-max_code, max_code]: 15 (int5), 31 (int6), 127 (int8)
  std::vector<int8_t> codes;         // (R, K) row-major
  std::vector<uint16_t> row_scales;  // (R) IEEE fp16 bits, finite, > 0
  bool operator==(const RowScaledCodes&) const = default;
};

// Codes of a matrix with a step per row and per column (method `slope`), a trellis down each column (trellis.h):
//   weight(r, k) = (level(r, k) * step(row_steps[r])) * step(column_steps[k]), each product rounded to float32.
// R, K as above.
struct SteppedCodes {
  int trellis_bits = 0;
  CodeArray codes;                    // (R, K) row-major, in [-kMaxSteppedCode, kMaxSteppedCode]
  std::vector<int16_t> row_steps;     // (R) in [-kMaxStep, kMaxStep]
  std::vector<int16_t> column_steps;  // (K) likewise
  bool operator==(const SteppedCodes&) const = default;
};

// A tensor stored without quantization, in `dtype` (usually fp16).
struct RawTensor {
  DType dtype = DType::kF16;
  ByteVector bytes;
  bool operator==(const RawTensor&) const = default;
};

struct QuantizedTensor {
  std::string name;  // unbanked
  Shape shape;
  // Nvfp4Codes: R = first dimension, K = all others together.
  std::variant<RowScaledCodes, SteppedCodes, Nvfp4Codes, RawTensor> data;
  bool operator==(const QuantizedTensor&) const = default;
};

struct QuantizedModel {
  // Canonical JSON object of the model's config ("architecture" or "model_type" names the family); "{}" when it is not
  // known.
  std::string config_json = "{}";
  // Canonical JSON object of what made the artifact: method, bits, tool version, calibration seed and so on.
  std::string provenance_json = "{}";
  bool banked = false;                   // the checkpoint had banks; export writes them again
  std::vector<QuantizedTensor> tensors;  // ascending by name, names unique
  bool operator==(const QuantizedModel&) const = default;
};

// float32 elements of one tensor.
std::vector<float> dequantize(const QuantizedTensor& tensor);
// The same of a matrix, R and K as above, in as little memory as holds the values exactly: row-scaled codes in a byte
// each, levels of stepped codes in one byte or two, others as they are stored, NVFP4 in float32.
StoredMatrix stored_matrix(const QuantizedTensor& tensor);

// The tensors' names, shapes and dtypes without bytes, which is all that the check of a config reads.
TensorMap quantized_shapes(const QuantizedModel& quantized);

// float32 elements of all tensors.
FloatTensors dequantize_tensors(const QuantizedModel& quantized);

// Elements of `dtype`. A finite value that it cannot hold would become an infinity: a FormatError(path) instead, which
// names the tensor and says to use F32.
ByteVector narrowed(std::span<const float> values, DType dtype, const std::string& name, const std::string& path);

// All tensors with elements of `dtype`, by name; integers stay as they are. FormatErrors(path) of narrowed().
std::map<std::string, Tensor> dequantized_tensors(const QuantizedModel& quantized, DType dtype,
                                                  const std::string& path);

}  // namespace thimble
