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
    uint64_t stream = 0;
    for (size_t id = 0; id < changed.matrices.size(); ++id) {
      ++stream;
      change_matrix(changed, static_cast<MatrixId>(id), [stream](Matrix& matrix) {
        for (size_t i = 0; i < matrix.values().size(); ++i)
          matrix.values()[i] *= static_cast<float>(0.8 + 0.3 * uniform_at(5, stream, i));
      });
    }
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
