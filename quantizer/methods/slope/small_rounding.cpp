// small_rounding.cpp: see small_rounding.h.
#include "quantizer/methods/slope/small_rounding.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/hash.h"
#include "runtime/device/models.h"

namespace thimble {

QuantizedModel with_rounded_small(QuantizedModel model, const SmallExponents& exponents) {
  for (QuantizedTensor& tensor : model.tensors) {
    const auto found = exponents.find(tensor.name);
    auto* raw = std::get_if<RawTensor>(&tensor.data);
    if (found == exponents.end() || !raw) continue;
    ByteVector rounded = from_float32(raw->dtype, rounded_to_steps(to_float32(raw->dtype, raw->bytes), found->second));
    // What is rounded up may be more than the type holds.
    if (std::ranges::all_of(to_float32(raw->dtype, rounded), [](float value) { return std::isfinite(value); }))
      raw->bytes = std::move(rounded);
  }
  return model;
}

SmallFisher measured_small_fisher(const DistillInput& input, Progress& progress) {
  const int64_t count = split_sequences(input, 1, kFisherSequences).learned;
  if (count < kLeastFisherSequences) return {};
  const uint64_t key = Hasher()
                           .add(std::string_view("Fisher of small tensors"))
                           .add(input.key)
                           .add(static_cast<uint64_t>(count))
                           .digest();
  return input.work.result<SmallFisher>({WorkKind::kScore, key}, [&] {
    const TokenSequences tokens = chosen_sequences(input.tokens, {count, 0});
    const auto pass =
        make_divergence_pass(input.original, input.original, tokens, input.device, progress, fisher_pass_options());
    return small_fisher(*pass, count, tokens.length - 1);
  });
}

SmallSteps small_steps(SmallFisher fisher, const std::map<std::string, MatrixLoss>& losses,
                       const QuantizedModel& fixed) {
  FloatTensors values;
  for (const QuantizedTensor& tensor : fixed.tensors) {
    const auto* raw = std::get_if<RawTensor>(&tensor.data);
    if (!raw || !is_floating(raw->dtype)) continue;
    values[tensor.name] = dequantize(tensor);
    if (const auto found = losses.find(tensor.name); found != losses.end())
      fisher[tensor.name] = mean_of(found->second.row_weights) * mean_of(found->second.diagonal);
  }
  return {fisher, values};
}

}  // namespace thimble
