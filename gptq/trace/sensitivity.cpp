// sensitivity.cpp: traces of Hessians.
#include "gptq/trace/sensitivity.h"

namespace thimble {

double trace_sensitivity(const Hessian& hessian) {
  // Damping adds K times kCollectionDamping * mean(diag), that is kCollectionDamping times the trace.
  return (1 + kCollectionDamping) * hessian.matrix.trace() * static_cast<double>(hessian.token_count) /
         static_cast<double>(hessian.sequence_count);
}

std::map<std::string, double> trace_sensitivities(const HessianSet& hessians) {
  std::map<std::string, double> sensitivities;
  for (const auto& [layer, hessian] : hessians) sensitivities[layer] = trace_sensitivity(*hessian);
  return sensitivities;
}

}  // namespace thimble
