// write_stepped_artifact.cpp: writes an artifact of stepped tensors of every trellis, of NVFP4, and of awkward shapes,
// for read_thmb_test.py to compare with what `thimble export` makes of it.
//   write_stepped_artifact OUT.thmb CODEC
#include <fmt/format.h>

#include <fstream>

#include "tests/packer/layout/sample_codes.h"
#include "tests/packer/sample_models.h"

namespace thimble {
namespace {

QuantizedTensor stepped(const std::string& name, int64_t rows, int64_t columns, int bits) {
  QuantizedTensor tensor = stepped_tensor(name, rows, columns, bits);
  auto& coded = std::get<SteppedCodes>(tensor.data);
  SampleCodes sample = trellis_codes(static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), 1, 0.5, 0.5, bits);
  for (size_t i = 0; i < sample.codes.size(); i += 1 + sample.codes.size() / 5)  // escapes, even and odd, of both signs
    sample.codes[i] = static_cast<int32_t>(i % 2 == 0 ? 1000 + i : -70001 + static_cast<int64_t>(i));
  coded.codes = sample.codes;
  return tensor;
}

QuantizedModel model() {
  QuantizedModel model;
  model.tensors.push_back(random_tensor("a", 20, 30, 15));
  for (int bits = 0; bits <= kMaxTrellisBits; ++bits)
    if (Trellis::has_bits(bits)) model.tensors.push_back(stepped(fmt::format("b{}", bits), 520, 33, bits));
  model.tensors.push_back(stepped("c.columns", 30, 2100, 3));
  model.tensors.push_back(stepped("c.one", 1, 1, 3));
  model.tensors.push_back(stepped("c.one_column", 1030, 1, 3));
  model.tensors.push_back(stepped("c.one_row", 1, 1200, 3));
  model.tensors.push_back(stepped("c.sections", 513, 4097, 2));
  model.tensors.push_back(raw_tensor("d", {8}, DType::kF16));
  for (auto [rows, columns] : {std::pair{1, 1}, {5, 33}, {130, 64}})
    model.tensors.push_back(nvfp4_tensor(fmt::format("e.{:03}.{}", rows, columns), rows, columns));
  return model;
}

}  // namespace
}  // namespace thimble

int main(int argument_count, char** arguments) {
  if (argument_count != 3) return 2;
  const thimble::ByteVector bytes = thimble::encode(thimble::model(), thimble::encode_options_from(arguments[2]));
  std::ofstream file(arguments[1], std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return file.flush() ? 0 : 5;
}
