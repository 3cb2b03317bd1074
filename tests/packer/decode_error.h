// decode_error.h: what decoding says of a damaged artifact.
#pragma once

#include <string>

#include "packer/artifact.h"

namespace thimble {

// Message of the FormatError that decoding throws; "" when it throws none.
inline std::string decode_error(const ByteVector& file) {
  try {
    decode_artifact(file, "test.thmb");
  } catch (const FormatError& error) {
    return error.what();
  }
  return "";
}

}  // namespace thimble
