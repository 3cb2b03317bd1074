// packed_slope.cpp: see packed_slope.h.
#include "quantizer/methods/slope/packed_slope.h"

#include <algorithm>
#include <limits>

#include "quantizer/methods/packed_index.h"

namespace thimble {
namespace {

template <typename T>
bool holds(const std::vector<int32_t>& codes) {
  return std::ranges::all_of(codes, [](int32_t code) {
    return code >= std::numeric_limits<T>::min() && code <= std::numeric_limits<T>::max();
  });
}

template <typename T>
void append_codes(ByteVector& bytes, const std::vector<int32_t>& codes) {
  const std::vector<T> narrow(codes.begin(), codes.end());
  append_bytes(bytes, std::as_bytes(std::span(narrow)));
}

template <typename T>
std::vector<int32_t> read_codes(ByteCursor& cursor, size_t count) {
  std::vector<T> narrow(count);
  read_values(cursor, std::span(narrow));
  return {narrow.begin(), narrow.end()};
}

}  // namespace

ByteVector pack_slope_matrix(const SlopeMatrix& matrix) {
  const auto& codes = std::get<SteppedCodes>(matrix.tensor.data);
  const int width = holds<int8_t>(codes.codes) ? 1 : holds<int16_t>(codes.codes) ? 2 : 4;
  const SlopeReport& report = matrix.report;
  ByteVector bytes = start_with_index({{"name", matrix.tensor.name},
                                       {"shape", matrix.tensor.shape},
                                       {"trellis_bits", codes.trellis_bits},
                                       {"width", width},
                                       {"weight_mse", report.weight_mse},
                                       {"weighted_loss", report.weighted_loss},
                                       {"row_weighted_loss", report.row_weighted_loss},
                                       {"estimated_bits", report.estimated_bits},
                                       {"damping", report.damping},
                                       {"dead_columns", report.dead_columns}});
  append_bytes(bytes, std::as_bytes(std::span(codes.row_steps)));
  append_bytes(bytes, std::as_bytes(std::span(codes.column_steps)));
  if (width == 1) append_codes<int8_t>(bytes, codes.codes);
  if (width == 2) append_codes<int16_t>(bytes, codes.codes);
  if (width == 4) append_codes<int32_t>(bytes, codes.codes);
  return bytes;
}

SlopeMatrix unpack_slope_matrix(Bytes bytes) {
  ByteCursor cursor(bytes, kPackedOrigin);
  const Json index = read_index(cursor);
  const Shape shape = index.at("shape");
  SteppedCodes codes{index.at("trellis_bits"), {}, {}, {}};
  codes.row_steps.resize(static_cast<size_t>(shape.at(0)));
  codes.column_steps.resize(static_cast<size_t>(shape.at(1)));
  read_values(cursor, std::span(codes.row_steps));
  read_values(cursor, std::span(codes.column_steps));
  const auto count = static_cast<size_t>(element_count(shape));
  const int width = index.at("width");
  codes.codes = width == 1   ? read_codes<int8_t>(cursor, count)
                : width == 2 ? read_codes<int16_t>(cursor, count)
                             : read_codes<int32_t>(cursor, count);
  return {{index.at("name"), shape, std::move(codes)},
          {index.at("weight_mse"), index.at("weighted_loss"), index.at("row_weighted_loss"), index.at("estimated_bits"),
           index.at("damping"), index.at("dead_columns").get<std::vector<int64_t>>()}};
}

}  // namespace thimble
