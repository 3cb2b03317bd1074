// fuzz_weights.cpp: libFuzzer target for the weight coder, without the checksums that guard its streams in an artifact.
// Input: mode, rows - 1 (mod 80), columns - 1, then
//   modes 0, 1: a stream, decoded as int32 or int8. Only FormatErrors may leave the decoder, which must give rows x
//     columns codes; and what decodes must come back when it is encoded.
//   modes 2, 3: codes, int32 or int8, repeated to fill the matrix, which must come back when they are decoded.
#include <cstdlib>
#include <limits>

#include "packer/weight_coder.h"

namespace thimble {
namespace {

template <typename Code>
void check_round_trip(const std::vector<Code>& codes, uint64_t rows, uint64_t columns) {
  const ByteVector stream = encode_weights(std::span<const Code>(codes), rows, columns);
  if (decode_weights<Code>(stream, rows, columns, "fuzz") != codes) std::abort();
  const uint64_t estimate = estimate_weight_bytes(std::span<const Code>(codes), rows, columns);
  const uint64_t error = estimate > stream.size() ? estimate - stream.size() : stream.size() - estimate;
  if (error > 64 + stream.size() / 50) std::abort();  // hostile codes are less even than real ones
}

template <typename Code>
void check_stream(Bytes stored, uint64_t rows, uint64_t columns) {
  std::vector<Code> codes;
  try {
    codes = decode_weights<Code>(stored, rows, columns, "fuzz");
  } catch (const FormatError&) {
    return;
  }
  if (codes.size() != rows * columns) std::abort();
  check_round_trip(codes, rows, columns);
}

template <typename Code>
void check_codes(Bytes bytes, uint64_t rows, uint64_t columns) {
  std::vector<Code> given;
  ByteCursor cursor(bytes, "fuzz");
  while (cursor.remaining() >= sizeof(Code)) {
    const Code code = cursor.read<Code>("code");
    given.push_back(std::max<Code>(code, -std::numeric_limits<Code>::max()));
  }
  if (given.empty()) return;
  std::vector<Code> codes;
  for (uint64_t i = 0; i < rows * columns; ++i) codes.push_back(given[i % given.size()]);
  check_round_trip(codes, rows, columns);
}

}  // namespace
}  // namespace thimble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace thimble;
  if (size < 3) return 0;
  const uint64_t rows = data[1] % 80 + 1u, columns = data[2] + 1u;  // up to 20480 codes: two blocks of one lane
  const Bytes rest = std::as_bytes(std::span(data, size)).subspan(3);
  switch (data[0] % 4) {
    case 0: check_stream<int32_t>(rest, rows, columns); break;
    case 1: check_stream<int8_t>(rest, rows, columns); break;
    case 2: check_codes<int32_t>(rest, rows, columns); break;
    default: check_codes<int8_t>(rest, rows, columns); break;
  }
  return 0;
}
