// cuda_gain_observer.cuh: the gradients that a divergence pass on a CUDA device sums, by gains and by matrices.
#pragma once

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "runtime/cuda/cuda_gradient_pass.cuh"
#include "runtime/cuda/cuda_matrix_gradients.cuh"
#include "runtime/cuda/kernels/cuda_row_kernel.cuh"
#include "runtime/ops/divergence_pass.h"

namespace thimble {

template <typename T>
struct LookUpRows {
  const T* table;
  int64_t stride;
  const int32_t* rows;
  BasicCudaView<T> out;

  __device__ void operator()(int64_t row, int lane) const {
    const T* from = table + rows[row] * stride;
    for (int64_t c = lane; c < out.columns; c += 32) out.data[row * out.stride + c] = from[c];
  }
};

// Sums of the gradients by the logarithms of gains, on the device: one for each output of each matrix, or with
// `sums_rows` false of the head only, and for a tied head those of what is looked up, by columns. Not initialised.
template <typename T>
class CudaGainObserver final : public CudaGradientObserver<T> {
 public:
  using typename CudaGradientObserver<T>::ConstView;

  CudaGainObserver(const CudaNetworkWeights<T>& student, CudaGradientPass<T>& pass, bool sums_rows)
      : student_(student),
        network_(student.network()),
        pass_(pass),
        head_name_(network_.matrix(network_.head.weight).name) {
    int64_t count = 0;
    auto place = [&](const std::string& name, int64_t columns) {
      places_[name] = {count, columns};
      count += columns;
    };
    if (sums_rows)
      for (MatrixId id : network_.linear_matrices()) place(network_.matrix(id).name, network_.matrix(id).rows);
    place(head_name_, network_.vocabulary());
    place(kLookup, network_.matrix(network_.head.weight).columns);
    sums_ = DeviceArray<double>(count, "sums");
  }

  // Where gradients by matrices go from now on; null: nowhere.
  void sum_matrices(CudaMatrixGradients* matrices) { matrices_ = matrices; }

  void on_output_gradient(const std::string& weight, ConstView gradient, ConstView output, const BatchShape& batch,
                          cudaStream_t stream) override {
    if (!output.data) return;
    pass_.column_dots().add(gradient, output, batch, sums_.data() + places_.at(weight).first, {}, stream);
  }
  void on_head_gradient(const std::string& weight, ConstView gradient, ConstCudaView output, const BatchShape& batch,
                        cudaStream_t stream) override {
    pass_.column_dots().add(gradient, output, batch, sums_.data() + places_.at(weight).first, {}, stream);
  }
  void on_lookup_gradient(const std::string& table, std::span<const int32_t> rows, ConstView gradient,
                          const BatchShape& batch, cudaStream_t stream) override {
    if (matrices_) matrices_->add_lookups(network_.id_of(table), rows, gradient, batch, stream);
    if (table != head_name_) return;
    rows_.reserve(std::ssize(rows));
    std::ranges::copy(rows, sent_rows_.reserve(std::ssize(rows)));
    sent_rows_.send(std::ssize(rows), rows_.data(), stream);
    looked_up_.resize(gradient.rows, gradient.columns);
    const CudaMatrix<T>& from = student_.matrix(network_.head.weight);
    launch_rows(gradient.rows, LookUpRows<T>{from.data.data(), from.columns, rows_.data(), looked_up_}, stream);
    pass_.column_dots().add(gradient, ConstView(looked_up_), batch, sums_.data() + places_.at(kLookup).first, {},
                            stream);
  }

  void on_linear_gradient(const std::string& weight, ConstView gradient, ConstView input, const BatchShape& batch,
                          cudaStream_t stream) override {
    if (matrices_) matrices_->add_products(network_.id_of(weight), gradient, input, batch, stream);
  }

  void set_zero(cudaStream_t stream) { sums_.fill_bytes(0, stream); }

  // Room for on_lookup_gradient() of so many rows, where the head's matrix is looked up too.
  void reserve_lookups(int64_t rows) {
    auto looks_up_head = [&](const Node& node) {
      const auto* gather = std::get_if<op::Gather>(&node.operation);
      return gather && gather->table == network_.head.weight;
    };
    if (std::ranges::none_of(network_.nodes, looks_up_head)) return;
    rows_.reserve(rows);
    looked_up_.resize(rows, network_.matrix(network_.head.weight).columns);
  }

  // Waits for the stream.
  void read(GainGradients& to, cudaStream_t stream) const {
    std::vector<double> sums(static_cast<size_t>(sums_.count()));
    check_cuda(cudaMemcpyAsync(sums.data(), sums_.data(), sums_.bytes(), cudaMemcpyDeviceToHost, stream));
    check_cuda(cudaStreamSynchronize(stream));
    for (const auto& [name, place] : places_) {
      auto first = sums.begin() + place.first, last = first + place.columns;
      if (name == head_name_ || name == kLookup)
        to.head += std::accumulate(first, last, 0.0);
      else
        to.rows[name].assign(first, last);
    }
  }

 private:
  static constexpr const char* kLookup = "";
  struct Place {
    int64_t first = 0, columns = 0;
  };
  const CudaNetworkWeights<T>& student_;
  const Network& network_;
  CudaGradientPass<T>& pass_;
  CudaMatrixGradients* matrices_ = nullptr;
  std::string head_name_;
  std::map<std::string, Place> places_;
  DeviceArray<double> sums_;
  SentList sent_rows_;
  DeviceArray<int32_t> rows_;
  BasicCudaMatrix<T> looked_up_;
};

}  // namespace thimble
