// attention_window.h: sliding-window attention (arXiv 2004.05150, section 3.1): a position sees itself and what comes
// before it, up to `window` positions in all; 0: everything before it.
#pragma once

#include "runtime/tensor/host_device.h"

namespace thimble {

// The first position that the one at `position` sees.
template <typename Integer>
THIMBLE_HOST_DEVICE constexpr Integer first_seen(Integer position, Integer window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

}  // namespace thimble
