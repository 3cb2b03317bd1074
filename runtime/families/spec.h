// spec.h: what a program knows of a model once its family has read its config and its tensors' shapes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/json.h"
#include "runtime/ops/network.h"

namespace thimble {

class Family;

struct Spec {
  const Family* family = nullptr;
  Json config;                            // canonical: what an artifact carries, and the family resolves again
  std::optional<int64_t> most_positions;  // sequences longer than this cannot be run; nullopt: of any length
  std::shared_ptr<const Network> network;

  int64_t vocabulary() const { return network->vocabulary(); }
};

// A UsageError when a context of this many tokens is too long for the model of `path`.
void check_context(const Spec& spec, int64_t context, const std::string& path);

}  // namespace thimble
