// fuzz_artifact.cpp: libFuzzer target for the artifact reader. Only errors derived from Error may leave the decoder;
// what decodes must encode and decode again to the same model, and must dequantize or be refused.
#include <cstdlib>
#include <optional>

#include "packer/artifact.h"
#include "runtime/families/model_weights.h"
#include "tests/fuzz/artifact_input.h"

namespace thimble {
namespace {

std::optional<QuantizedModel> decode(const ByteVector& file) {
  try {
    describe_artifact(file, "fuzz.thmb");
    return decode_artifact(file, "fuzz.thmb");
  } catch (const Error&) {
    return std::nullopt;
  }
}

void check(const ByteVector& file) {
  std::optional<QuantizedModel> model = decode(file);
  if (!model) return;
  SectionCache cache;
  SilentProgress progress;
  ByteVector again = encode_artifact(*model, encode_options_from("none"), cache, progress);
  if (decode(again) != model) std::abort();
  try {
    dequantize_model(*model, "fuzz.thmb");
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace thimble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  thimble::check(thimble::file_from(std::as_bytes(std::span(data, size))));
  return 0;
}
