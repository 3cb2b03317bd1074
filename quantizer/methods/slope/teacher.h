// teacher.h: who brings a solved model of the method `slope` closer to its original, and says how close it is then: the
// program, or whoever runs a model that it does not know.
#pragma once

#include <memory>

#include "quantizer/methods/slope/distill.h"
#include "quantizer/methods/slope/learn_codes.h"

namespace thimble {

class Teacher {
 public:
  virtual ~Teacher() = default;
  virtual bool learns() const = 0;                    // codes
  virtual bool learns_rows() const { return false; }  // gains of rows with the codes
  virtual bool distills() const = 0;                  // gains, where no codes are learned

  // How many times learn() is asked, each time for other matrices.
  virtual size_t block_count() const { return 1; }
  // `divergence`: of the model, as below.
  virtual LearnedCodes learn(const QuantizedModel& model, double divergence, size_t block, Progress& progress) = 0;
  // distill.h's distill().
  virtual Distilled distill(const QuantizedModel& model, const SmallExponents& small, Progress& progress) = 0;
  // What distill() is going to change, and learn() where it learns rows.
  virtual TunedNames tuned(const QuantizedModel& model) const = 0;
  // Mean divergence from the original in nats per token on the sequences held out; `model` as it is stored.
  virtual double divergence(const QuantizedModel& model, Progress& progress) = 0;
};

// Of a model that the program runs. All that takes a Progress is collective. `input` must outlive the result.
std::unique_ptr<Teacher> make_teacher(const DistillInput& input);

}  // namespace thimble
