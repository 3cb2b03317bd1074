// stored_statistics.cpp: see stored_statistics.h.
#include "gptq/statistics/stored_statistics.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <numeric>

#include "runtime/base/parallel.h"

namespace thimble {
namespace {

constexpr int64_t kPackedRowsPerTask = 64;

}  // namespace

StoredHessian::StoredHessian(std::shared_ptr<const Hessian> hessian)
    : hessian_(std::move(hessian)),
      diagonal_(hessian_->matrix.diagonal()),
      token_count_(hessian_->token_count),
      sequence_count_(hessian_->sequence_count) {}

StoredHessian::StoredHessian(DeviceValues triangle, std::vector<double> diagonal)
    : on_device_(std::move(triangle)), diagonal_(std::move(diagonal)) {
  assert(on_device_->values.size() == diagonal_.size() * (diagonal_.size() + 1) / 2);
}

StoredHessian::StoredHessian(HeldBytes floats, Layout layout, int64_t size, int64_t token_count, int64_t sequence_count)
    : floats_(std::move(floats)),
      layout_(layout),
      diagonal_(static_cast<size_t>(size)),
      token_count_(token_count),
      sequence_count_(sequence_count) {
  assert(floats_.bytes.size() ==
         (layout == Layout::kTriangle ? float_bytes(size) : static_cast<uint64_t>(size * size) * sizeof(float)));
  for (int64_t k = 0; k < size; ++k) {
    const int64_t at = layout_ == Layout::kTriangle ? k * (k + 3) / 2 : k * (size + 1);
    float value = 0;
    std::memcpy(&value, floats_.bytes.data() + static_cast<size_t>(at) * sizeof(float), sizeof(float));
    diagonal_[static_cast<size_t>(k)] = static_cast<double>(value);
  }
}

StoredHessian StoredHessian::scaled(double factor, std::vector<double> added) const {
  assert(factor_ == 1 && added_.empty() && added.size() == diagonal_.size());
  StoredHessian scaled = *this;
  scaled.factor_ = factor;
  for (size_t k = 0; k < added.size(); ++k) {
    scaled.diagonal_[k] *= factor;
    scaled.diagonal_[k] += added[k];
  }
  scaled.added_ = std::move(added);
  return scaled;
}

double StoredHessian::trace() const { return std::accumulate(diagonal_.begin(), diagonal_.end(), 0.0); }

void StoredHessian::load_row(int64_t i, std::span<double> row) const {
  assert(!on_device_);
  const auto count = static_cast<size_t>(i + 1);
  if (hessian_) {
    std::copy_n(hessian_->matrix.lower_row(i), count, row.begin());
  } else {
    const int64_t first = layout_ == Layout::kTriangle ? i * (i + 1) / 2 : i * size();
    const std::byte* from = floats_.bytes.data() + static_cast<size_t>(first) * sizeof(float);
    for (size_t j = 0; j < count; ++j) {  // which need not lie where floats do
      float value;
      std::memcpy(&value, from + j * sizeof(float), sizeof(float));
      row[j] = static_cast<double>(value);
    }
  }
  if (added_.empty()) return;
  for (double& value : row.first(count)) value *= factor_;
  row[count - 1] += added_[count - 1];
}

StoredHessian::Values StoredHessian::values() const {
  if (hessian_ || on_device_) {
    const std::span<const double> values = hessian_ ? hessian_->matrix.values() : on_device_->values;
    return {std::as_bytes(values), false, Layout::kTriangle, factor_, added_};
  }
  return {floats_.bytes, true, layout_, factor_, added_};
}

std::shared_ptr<const SymmetricMatrix> StoredHessian::load() const {
  if (hessian_ && added_.empty()) return {hessian_, &hessian_->matrix};
  auto matrix = std::make_shared<SymmetricMatrix>(size());
  if (on_device_) {
    assert(added_.empty());
    on_device_->copy_to_host(matrix->values());
    return matrix;
  }
  parallel_chunks(size(), kPackedRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) load_row(i, std::span(matrix->lower_row(i), static_cast<size_t>(i + 1)));
  });
  return matrix;
}

void StoredHessian::append_floats(ByteVector& bytes) const {
  const size_t at = bytes.size();
  bytes.resize(at + float_bytes(size()));
  write_floats(bytes.data() + at);
}

StoredHessian StoredHessian::rounded() const {
  const uint64_t bytes = float_bytes(size());
  const std::shared_ptr<std::byte[]> floats(new std::byte[bytes]);  // whose pages are first touched by all threads
  write_floats(floats.get());
  return {HeldBytes{{floats.get(), bytes}, floats}, Layout::kTriangle, size(), token_count_, sequence_count_};
}

void StoredHessian::write_floats(std::byte* to) const {
  parallel_chunks(size(), kPackedRowsPerTask, [&](int64_t begin, int64_t end) {
    std::vector<double> row(diagonal_.size());
    std::vector<float> rounded(diagonal_.size());
    for (int64_t i = begin; i < end; ++i) {
      load_row(i, row);
      const size_t count = static_cast<size_t>(i) + 1, first = count * static_cast<size_t>(i) / 2;
      std::ranges::copy(std::span(row).first(count), rounded.begin());
      std::memcpy(to + first * sizeof(float), rounded.data(), count * sizeof(float));
    }
  });
}

std::shared_ptr<const StoredHessian> store_in_memory(SymmetricMatrix hessian) {
  return std::make_shared<const StoredHessian>(std::make_shared<const Hessian>(Hessian{std::move(hessian), 0, 0}));
}

StoredStatistics rounded(StoredStatistics statistics) {
  std::map<const StoredHessian*, std::shared_ptr<const StoredHessian>> handles;
  for (auto& [layer, hessian] : statistics.hessians) {
    auto& handle = handles[hessian.get()];
    if (!handle) handle = std::make_shared<const StoredHessian>(hessian->rounded());
    hessian = handle;
  }
  return statistics;
}

StoredHessians store_in_memory(const HessianSet& hessians) {
  std::map<const Hessian*, std::shared_ptr<const StoredHessian>> handles;
  StoredHessians stored;
  for (const auto& [layer, hessian] : hessians) {
    auto& handle = handles[hessian.get()];
    if (!handle) handle = std::make_shared<const StoredHessian>(hessian);
    stored.emplace(layer, handle);
  }
  return stored;
}

}  // namespace thimble
