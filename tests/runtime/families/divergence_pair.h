// divergence_pair.h: a student and its teacher, and passes over both on a CUDA device and on the CPU.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/cpu/cpu_models.h"
#include "runtime/cuda/cuda_models.h"
#include "tests/runtime/families/network_samples.h"
#include "tests/runtime/ops/changed_matrix.h"

namespace thimble {

// Teacher and student differ in all matrices by a few percent; gains of every kind.
struct DivergencePair {
  static constexpr int64_t kSequences = 3;

  explicit DivergencePair(const NetworkSample& sample)
      : teacher(sample.weights),
        sequences{kSequences, sample.window + 1, sample.tokens(kSequences * (sample.window + 1))} {
    Weights changed = *sample.weights;
    change_all_matrices(changed);
    gains.small = changed.small;
    for (MatrixId id : changed.network->linear_matrices()) {
      const MatrixUse& use = changed.network->matrix(id);
      for (int64_t r = 0; r < use.rows; ++r)
        gains.rows[use.name].push_back(
            static_cast<float>(0.9 + 0.2 * uniform_at(6, gains.rows.size(), static_cast<uint64_t>(r))));
    }
    student = std::make_shared<const Weights>(std::move(changed));
  }
  std::unique_ptr<DevicePass> on_cuda(const CudaPlace& place = {0}, const DivergenceOptions& options = {},
                                      Numerics numerics = Numerics::kFp32) {
    SilentProgress progress;
    return make_cuda_divergence_pass(teacher, student, sequences, place, numerics, progress, options);
  }
  std::unique_ptr<DivergencePass> on_cpu(const DivergenceOptions& options = {}) {
    return make_cpu_divergence_pass(teacher, *student, sequences, options);
  }

  std::set<std::string> all_matrices() const { return student->network->matrix_names(); }

  std::shared_ptr<const Weights> teacher, student;
  TokenSequences sequences;
  Gains gains;
};

// Of families, whose matrices are used once.
inline std::vector<NetworkRecipe> family_recipes() {
  std::vector<NetworkRecipe> recipes = network_recipes();
  std::erase_if(recipes, [](const NetworkRecipe& recipe) { return recipe.name == "EveryOperation"; });
  return recipes;
}

}  // namespace thimble
