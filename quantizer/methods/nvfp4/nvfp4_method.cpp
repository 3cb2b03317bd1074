// nvfp4_method.cpp: see nvfp4_method.h.
#include "quantizer/methods/nvfp4/nvfp4_method.h"

#include "runtime/base/error.h"

namespace thimble {
namespace {

void require_fit(const std::string& what, uint64_t bytes, std::optional<uint64_t> limit_bytes) {
  if (limit_bytes && bytes > *limit_bytes)
    throw CheckError("the budget cannot be met: " + what + " " + bytes_text(bytes) + ", the artifact may take " +
                     bytes_text(*limit_bytes));
}

class Nvfp4Method final : public Method {
 public:
  Nvfp4Method(int64_t min_elements, const EncodeOptions& encode) : min_elements_(min_elements), encode_(encode) {}

  Json provenance() const override { return {{"method", "nvfp4"}}; }

  void check_lower_bound(std::optional<uint64_t> limit_bytes, const MethodWork& work) override {
    if (!limit_bytes) return;
    QuantizedModel model = header_of(*this, work);
    model.tensors = work.solver.solve_without_hessians(plan(work));
    require_fit("the tensors that are not solved by GPTQ take",
                work.encoder.artifact(model, encode_, work.progress).size(), limit_bytes);
  }

  Fitted fit(std::optional<uint64_t> limit_bytes, const MethodWork& work) override {
    const Plan chosen = plan(work);
    Fitted fitted{header_of(*this, work), {}, {}};
    fitted.model.tensors = work.times.time("solve", [&] { return work.solver.solve(chosen); });
    fitted.artifact = work.encoder.artifact(fitted.model, encode_, work.progress);
    require_fit("the artifact in NVFP4 takes", fitted.artifact.size(), limit_bytes);
    fitted.report.encodes = 1;
    fitted.report.layers = layer_outcomes(chosen, work.statistics, work.solver);
    return fitted;
  }

  std::string fill_reason() const override { return "method nvfp4 has one size, and no choice to fill a budget with"; }

 private:
  Plan plan(const MethodWork& work) const {
    return make_nvfp4_plan(work.summaries, {work.layers.begin(), work.layers.end()}, min_elements_);
  }

  int64_t min_elements_;
  EncodeOptions encode_;
};

}  // namespace

std::unique_ptr<Method> make_nvfp4_method(int64_t min_elements, const EncodeOptions& encode) {
  return std::make_unique<Nvfp4Method>(min_elements, encode);
}

}  // namespace thimble
