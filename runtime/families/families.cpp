// families.cpp: the list of families, and what all of them do alike.
#include <algorithm>
#include <array>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/families/config_reader.h"
#include "runtime/families/family.h"
#include "runtime/families/golf/golf_family.h"
#include "runtime/families/gpt2/gpt2_family.h"
#include "runtime/families/llama/llama_family.h"

namespace thimble {

std::span<const Family* const> families() {
  static const GolfFamily golf;
  static const Gpt2Family gpt2;
  static const LlamaFamily llama("llama"), mistral("mistral"), qwen2("qwen2"), qwen3("qwen3"), gemma3("gemma3_text");
  static const std::array<const Family*, 7> all = {&golf, &gpt2, &llama, &mistral, &qwen2, &qwen3, &gemma3};
  return all;
}

const Family* find_family(const Json& config, const TensorMap& tensors) {
  const Json named = named_family(config);
  for (const Family* family : families())
    if (named.is_null() ? family->has_tensors(tensors) : named == Json(family->name())) return family;
  return nullptr;
}

const Family* find_gguf_family(std::string_view architecture) {
  for (const Family* family : families())
    if (!architecture.empty() && family->gguf_architecture() == architecture) return family;
  return nullptr;
}

std::string gguf_architectures() {
  std::string names;
  for (const Family* family : families())
    if (const std::string_view name = family->gguf_architecture(); !name.empty() && find_gguf_family(name) == family)
      names += (names.empty() ? "'" : ", '") + std::string(name) + "'";
  return names;
}

std::string cannot_be_run(const Json& config) {
  const Json named = named_family(config);
  return "model family " + canonical_json(named.is_null() ? Json("unknown") : named) + " cannot be run, allowed are " +
         family_names();
}

std::string family_names() {
  std::string names;
  for (const Family* family : families()) {
    const bool is_last = family == families().back() && families().size() > 1;
    names += (names.empty() ? "'" : is_last ? " and '" : ", '") + std::string(family->name()) + "'";
  }
  return names;
}

Spec Family::resolve(const Json& config, const TensorMap& parameters, const Where& where) const {
  Spec spec = describe(config, parameters, where);
  check_every_tensor(spec.network->parameters, parameters, where.checkpoint, std::string(name()));
  return spec;
}

GgufModel Family::from_gguf(const Json&, const TensorMap&, const std::string& path) const {
  throw FormatError(path, "model family '" + std::string(name()) + "' is not read from GGUF files");
}

GgufModel Family::to_gguf(const Spec&, const std::string& path) const {
  throw UsageError(path + ": --to gguf: llama.cpp runs no '" + std::string(name()) + "' models, or they are not known");
}

Spec spec_of(const Family& family, Json config, Description description) {
  return {&family, std::move(config), description.most_positions, std::move(description.network),
          description.trained_positions};
}

}  // namespace thimble
