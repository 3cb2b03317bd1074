// statistics_check.cpp: see statistics_check.h.
#include "quantizer/pipeline/statistics_check.h"

#include "runtime/base/count_text.h"
#include "runtime/base/error.h"

namespace thimble {
namespace {

// Every Hessian belongs to a matrix with as many columns.
void check_hessians(const HessianSet& hessians, const OpenedCheckpoint& source, const std::string& path) {
  for (const auto& [layer, hessian] : hessians) {
    auto found = source.shapes().find(layer);
    if (found == source.shapes().end())
      throw FormatError(path, "Hessian '" + layer + "' names no tensor of " + source.path());
    const Shape& shape = found->second.shape;
    if (shape.size() != 2 || shape[1] != hessian->matrix.size())
      throw FormatError(path, "Hessian '" + layer + "' has " + std::to_string(hessian->matrix.size()) +
                                  " columns, the tensor in " + source.path() + " has shape " + shape_text(shape));
  }
}

// What names a matrix or a table has as many values as that has rows, or columns.
void check_length(const std::string& what, const std::string& name, size_t found, size_t axis,
                  const OpenedCheckpoint& source, const std::string& path) {
  auto tensor = source.shapes().find(name);
  if (tensor == source.shapes().end())
    throw FormatError(path, what + " '" + name + "' names no tensor of " + source.path());
  const Shape& shape = tensor->second.shape;
  if (shape.size() != 2 || shape[axis] != static_cast<int64_t>(found))
    throw FormatError(path, what + " '" + name + "' has " + counted(found, "value") + ", the tensor in " +
                                source.path() + " has shape " + shape_text(shape));
}

}  // namespace

void check_statistics(const CalibrationStatistics& statistics, bool needs_fisher, const OpenedCheckpoint& source,
                      const std::string& path) {
  check_hessians(statistics.hessians, source, path);
  const LossStatistics& loss = statistics.loss;
  for (const auto& [name, fisher] : loss.output_fisher)
    check_length("output Fisher", name, fisher.mean_square.size(), 0, source, path);
  for (const auto& [name, fisher] : loss.lookup_fisher)
    check_length("lookup Fisher", name, fisher.mean_square.size(), 1, source, path);
  for (const auto& [name, counts] : loss.row_counts) check_length("row counts", name, counts.size(), 0, source, path);
  check_hessians(loss.head, source, path);
  if (!needs_fisher) return;
  for (const auto& [layer, hessian] : statistics.hessians)
    if (!loss.output_fisher.contains(layer))
      throw FormatError(path, "has a Hessian but no output Fisher of '" + layer +
                                  "'; --fisher needs one for every layer with a Hessian");
}

}  // namespace thimble
