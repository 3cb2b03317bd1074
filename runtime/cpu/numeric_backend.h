// numeric_backend.h: a Backend whose operations round what they write, as a NumericPolicy says, over one that does not.
// The one place where numeric modes meet a forward pass: every family runs in every mode on every device.
#pragma once

#include <memory>

#include "runtime/cpu/backend.h"
#include "runtime/ops/numeric_policy.h"

namespace thimble {

// `exact` itself when the policy changes nothing. Weights are the caller's to round (round_weights()); where the policy
// has NVFP4, `weights` are the codes of all that linear() will be given.
std::unique_ptr<Backend> make_numeric_backend(std::unique_ptr<Backend> exact, const NumericPolicy& policy,
                                              Nvfp4Weights weights = {});

}  // namespace thimble
