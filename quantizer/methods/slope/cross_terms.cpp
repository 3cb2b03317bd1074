// cross_terms.cpp: see cross_terms.h.
#include "quantizer/methods/slope/cross_terms.h"

#include <algorithm>

#include "runtime/base/hash.h"

namespace thimble {
namespace {

class ProgramPairs final : public PairedModels {
 public:
  ProgramPairs(std::shared_ptr<const Weights> original, const TokenSequences& tokens, int64_t sequences,
               const Device& device, Ranks& ranks)
      : original_(std::move(original)),
        tokens_(tokens),
        sequences_(std::min(tokens.count, sequences)),
        device_(device),
        ranks_(ranks),
        inputs_(inputs_of_layers(*original_->network)) {}

  uint64_t key() const override {
    return Hasher()
        .add(std::string_view("cross terms"))
        .add(std::as_bytes(std::span(tokens_.tokens)))
        .add(static_cast<uint64_t>(tokens_.length))
        .add(static_cast<uint64_t>(sequences_))
        .digest();
  }

  std::vector<std::vector<std::string>> inputs() const override {
    std::vector<std::vector<std::string>> names;
    for (const LinearInput& input : inputs_) {
      names.emplace_back();
      for (MatrixId id : input.readers) names.back().push_back(original_->network->matrix(id).name);
    }
    return names;
  }

  void begin(const KnownTensors& known) override {
    auto so_far = std::make_shared<Weights>(*original_);
    for (size_t i = 0; i < so_far->matrices.size(); ++i)
      if (const auto found = known.find(original_->network->matrices[i].name); found != known.end())
        so_far->matrices[i] = stored_matrix(*found->second);
    FloatTensors small;
    for (const auto& [name, values] : original_->small) small[name] = dequantize(*known.at(name));
    so_far->set_small(std::move(small));
    pairs_ = make_input_pairs(original_, std::move(so_far), device_, tokens_, sequences_, ranks_);
  }

  StoredPair collect(size_t input) override { return pairs_->collect(inputs_[input]); }
  void replace(const QuantizedTensor& solved) override { pairs_->replace(solved.name, stored_matrix(solved)); }
  void end() override { pairs_.reset(); }

 private:
  const std::shared_ptr<const Weights> original_;
  const TokenSequences& tokens_;
  const int64_t sequences_;
  const Device& device_;
  Ranks& ranks_;
  const std::vector<LinearInput> inputs_;
  std::unique_ptr<InputPairs> pairs_;
};

KnownTensors known_tensors(const QuantizedModel& fixed, const std::vector<SlopeMatrix>& solved) {
  KnownTensors known;
  for (const QuantizedTensor& tensor : fixed.tensors) known[tensor.name] = &tensor;
  for (const SlopeMatrix& matrix : solved) known[matrix.tensor.name] = &matrix.tensor;
  return known;
}

}  // namespace

std::unique_ptr<PairedModels> make_paired_models(std::shared_ptr<const Weights> original, const TokenSequences& tokens,
                                                 int64_t sequences, const Device& device, Ranks& ranks) {
  return std::make_unique<ProgramPairs>(std::move(original), tokens, sequences, device, ranks);
}

std::vector<SlopeMatrix> CrossTerms::solve(double log2_c, Progress& progress, const OnSolved& on_solved) const {
  const std::vector<std::string> all = layers.names();
  SlopeSettings others;
  const SlopeSetting setting = layers.setting_at(log2_c);
  for (const std::string& name : all) others[name] = setting;
  const std::vector<std::vector<std::string>> inputs = models.inputs();
  for (const std::vector<std::string>& readers : inputs)
    for (const std::string& name : readers) others.erase(name);
  std::vector<SlopeMatrix> solved = times.time("solve", [&] { return layers.solve(others, progress, on_solved); });

  bool are_running = false;  // once something is not kept
  const uint64_t key = models.key();
  for (size_t input = 0; input < inputs.size(); ++input) {
    std::vector<std::string> names;
    for (const std::string& name : inputs[input])
      if (std::ranges::find(all, name) != all.end()) names.push_back(name);
    if (names.empty()) continue;
    auto collect = [&] {
      if (!are_running) times.time("cross terms: models", [&] { models.begin(known_tensors(fixed, solved)); });
      are_running = true;
      return times.time("cross terms: forward", [&] { return models.collect(input); });
    };
    for (SlopeMatrix& matrix : layers.solve_shifted(names, setting, key, collect, times, progress, on_solved)) {
      if (are_running) times.time("cross terms: replace", [&] { models.replace(matrix.tensor); });
      solved.push_back(std::move(matrix));
    }
  }
  if (are_running) models.end();
  std::ranges::sort(solved, {}, [](const SlopeMatrix& matrix) { return matrix.tensor.name; });
  return solved;
}

}  // namespace thimble
