// divergence_samples.h: a student, its teacher and sequences, for the tests of divergence passes of every device.
#pragma once

#include "runtime/ops/divergence_pass.h"
#include "tests/runtime/families/family_models.h"
#include "tests/runtime/ops/changed_matrix.h"

namespace thimble {

struct DivergenceSample {
  static constexpr int64_t kSequences = 3;

  // Teacher and student differ in all matrices by a few percent.
  explicit DivergenceSample(const FamilyModel& model) : teacher(model.weights) {
    Weights changed = *model.weights;
    change_all_matrices(changed);
    for (MatrixId id : changed.network->linear_matrices()) {
      std::vector<float>& rows = gains.rows[changed.network->matrix(id).name];
      for (int64_t r = 0; r < changed.matrix(id).rows(); ++r)
        rows.push_back(static_cast<float>(0.9 + 0.2 * uniform_at(6, gains.rows.size(), static_cast<uint64_t>(r))));
    }
    gains.head = 1.1f;
    gains.small = changed.small;
    student = std::make_shared<const Weights>(std::move(changed));
    sequences = {kSequences, model.window + 1, random_tokens(kSequences * (model.window + 1), model.vocabulary(), 4)};
  }

  std::shared_ptr<const Weights> teacher, student;
  Gains gains;
  TokenSequences sequences;
};

}  // namespace thimble
