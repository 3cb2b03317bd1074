// loaded_hessians.h: the Hessians behind their handles, all at once.
#pragma once

#include "gptq/statistics/stored_statistics.h"

namespace thimble {

inline HessianSet load_all(const StoredHessians& hessians) {
  std::map<const StoredHessian*, std::shared_ptr<const Hessian>> loaded;
  HessianSet set;
  for (const auto& [layer, stored] : hessians) {
    auto& hessian = loaded[stored.get()];
    if (!hessian)
      hessian =
          std::make_shared<const Hessian>(Hessian{*stored->load(), stored->token_count(), stored->sequence_count()});
    set.emplace(layer, hessian);
  }
  return set;
}

}  // namespace thimble
