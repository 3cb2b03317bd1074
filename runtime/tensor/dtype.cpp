// dtype.cpp: dtype names, sizes and conversions, which every machine computes alike.
#include "runtime/tensor/dtype.h"

#include <array>
#include <bit>
#include <cassert>

namespace thimble {
namespace {

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  size_t bytes;
};

constexpr std::array kDTypes = {
    DTypeInfo{DType::kF64, "F64", 8},   DTypeInfo{DType::kF32, "F32", 4},   DTypeInfo{DType::kF16, "F16", 2},
    DTypeInfo{DType::kBF16, "BF16", 2}, DTypeInfo{DType::kI64, "I64", 8},   DTypeInfo{DType::kI32, "I32", 4},
    DTypeInfo{DType::kI16, "I16", 2},   DTypeInfo{DType::kI8, "I8", 1},     DTypeInfo{DType::kU16, "U16", 2},
    DTypeInfo{DType::kU8, "U8", 1},     DTypeInfo{DType::kBool, "BOOL", 1},
};

const DTypeInfo& info_of(DType dtype) {
  const DTypeInfo& info = kDTypes[static_cast<size_t>(dtype)];
  assert(info.dtype == dtype);
  return info;
}

// Reads every Stored element and converts it with `convert`; one loop per dtype, so that the compiler can vectorise it.
template <typename Stored, typename Convert>
std::vector<float> convert_all(Bytes bytes, Convert convert) {
  std::vector<float> values(bytes.size() / sizeof(Stored));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = convert(load_little_endian<Stored>(bytes.data() + i * sizeof(Stored)));
  return values;
}

template <typename Integer>
std::vector<float> convert_integers(Bytes bytes) {
  return convert_all<Integer>(bytes, [](Integer value) { return static_cast<float>(value); });
}

}  // namespace

size_t dtype_bytes(DType dtype) { return info_of(dtype).bytes; }
std::string_view dtype_name(DType dtype) { return info_of(dtype).name; }

DType dtype_from_name(std::string_view name, const std::string& where) {
  std::string allowed;
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name) return info.dtype;
    allowed += (allowed.empty() ? "" : ", ") + std::string(info.name);
  }
  throw FormatError(where, "dtype '" + std::string(name) + "', allowed are " + allowed);
}

bool is_floating(DType dtype) { return dtype <= DType::kBF16; }  // these come first

uint16_t fp16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  constexpr uint32_t kInfinity = 0x7f800000u, kTooLarge = 0x477ff000u;  // 65520 is halfway to what would follow 65504
  if (magnitude > kInfinity) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= kTooLarge) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // below 2^-14: in steps of 2^-24, by the rounding of float32 at 1/2
    const float half = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(half) - std::bit_cast<uint32_t>(0.5f)));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}
float float_from_fp16(uint16_t bits) {
  uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  uint32_t exponent = (bits >> 10) & 0x1fu;
  uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  // Subnormal: mantissa * 2^-24 is exact in float32.
  float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

std::vector<float> to_float32(DType dtype, Bytes bytes) {
  switch (dtype) {
    case DType::kF64:
      return convert_all<uint64_t>(bytes,
                                   [](uint64_t bits) { return static_cast<float>(std::bit_cast<double>(bits)); });
    case DType::kF32: return convert_all<uint32_t>(bytes, [](uint32_t bits) { return std::bit_cast<float>(bits); });
    case DType::kF16: return convert_all<uint16_t>(bytes, float_from_fp16);
    case DType::kBF16: return convert_all<uint16_t>(bytes, float_from_bf16);
    case DType::kI64: return convert_integers<int64_t>(bytes);
    case DType::kI32: return convert_integers<int32_t>(bytes);
    case DType::kI16: return convert_integers<int16_t>(bytes);
    case DType::kI8: return convert_integers<int8_t>(bytes);
    case DType::kU16: return convert_integers<uint16_t>(bytes);
    case DType::kU8:
    case DType::kBool: return convert_integers<uint8_t>(bytes);
  }
  throw Error(ExitCode::kInternal, "unknown dtype");
}

ByteVector from_float32(DType dtype, std::span<const float> values) {
  ByteVector out;
  out.reserve(values.size() * dtype_bytes(dtype));
  for (float value : values) {
    switch (dtype) {
      case DType::kF64: append_little_endian(out, std::bit_cast<uint64_t>(static_cast<double>(value))); break;
      case DType::kF32: append_little_endian(out, std::bit_cast<uint32_t>(value)); break;
      case DType::kF16: append_little_endian(out, fp16_from_float(value)); break;
      case DType::kBF16: append_little_endian(out, bf16_from_float(value)); break;
      default:
        throw Error(ExitCode::kInternal,
                    "from_float32: target dtype " + std::string(dtype_name(dtype)) + " is not floating");
    }
  }
  return out;
}

}  // namespace thimble
