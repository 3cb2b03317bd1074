// fuzz_config.cpp: any config against any tensor shapes. What resolves must be written and read again unchanged, and a
// model of zeros with these shapes must bind and run. The input is text: the config's JSON up to a NUL byte, then one
// tensor per line, "<name> <dtype> <dimension> <dimension> ...".
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <sstream>

#include "runtime/base/checked.h"
#include "runtime/cpu/backend.h"
#include "runtime/families/any_model.h"
#include "runtime/families/golf/golf_layout.h"

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

void run(const AnyConfig& config, const TensorMap& tensors) {
  AnyModel model = bind_any_model(config, tensors);
  std::unique_ptr<Backend> backend = make_cpu_backend();
  std::vector<uint16_t> tokens = {0, static_cast<uint16_t>(vocab_size(config) - 1), 0};
  auto context = std::min(static_cast<int64_t>(tokens.size()), most_positions(config).value_or(3));
  tokens.resize(static_cast<size_t>(context));
  make_window_scorer(model, *backend, context)->logits(tokens, 0);
  if (const auto* golf = std::get_if<GolfConfig>(&config))
    if (!(golf->rope_base_at(std::numeric_limits<int32_t>::max()) > 0)) std::abort();
}

void check(Bytes bytes) {
  Input input = parse_input(bytes);
  TensorMap tensors = input.has_bytes ? unbank(input.tensors, "tensors") : input.tensors;
  AnyConfig config = resolve_any_config(input.config, "config", tensors, "tensors");
  const std::string text = canonical_json(to_json(config));
  AnyConfig again = resolve_any_config(parse_json(as_bytes_of(text), "again"), "again", tensors, "tensors");
  if (canonical_json(to_json(again)) != text) std::abort();
  if (input.has_bytes) run(config, tensors);
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
