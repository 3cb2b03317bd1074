// fuzz_decode.cpp: libFuzzer target for the C interface. The first byte says which read fails, if any; the rest is a
// file as artifact_input.h makes it. No call may fail without a text, or as a fault of the library; whatever the
// program decodes, the library decodes to the same bits, and it takes no more memory for a tensor than it says.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "packer/embed/thimble_decode.h"
#include "tests/fuzz/artifact_input.h"

namespace thimble {
namespace {

struct Reads {
  const ByteVector& file;
  int left;  // until one fails; -1: none does

  static int read(void* context, uint64_t offset, void* to, size_t bytes) {
    auto* reads = static_cast<Reads*>(context);
    if (reads->left == 0) return 1;
    if (reads->left > 0) --reads->left;
    if (offset > reads->file.size() || bytes > reads->file.size() - offset) std::abort();
    std::memcpy(to, reads->file.data() + offset, bytes);
    return 0;
  }
};

thimble_status checked(thimble_status status, const thimble_error& error) {
  if ((status == THIMBLE_OK) != (error.text[0] == '\0')) std::abort();
  if (status != THIMBLE_OK && status != THIMBLE_BAD_INPUT && status != THIMBLE_IO && status != THIMBLE_USAGE)
    std::abort();
  return status;
}

using Values = std::vector<std::vector<float>>;

// Larger ones are left out: their room is the caller's, who knows what he has.
constexpr uint64_t kMostElements = 1 << 20;

// The values of all tensors, as far as they decode.
thimble_status decode_all(thimble_artifact* artifact, Values& values) {
  thimble_error error;
  thimble_status status = checked(thimble_check_file(artifact, &error), error);
  for (size_t i = 0; i < thimble_tensor_count(artifact) && status == THIMBLE_OK; ++i) {
    thimble_tensor tensor;
    status = checked(thimble_tensor_at(artifact, i, &tensor, &error), error);
    if (tensor.elements > kMostElements) {
      values.emplace_back();
      continue;
    }
    std::vector<float>& out = values.emplace_back(tensor.elements);
    status = checked(thimble_decode(artifact, i, THIMBLE_F32, out.data(), out.size() * sizeof(float), &error), error);
    if (status != THIMBLE_OK || tensor.has_levels == 0) continue;
    std::vector<int8_t> levels(tensor.elements);
    const thimble_status fits =
        checked(thimble_decode_levels(artifact, i, THIMBLE_I8, levels.data(), levels.size(), &error), error);
    if (fits == THIMBLE_BAD_INPUT) std::abort();  // its values decoded
    uint32_t largest = 0;
    if (checked(thimble_largest_level(artifact, i, &largest, &error), error) == THIMBLE_OK && largest <= INT8_MAX &&
        fits == THIMBLE_USAGE)
      std::abort();
  }
  return status;
}

void check(Bytes data) {
  FuzzInput input(data);
  const int fails = static_cast<int>(input.number()) - 1;
  const ByteVector file = file_from(input.rest());
  Reads reads{file, fails};
  const thimble_reader reader{&reads, Reads::read};
  thimble_error error;
  thimble_artifact* artifact = nullptr;
  Values values;
  thimble_status status = checked(thimble_open(&reader, file.size(), nullptr, &artifact, &error), error);
  if (status == THIMBLE_OK) status = decode_all(artifact, values);
  thimble_close(artifact);
  if (status == THIMBLE_IO && reads.left != 0) std::abort();
  if (status == THIMBLE_IO) return;
  QuantizedModel model;
  try {
    model = decode_artifact(file, "fuzz.thmb");
  } catch (const Error&) {
    return;
  }
  if (status != THIMBLE_OK || values.size() != model.tensors.size()) std::abort();
  for (size_t i = 0; i < values.size(); ++i) {
    if (element_count(model.tensors[i].shape) > static_cast<int64_t>(kMostElements)) continue;
    const std::vector<float> expected = dequantize(model.tensors[i]);
    if (expected.size() != values[i].size() ||
        (!expected.empty() && std::memcmp(expected.data(), values[i].data(), expected.size() * sizeof(float)) != 0))
      std::abort();
  }
}

}  // namespace
}  // namespace thimble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  thimble::check(std::as_bytes(std::span(data, size)));
  return 0;
}
