// fuzz_weights.cpp: libFuzzer target for the weight coder, without the checksums that guard its streams in an artifact.
// Input: mode (mod 4) + 4 * trellis (mod 8: none, 2 to 8 bits), rows - 1 (mod 80; with a trellis 8 times as many),
// columns - 1 (with a trellis mod 64), then
//   modes 0, 1: a stream, decoded with magnitudes up to kMaxCodeMagnitude or 127. Only FormatErrors may leave the
//     decoder, which must give rows x columns codes; and what decodes must come back when it is encoded.
//   modes 2, 3: codes, int32 or int8, repeated to fill the matrix, which must come back when they are decoded.
#include <algorithm>
#include <cstdlib>
#include <limits>

#include "tests/packer/rans/whole_stream.h"

namespace thimble {
namespace {

void check_round_trip(const std::vector<int32_t>& codes, uint64_t rows, uint64_t columns, int bits) {
  const ByteVector stream = encode_weights(codes, rows, columns, bits);
  if (decode_all(stream, rows, columns, "fuzz", bits) != codes) std::abort();
}

void check_stream(Bytes stored, uint64_t rows, uint64_t columns, int bits, uint32_t most_magnitude) {
  std::vector<int32_t> codes;
  try {
    codes = decode_all(stored, rows, columns, "fuzz", bits, most_magnitude);
  } catch (const FormatError&) {
    return;
  }
  if (codes.size() != rows * columns) std::abort();
  check_round_trip(codes, rows, columns, bits);
}

template <typename Code>
void check_codes(Bytes bytes, uint64_t rows, uint64_t columns, int bits) {
  std::vector<int32_t> given;
  ByteCursor cursor(bytes, "fuzz");
  while (cursor.remaining() >= sizeof(Code)) {
    const int32_t code = cursor.read<Code>("code");
    const int32_t largest = std::numeric_limits<Code>::max() - (bits != 0 ? 1 : 0);
    given.push_back(std::clamp(code, -largest, largest));
  }
  if (given.empty()) return;
  std::vector<int32_t> codes;
  for (uint64_t i = 0; i < rows * columns; ++i) codes.push_back(given[i % given.size()]);
  check_round_trip(codes, rows, columns, bits);
}

}  // namespace
}  // namespace thimble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace thimble;
  if (size < 3) return 0;
  // Up to 20480 codes: two blocks of one lane; with a trellis up to 40960, in two segments of one or two lanes.
  const int trellis = data[0] / 4 % 8, bits = trellis == 0 ? 0 : trellis + 1;
  const uint64_t rows = (data[1] % 80 + 1u) * (bits == 0 ? 1 : 8);
  const uint64_t columns = bits == 0 ? data[2] + 1u : data[2] % 64 + 1u;
  const Bytes rest = std::as_bytes(std::span(data, size)).subspan(3);
  switch (data[0] % 4) {
    case 0: check_stream(rest, rows, columns, bits, kMaxCodeMagnitude); break;
    case 1: check_stream(rest, rows, columns, bits, 127); break;
    case 2: check_codes<int32_t>(rest, rows, columns, bits); break;
    default: check_codes<int8_t>(rest, rows, columns, bits); break;
  }
  return 0;
}
