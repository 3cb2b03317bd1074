// fuzz_config.cpp: any config against any tensor shapes. What resolves must be written and read again unchanged, and a
// model of zeros with these shapes must bind and run. The input is text: the config's JSON up to a NUL byte, then one
// tensor per line, "<name> <dtype> <dimension> <dimension> ...".
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <sstream>

#include "runtime/base/checked.h"
#include "runtime/cpu/cpu_models.h"
#include "runtime/families/model_weights.h"

namespace thimble {
namespace {

constexpr uint64_t kMaxTensorBytes = 1 << 16;

struct Input {
  Json config;
  TensorMap tensors;
  bool has_bytes = true;  // else some tensor is larger than kMaxTensorBytes, and only shapes can be checked
};

Input parse_input(Bytes bytes) {
  static const ByteVector zeros(kMaxTensorBytes);
  std::string_view text = as_text(bytes);
  size_t config_end = std::min(text.find('\0'), text.size());
  Input input{parse_json(as_bytes_of(text.substr(0, config_end)), "config"), {}};
  std::istringstream lines{std::string(text.substr(config_end))};
  lines.ignore();  // the NUL byte
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string name, dtype;
    fields >> name >> dtype;
    TensorView tensor{dtype_from_name(dtype, name), {}, {}};
    for (int64_t dimension; fields >> dimension;) tensor.shape.push_back(dimension);
    uint64_t size = mul_or_throw(element_count_or_throw(tensor.shape, name), dtype_bytes(tensor.dtype), name);
    if (size <= kMaxTensorBytes)
      tensor.bytes = Bytes(zeros).first(size);
    else
      input.has_bytes = false;
    input.tensors.emplace(name, tensor);
  }
  return input;
}

void run(const Spec& spec, const TensorMap& parameters) {
  std::vector<Token> tokens = {0, static_cast<Token>(spec.vocabulary() - 1), 0};
  const auto context = std::min(static_cast<int64_t>(tokens.size()), spec.most_positions.value_or(3));
  tokens.resize(static_cast<size_t>(context));
  Matrix scores(1, spec.vocabulary());
  make_cpu_scorer(weights_of(spec, parameters), Numerics::kFp32, context)->log_probabilities(tokens, scores);
  for (const RotaryRule& rule : spec.network->rotaries)
    for (double frequency : rule.frequencies(std::numeric_limits<int32_t>::max()))
      if (!(std::abs(frequency) > 0)) std::abort();  // its sign is the direction
}

void check(Bytes bytes) {
  Input input = parse_input(bytes);
  const Family* family = find_family(input.config, input.tensors);
  if (!family) return;
  const Contents contents = input.has_bytes ? Contents::kBytes : Contents::kShapes;
  const MappedTensors mapped = family->from_file(input.tensors, contents, "tensors");
  const Spec spec = family->resolve(input.config, mapped.tensors, {"config", "tensors"});
  const std::string text = canonical_json(spec.config);
  const Spec again = family->resolve(parse_json(as_bytes_of(text), "again"), mapped.tensors, {"again", "tensors"});
  if (canonical_json(again.config) != text) std::abort();
  if (input.has_bytes) run(spec, mapped.tensors);
}

}  // namespace
}  // namespace thimble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    thimble::check(std::as_bytes(std::span(data, size)));
  } catch (const thimble::FormatError&) {
  }
  return 0;
}
