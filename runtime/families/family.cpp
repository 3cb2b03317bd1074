// family.cpp: what all families do alike.
#include "runtime/families/family.h"

#include "runtime/base/error.h"
#include "runtime/families/config_reader.h"

namespace thimble {

Spec Family::resolve(const Json& config, const TensorMap& parameters, const Where& where) const {
  Spec spec = describe(config, parameters, where);
  check_every_tensor(spec.network->parameters, parameters, where.checkpoint, std::string(name()));
  return spec;
}

void check_context(const Spec& spec, int64_t context, const std::string& path) {
  if (spec.most_positions && context > *spec.most_positions)
    throw UsageError(path + ": a context of " + std::to_string(context) + " tokens, at most " +
                     std::to_string(*spec.most_positions) +
                     " are allowed, the positions that the model has embeddings of");
}

}  // namespace thimble
