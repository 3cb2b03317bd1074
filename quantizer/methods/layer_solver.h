// layer_solver.h: solves tensors for one plan after another, each (tensor, precision) once, in parallel, resumably.
// Rank 0 asks; it and the others that serve() solve equal shares.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gptq/gptq.h"
#include "quantizer/methods/work_folder.h"
#include "runtime/base/progress.h"
#include "runtime/device/device.h"
#include "runtime/device/ranks.h"

namespace thimble {

class LayerSolver {
 public:
  // All arguments must outlive the solver. `key` hashes what solutions depend on besides name and precision.
  // The work folder is rank 0's.
  LayerSolver(const TensorMap& tensors, const HessianSet& hessians, const Device& device, const WorkFolder& work,
              uint64_t key, Ranks& ranks, Progress& progress);

  // Every tensor of the plan, ascending by name. On rank 0 only.
  std::vector<QuantizedTensor> solve(const Plan& plan);

  // The other ranks: solves this rank's shares of what rank 0 is asked to solve, until it calls dismiss().
  void serve();
  // Rank 0: there is nothing more to solve.
  void dismiss();

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
  // From rank 0's tell() to all others' told(); no layers at the end.
  void tell(const std::vector<Layer>& layers);
  std::vector<Layer> told();
  // This rank's share of `layers`, exchanged for the others' shares.
  void solve_share(const std::vector<Layer>& layers);
  std::vector<Group> groups_of(const std::vector<Layer>& layers) const;
  uint64_t file_key(const Layer& layer) const;
  // Takes a layer's solution from the work folder if it is there.
  bool load(const Layer& layer);
  // Takes a solution that has just been computed; from any thread.
  void keep(SolvedTensor solved);
  void solve_here(std::span<const Group> groups);
  void solve_on_cpu(const Group& group);
  void solve_on_cuda(std::span<const Group> groups, const CudaPlace& place);

  const TensorMap& tensors_;
  const HessianSet& hessians_;
  Device device_;
  const WorkFolder& work_;
  uint64_t key_;
  Ranks& ranks_;
  Progress& progress_;
  std::map<Slot, SolvedTensor> solved_;
};

}  // namespace thimble
