// gpt2_network.h: GPT-2's forward pass (Radford et al. 2019, section 2.3; pre-norm blocks).
#pragma once

#include "runtime/families/gpt2/gpt2_config.h"
#include "runtime/ops/network.h"

namespace thimble {

Network gpt2_network(const Gpt2Config& config);

}  // namespace thimble
