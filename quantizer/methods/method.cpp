// method.cpp: what methods share.
#include "quantizer/methods/method.h"

#include <algorithm>

namespace thimble {

int64_t MethodWork::parameters() const {
  int64_t count = 0;
  for (const auto& [name, summary] : summaries) count += element_count(summary.shape);
  return count;
}

std::vector<LayerOutcome> layer_outcomes(const Plan& plan, const CalibrationStatistics& statistics,
                                         const LayerSolver& solver) {
  const FisherSet& fisher = statistics.loss.output_fisher;
  std::vector<LayerOutcome> layers;
  for (const auto& [name, sensitivity] : trace_sensitivities(statistics.hessians)) {
    const Precision& precision = plan.at(name);
    const GptqReport* report = solver.report(name, precision);
    LayerOutcome layer;
    layer.name = name;
    layer.precision = precision_text(precision);
    layer.sensitivity = sensitivity;
    if (auto found = fisher.find(name); found != fisher.end()) layer.output_fisher = found->second.mean();
    if (report) layer.report = *report;
    layers.push_back(std::move(layer));
  }
  std::ranges::stable_sort(layers, std::ranges::greater{}, &LayerOutcome::sensitivity);
  return layers;
}

QuantizedModel header_of(const Method& method, const MethodWork& work) {
  QuantizedModel header = work.header;
  Json provenance = parse_json(as_bytes_of(header.provenance_json), "provenance");
  provenance.update(method.provenance());
  header.provenance_json = canonical_json(provenance);
  return header;
}

}  // namespace thimble
