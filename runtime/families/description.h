// description.h: what of a model's family a program needs that only runs models: the network that a config and the
// shapes of parameters describe, and how long its sequences may be. family.h has the rest: files of all kinds.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/json.h"
#include "runtime/ops/network.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

// Where a checkpoint's config and tensors were found, for errors.
struct Where {
  std::string config, checkpoint;
};

struct Description {
  std::shared_ptr<const Network> network;
  std::optional<int64_t> most_positions = std::nullopt;  // as Spec has both (family.h)
  std::optional<int64_t> trained_positions = std::nullopt;
};

// Of the family that the config names. What is wrong with config or shapes, and another family than those that run, are
// FormatErrors that name it, as Family::resolve() has them.
Description describe_model(const Json& config, const TensorMap& parameters, const Where& where);

// The family's name in a config, as "architecture" or as Hugging Face has it; null: there is none.
Json named_family(const Json& config);

// A UsageError when a context of this many tokens is too long for the model of `path`.
void check_positions(const std::optional<int64_t>& most_positions, int64_t context, const std::string& path);

}  // namespace thimble
