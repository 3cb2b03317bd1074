// naive_decoder.h: what the naive forward passes of all families do alike: lookups and products, one row at a time.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/tensor/tensor.h"
#include "tests/runtime/families/naive_forward.h"

namespace thimble {

class NaiveDecoder {
 protected:
  NaiveDecoder(const TensorMap& tensors, const NaiveEdit& edit) : tensors_(tensors), edit_(edit) {}

  NaiveRow vector(const std::string& name) const {
    const std::vector<float> values = to_float32(tensors_.at(name));
    return {values.begin(), values.end()};
  }
  NaiveRows matrix(const std::string& name) const {
    const NaiveRow values = vector(name);
    const auto width = static_cast<std::ptrdiff_t>(tensors_.at(name).shape[1]);
    NaiveRows rows;
    rows.reserve(static_cast<size_t>(tensors_.at(name).shape[0]));
    for (auto row = values.begin(); row != values.end(); row += width) rows.emplace_back(row, row + width);
    return rows;
  }

  // The rows `index` of the table `name`.
  template <typename Index>
  NaiveRows look_up(const std::string& name, const Index& index) const {
    const NaiveRows table = matrix(name);
    NaiveRows rows;
    for (auto i : index) rows.push_back(table[static_cast<size_t>(i)]);
    if (edit_) edit_("lookup " + name, rows);
    return rows;
  }

  NaiveRows multiply(const NaiveRows& input, const std::string& name) const {
    const NaiveRows weight = matrix(name);
    NaiveRows output;
    for (const NaiveRow& row : input) {
      output.emplace_back().reserve(weight.size());
      for (const NaiveRow& w : weight) output.back().push_back(dot(w, row));
    }
    if (edit_) edit_(name, output);
    return output;
  }
  // The same, and the rows are kept as that matrix's input.
  NaiveRows linear(const NaiveRows& input, const std::string& name) {
    out_.linear_inputs[name] = input;
    return multiply(input, name);
  }
  // Matrix "<name>.weight", and "<name>.bias" where there is one.
  NaiveRows project(const NaiveRows& input, const std::string& name) {
    NaiveRows output = linear(input, name + ".weight");
    if (!tensors_.contains(name + ".bias")) return output;
    const NaiveRow bias = vector(name + ".bias");
    for (NaiveRow& row : output)
      for (size_t i = 0; i < row.size(); ++i) row[i] += bias[i];
    return output;
  }

  static void add(NaiveRows& x, const NaiveRows& branch) {
    for (size_t p = 0; p < x.size(); ++p)
      for (size_t i = 0; i < x[p].size(); ++i) x[p][i] += branch[p][i];
  }
  static double dot(const NaiveRow& a, const NaiveRow& b) {
    double sum = 0;
    const double *x = a.data(), *y = b.data();
    for (size_t i = 0; i < a.size(); ++i) sum += x[i] * y[i];
    return sum;
  }

  const TensorMap& tensors_;
  const NaiveEdit& edit_;
  NaiveForward out_;
};

}  // namespace thimble
