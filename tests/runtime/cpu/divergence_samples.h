// divergence_samples.h: a student, its teacher and sequences, for the tests of divergence passes of both devices.
#pragma once

#include <algorithm>
#include <cmath>

#include "runtime/ops/divergence_pass.h"
#include "runtime/ops/linear_layers.h"
#include "tests/runtime/families/golf/golf_cases.h"

namespace thimble {

struct DivergenceSample {
  static constexpr int64_t kSequences = 3;

  // Teacher and student differ in all matrices by a few percent.
  explicit DivergenceSample(const GolfCase& golf) {
    golf.change(config);
    OwnedTensors tensors = random_golf_tensors(config, 3);
    teacher = bind_model(config, views_of(tensors));
    uint64_t stream = 0;
    for (auto& [name, tensor] : tensors) {
      std::vector<float> values = to_float32(tensor.view());
      if (!is_golf_matrix(name)) {
        gains.small[name] = values;
        continue;
      }
      ++stream;
      for (size_t i = 0; i < values.size(); ++i) values[i] *= static_cast<float>(0.8 + 0.3 * uniform_at(5, stream, i));
      tensor.bytes = from_float32(tensor.dtype, values);
    }
    student = bind_model(config, views_of(tensors));
    for (const auto& [name, matrix] : linear_layers(student))
      for (int64_t r = 0; r < matrix->rows(); ++r)
        gains.rows[name].push_back(
            static_cast<float>(0.9 + 0.2 * uniform_at(6, gains.rows.size(), static_cast<uint64_t>(r))));
    gains.head = 1.1f;
    sequences = {kSequences, golf.window + 1, random_tokens(kSequences * (golf.window + 1), config.vocab_size, 4)};
  }

  std::unique_ptr<DivergencePass> pass(const Device& device = {}) {
    SilentProgress progress;
    return make_divergence_pass(teacher, student, sequences, device, progress);
  }

  ModelConfig config = small_golf_config();
  Model teacher, student;
  Gains gains;
  TokenSequences sequences;
};

}  // namespace thimble
