// teacher.cpp: see teacher.h.
#include "quantizer/methods/slope/teacher.h"

namespace thimble {
namespace {

class ProgramTeacher final : public Teacher {
 public:
  explicit ProgramTeacher(const DistillInput& input)
      : input_(input), blocks_(learned_blocks(*input.original->network, input.codes.block)) {}

  bool learns() const override { return input_.codes.steps > 0; }
  bool learns_rows() const override { return input_.learns_rows; }
  bool distills() const override { return input_.options.steps > 0; }
  size_t block_count() const override { return blocks_.size(); }
  LearnedCodes learn(const QuantizedModel& model, double divergence, size_t block, Progress& progress) override {
    return learn_codes(input_, model, divergence, blocks_.at(block), progress);
  }
  Distilled distill(const QuantizedModel& model, const SmallExponents& small, Progress& progress) override {
    return thimble::distill(input_, model, small, progress);
  }
  TunedNames tuned(const QuantizedModel&) const override { return tuned_names(*input_.original->network); }
  double divergence(const QuantizedModel& model, Progress& progress) override {
    return held_out_divergence(input_, model, progress);
  }

 private:
  const DistillInput& input_;
  const std::vector<std::set<std::string>> blocks_;
};

}  // namespace

std::unique_ptr<Teacher> make_teacher(const DistillInput& input) { return std::make_unique<ProgramTeacher>(input); }

}  // namespace thimble
