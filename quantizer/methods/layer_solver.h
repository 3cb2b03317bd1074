// layer_solver.h: solves tensors for one plan after another, each (tensor, precision) once, in parallel, as shared
// work.
#pragma once

#include <functional>
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
  LayerSolver(const TensorMap& tensors, const HessianSet& hessians, const Device& device, const SharedWork& work,
              uint64_t key, Progress& progress);

  // Every tensor of the plan, ascending by name. Collective.
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
    Precision precision;
  };
  struct Group {
    const Hessian* hessian;
    std::vector<Layer> layers;
  };

  void solve_missing(const Plan& plan);
  uint64_t key_of(const Layer& layer) const;
  // Those that share a Hessian, in the order of their first layers.
  std::vector<Group> groups_of(std::span<const Layer> layers) const;
  using Keep = std::function<void(SolvedTensor)>;  // from any thread
  void solve_here(std::span<const Group> groups, const Keep& keep) const;
  void solve_on_cpu(const Group& group, const Keep& keep) const;
  void solve_on_cuda(std::span<const Group> groups, const CudaPlace& place, const Keep& keep) const;

  const TensorMap& tensors_;
  const HessianSet& hessians_;
  Device device_;
  const SharedWork& work_;
  uint64_t key_;
  Progress& progress_;
  std::map<Slot, SolvedTensor> solved_;
};

}  // namespace thimble
