// family.h: a family of models is a description. What a family gives: which checkpoints are its own, how names and
// layouts of files map to its parameters and back, and the network that its config and shapes describe. All else -
// binding, statistics, quantization, generation, gradients, memory plans - follows from the network.
// docs/families.md shows how to add one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/families/description.h"
#include "runtime/families/gguf_model.h"
#include "runtime/ops/network.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

class Family;

// What a program knows of a model once its family has read its config and its tensors' shapes.
struct Spec {
  const Family* family = nullptr;
  Json config;                            // canonical: what an artifact carries, and the family resolves again
  std::optional<int64_t> most_positions;  // sequences longer than this cannot be run; nullopt: of any length
  std::shared_ptr<const Network> network;
  // Of the sequences it was trained on, where the config says so: longer ones run, and are predicted badly.
  std::optional<int64_t> trained_positions = std::nullopt;

  int64_t vocabulary() const { return network->vocabulary(); }
  // As many of `wanted` positions as the model has, and was trained on.
  int64_t usual_length(int64_t wanted) const {
    return std::min({wanted, most_positions.value_or(wanted), trained_positions.value_or(wanted)});
  }
};

Spec spec_of(const Family& family, Json config, Description description);

// A UsageError when a context of this many tokens is too long for the model of `path`.
inline void check_context(const Spec& spec, int64_t context, const std::string& path) {
  check_positions(spec.most_positions, context, path);
}

// Tensors by name, some of which lie in memory of their own.
struct MappedTensors {
  TensorMap tensors;
  std::vector<ByteVector> storage;
  bool banked = false;  // the file stacked matrices of several layers in one tensor
};

// What of tensors is asked for: shapes and dtypes alone, which costs nothing, or bytes too.
enum class Contents { kShapes, kBytes };

class Family {
 public:
  virtual ~Family() = default;

  // As "architecture" or "model_type" of configs has it.
  virtual std::string_view name() const = 0;
  // Tokens by which scored windows move on where nobody says.
  virtual int64_t usual_stride() const { return 512; }
  // Does text that a model writes to calibrate itself keep to its tokenizer: begin as documents do, hold no special
  // token? Else its first token is uniform over the vocabulary.
  virtual bool writes_documents() const { return true; }
  // Without a family's name in the config: are these the tensors of a checkpoint of this family?
  virtual bool has_tensors(const TensorMap& tensors) const = 0;
  // The parameters of a checkpoint under their own names and as (out, in). A layout that cannot be mapped is a
  // FormatError(path).
  virtual MappedTensors from_file(const TensorMap& tensors, Contents contents, const std::string& path) const = 0;
  // The inverse, for export: tensors of the parameters become those of a checkpoint.
  virtual std::map<std::string, Tensor> to_file(const Spec& spec, std::map<std::string, Tensor> parameters,
                                                bool banked) const = 0;
  // The config.json by which Hugging Face's library reads the tensors of to_file(); null where it has no such model. Of
  // models that have one, to_file() takes parameters one by one too, and shapes without
  // bytes.
  virtual Json hub_config(const Spec&) const { return nullptr; }
  // Of families that llama.cpp runs: "general.architecture" of their GGUF files. Of several families with one name, the
  // first reads such a file.
  virtual std::string_view gguf_architecture() const { return {}; }
  // What a GGUF file with this metadata and these tensors (those of F32 with bytes) describes; FormatErrors(path). The
  // other way round; a UsageError(path) for what llama.cpp does not run. For families with a gguf_architecture().
  virtual GgufModel from_gguf(const Json& metadata, const TensorMap& tensors, const std::string& path) const;
  virtual GgufModel to_gguf(const Spec& spec, const std::string& path) const;
  // The spec that a config and the shapes of parameters describe. A missing or contradicting key, and a tensor that is
  // missing, of another shape, not floating, or not the family's, are FormatErrors that name it.
  Spec resolve(const Json& config, const TensorMap& parameters, const Where& where) const;

 protected:
  // The same, but for the check of every tensor against the network's parameters. Whatever shapes prove is inferred
  // when `config` lacks it and must agree when it has it (config_reader.h).
  virtual Spec describe(const Json& config, const TensorMap& parameters, const Where& where) const = 0;
};

// The only list.
std::span<const Family* const> families();

// The family that a config names or, where it names none, whose tensors these are; null: none that runs.
const Family* find_family(const Json& config, const TensorMap& tensors);

// "model family "bert" cannot be run, allowed are 'a' and 'b'", of a config whose family is not found.
std::string cannot_be_run(const Json& config);

// The family that reads GGUF files of this architecture, null: none; the architectures of all, "'a', 'b'".
const Family* find_gguf_family(std::string_view architecture);
std::string gguf_architectures();

// "'a' and 'b'".
std::string family_names();

}  // namespace thimble
