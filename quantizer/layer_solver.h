// layer_solver.h: solves tensors for one plan after another, each (tensor, precision) once, in parallel, resumably.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gptq/gptq.h"
#include "quantizer/work_folder.h"
#include "runtime/device.h"
#include "runtime/progress.h"

namespace thimble {

class LayerSolver {
 public:
  // All arguments must outlive the solver. `key` hashes what solutions depend on besides name and precision.
  LayerSolver(const TensorMap& tensors, const HessianSet& hessians, const Device& device, const WorkFolder& work,
              uint64_t key, Progress& progress);

  // Every tensor of the plan, ascending by name.
  std::vector<QuantizedTensor> solve(const Plan& plan);

  // The tensors that the plan rounds or stores raw: what can be known before any Hessian is.
  std::vector<QuantizedTensor> solve_without_hessians(const Plan& plan);

  // How the tensor was solved at this precision; null when it was not, or not by GPTQ.
  const GptqReport* report(const std::string& name, const Precision& precision) const;

 private:
  // "name\nprecision": one solved tensor each.
  using Slot = std::string;
  static Slot slot(const std::string& name, const Precision& precision);

  // Layers to solve that read the same input.
  struct Layer {
    std::string name;
    RowScaledPrecision precision;
  };
  struct Group {
    const Hessian* hessian;
    std::vector<Layer> layers;
  };

  void solve_missing(const Plan& plan);
  uint64_t file_key(const Layer& layer) const;
  // Takes a layer's solution from the work folder if it is there.
  bool load(const Layer& layer);
  void keep(const Layer& layer, SolvedTensor solved);
  void solve_on_cpu(const Group& group);
  void solve_on_cuda(std::span<const Group> groups, int ordinal);

  const TensorMap& tensors_;
  const HessianSet& hessians_;
  const Device& device_;
  const WorkFolder& work_;
  uint64_t key_;
  Progress& progress_;
  std::map<Slot, SolvedTensor> solved_;
};

}  // namespace thimble
