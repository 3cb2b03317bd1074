// packed_slope.h: a matrix solved by the method `slope` as bytes, for the other ranks and for the work folder.
#pragma once

#include "quantizer/methods/slope/slope_layers.h"
#include "runtime/base/byte_cursor.h"

namespace thimble {

// Exact: unpack(pack(x)) is x. Codes take one, two or four bytes each, as the largest needs. Bytes that are too short
// are a FormatError.
ByteVector pack_slope_matrix(const SlopeMatrix& matrix);
SlopeMatrix unpack_slope_matrix(Bytes bytes);

}  // namespace thimble
