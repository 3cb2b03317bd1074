// fuzz_hessians.cpp: any bytes as a file of Hessians. What is accepted must be what the solver relies on: finite
// numbers, diagonals and mean squares that are not negative, positive counts, and the layers that the header alone
// announces.
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "quantizer/formats/hessian_file.h"
#include "runtime/base/error.h"
#include "tests/fuzz/memory_file.h"
#include "tests/gptq/statistics/loaded_hessians.h"

namespace {

void check(const thimble::Hessian& hessian) {
  if (hessian.token_count < 1 || hessian.sequence_count < 1 || hessian.matrix.size() < 1) std::abort();
  for (int64_t i = 0; i < hessian.matrix.size(); ++i) {
    for (int64_t j = 0; j < hessian.matrix.size(); ++j)
      if (!std::isfinite(hessian.matrix(i, j))) std::abort();
    if (hessian.matrix(i, i) < 0) std::abort();
  }
}

void check(const thimble::LossStatistics& loss) {
  for (const thimble::FisherSet* set : {&loss.output_fisher, &loss.lookup_fisher})
    for (const auto& [name, fisher] : *set) {
      if (fisher.mean_square.empty()) std::abort();
      for (double value : fisher.mean_square)
        if (!std::isfinite(value) || value < 0) std::abort();
    }
  for (const auto& [table, counts] : loss.row_counts)
    for (int64_t count : counts)
      if (count < 0) std::abort();
  if (loss.head.size() > 1) std::abort();
  for (const auto& [name, hessian] : loss.head) check(*hessian);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  thimble::MemoryFile file(std::as_bytes(std::span(data, size)));
  try {
    const thimble::StoredStatistics statistics = thimble::read_hessian_file(file.path());
    check(statistics.loss);
    thimble::HessianSet hessians = thimble::load_all(statistics.hessians);
    for (const auto& [layer, hessian] : hessians) check(*hessian);
    for (const std::string& layer : thimble::hessian_file_layers(file.path()))
      if (hessians.erase(layer) != 1) std::abort();
    if (!hessians.empty()) std::abort();
  } catch (const thimble::FormatError&) {
  }
  return 0;
}
