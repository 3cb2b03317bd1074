// small_rounding.cpp: see small_rounding.h.
#include "quantizer/methods/slope/small_rounding.h"

#include <algorithm>

#include "runtime/base/hash.h"
#include "runtime/device/models.h"

namespace thimble {

QuantizedModel with_rounded_small(QuantizedModel model, const SmallExponents& exponents) {
  for (QuantizedTensor& tensor : model.tensors) {
    const auto found = exponents.find(tensor.name);
    auto* raw = std::get_if<RawTensor>(&tensor.data);
    if (found == exponents.end() || !raw) continue;
    raw->bytes = from_float32(raw->dtype, rounded_to_steps(to_float32(raw->dtype, raw->bytes), found->second));
  }
  return model;
}

SmallSteps measured_small_steps(const DistillInput& input, Progress& progress) {
  const int64_t held_out = held_out_sequences(input.tokens.count, input.data_share);
  const int64_t count = std::min(kFisherSequences, input.tokens.count - held_out);
  if (count < 2) return {};
  const uint64_t key = Hasher().add(std::string_view("Fisher of small tensors")).add(input.key).digest();
  const auto fisher = input.work.result<SmallFisher>({WorkKind::kScore, key}, [&] {
    const TokenSequences tokens = chosen_sequences(input.tokens, {count, 0});
    const auto pass =
        make_divergence_pass(input.original, input.original, tokens, input.device, progress, fisher_pass_options());
    return small_fisher(*pass, count, tokens.length - 1);
  });
  return {fisher, input.original->small};
}

}  // namespace thimble
