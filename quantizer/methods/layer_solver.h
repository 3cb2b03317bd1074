// layer_solver.h: solves tensors for one plan after another, each (tensor, precision) once, in parallel, as shared
// work.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gptq/trace/plan.h"
#include "quantizer/methods/shared_work.h"
#include "runtime/base/progress.h"
#include "runtime/device/device.h"

namespace thimble {

class LayerSolver {
 public:
  // All arguments must outlive the solver. `key` hashes what solutions depend on besides name and precision.
  LayerSolver(const TensorMap& tensors, const StoredHessians& hessians, const Device& device, const SharedWork& work,
              uint64_t key, Progress& progress);

  // Every tensor of the plan, ascending by name. Collective.
  std::vector<QuantizedTensor> solve(const Plan& plan);

  // The tensors that the plan rounds or stores raw: what can be known before any Hessian is.
  std::vector<QuantizedTensor> solve_without_hessians(const Plan& plan);

  // How the tensor was solved at this precision; null when it was not, or not by GPTQ.
  const GptqReport* report(const std::string& name, const Precision& precision) const;

 private:
  using Layer = Plan::value_type;  // name and precision
  // Layers to solve that read the same input, as pieces of the work.
  struct Group {
    const StoredHessian* hessian;
    std::vector<std::pair<size_t, const Layer*>> layers;
  };

  void solve_missing(const Plan& plan);
  using Keep = SharedWork::Give<SolvedTensor>;
  void solve_here(std::span<const Group> groups, const Keep& keep) const;
  void solve_on_cpu(const Group& group, const Keep& keep) const;
  void solve_on_cuda(std::span<const Group> groups, const CudaPlace& place, const Keep& keep) const;

  const TensorMap& tensors_;
  const StoredHessians& hessians_;
  Device device_;
  const SharedWork& work_;
  uint64_t key_;
  Progress& progress_;
  std::map<std::string, SolvedTensor> solved_;  // by slot()
};

}  // namespace thimble
