// golf_network.h: the golf-gpt's forward pass.
#pragma once

#include "runtime/families/golf/golf_config.h"
#include "runtime/ops/network.h"

namespace thimble {

Network golf_network(const GolfConfig& config);

}  // namespace thimble
