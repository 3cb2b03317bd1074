// stored_statistics.h: calibration statistics whose Hessians lie wherever there is room for them, in memory, on a
// device or in a file, and are loaded one by one when their layer's turn comes: those of a large model do not fit in
// memory together. In: Hessians as collected.  Out: handles that load them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gptq/statistics/fisher.h"
#include "runtime/base/file.h"
#include "runtime/device/device_values.h"

namespace thimble {

// A Hessian H (K, K) that may lie in a file. Copies share what they hold.
class StoredHessian {
 public:
  enum class Layout { kTriangle, kSquare };  // the lower triangle, packed row after row; all rows

  StoredHessian() = default;
  // In memory, as it is.
  explicit StoredHessian(std::shared_ptr<const Hessian> hessian);
  // On a CUDA device: the lower triangle, packed row after row. diagonal: (K). For solvers there; no rows for others.
  StoredHessian(DeviceValues triangle, std::vector<double> diagonal);
  // In float32, K (K + 1) / 2 or K K values, anywhere in memory or in a mapped file.
  StoredHessian(HeldBytes floats, Layout layout, int64_t size, int64_t token_count, int64_t sequence_count);

  // factor * H + diag(added). added: (K)
  StoredHessian scaled(double factor, std::vector<double> added) const;

  int64_t size() const { return static_cast<int64_t>(diagonal_.size()); }
  int64_t token_count() const { return token_count_; }
  int64_t sequence_count() const { return sequence_count_; }
  const std::vector<double>& diagonal() const { return diagonal_; }  // (K), in memory
  double trace() const;
  double mean_diagonal() const { return size() == 0 ? 0 : trace() / static_cast<double>(size()); }

  // All of it as it is stored, for as long as this lives: value(i, j) = factor * values[..], and + added[i] for i = j.
  struct Values {
    Bytes bytes;              // in the host's memory, or in a device's
    bool is_float32 = false;  // else float64
    Layout layout = Layout::kTriangle;
    double factor = 1;
    std::span<const double> added;  // (K), or none
  };
  Values values() const;

  // All of it, 4 K (K + 1) B for as long as the result lives. The same bits every time.
  std::shared_ptr<const SymmetricMatrix> load() const;
  // Columns 0..i of row i, of one in the host's memory.
  void load_row(int64_t i, std::span<double> row) const;
  // The packed lower triangle, rounded to float32.
  void append_floats(ByteVector& bytes) const;
  // The same in memory of its own.
  StoredHessian rounded() const;
  static uint64_t float_bytes(int64_t size) { return static_cast<uint64_t>(size) * (size + 1) / 2 * sizeof(float); }

 private:
  void write_floats(std::byte* to) const;

  std::shared_ptr<const Hessian> hessian_;  // or null:
  std::optional<DeviceValues> on_device_;   // or none:
  HeldBytes floats_;
  Layout layout_ = Layout::kTriangle;
  std::vector<double> diagonal_, added_;  // the latter empty for zeros
  double factor_ = 1;
  int64_t token_count_ = 0, sequence_count_ = 0;
};

// As HessianSet: layers that read the same input share one object.
using StoredHessians = std::map<std::string, std::shared_ptr<const StoredHessian>>;

// CalibrationStatistics with Hessians of layers that are loaded when they are needed. That of the output head, one
// matrix of the model's width, is in memory.
struct StoredStatistics {
  StoredHessians hessians;
  LossStatistics loss;
};

// In memory, as they are.
std::shared_ptr<const StoredHessian> store_in_memory(SymmetricMatrix hessian);
StoredHessians store_in_memory(const HessianSet& hessians);
inline StoredStatistics store_in_memory(CalibrationStatistics statistics) {
  return {store_in_memory(statistics.hessians), std::move(statistics.loss)};
}

// With Hessians as they are packed, rounded to float32, in memory. Each goes once the last of its layers has the new
// one.
StoredStatistics rounded(StoredStatistics statistics);

}  // namespace thimble
