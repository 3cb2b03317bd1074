// description.cpp: the families' descriptions by name.
#include "runtime/families/description.h"

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/families/config_reader.h"
#include "runtime/families/golf/golf_family.h"
#include "runtime/families/gpt2/gpt2_family.h"
#include "runtime/families/llama/llama_family.h"

namespace thimble {
namespace {

Description describe_golf(std::string_view, const Json& config, const TensorMap& parameters, const Where& where) {
  return golf_description(resolve_golf_config(config, where.config, parameters, where.checkpoint));
}

Description describe_gpt2(std::string_view, const Json& config, const TensorMap& parameters, const Where& where) {
  return gpt2_description(resolve_gpt2_config(config, where.config, parameters, where.checkpoint));
}

Description describe_llama(std::string_view name, const Json& config, const TensorMap& parameters, const Where& where) {
  return llama_description(
      resolve_llama_config(llama_variant(name), config, where.config, parameters, where.checkpoint));
}

struct Described {
  const char* family;
  Description (*describe)(std::string_view name, const Json& config, const TensorMap& parameters, const Where& where);
};
constexpr Described kDescribed[] = {
    {"golf-gpt", describe_golf}, {"gpt2", describe_gpt2},   {"llama", describe_llama},      {"mistral", describe_llama},
    {"qwen2", describe_llama},   {"qwen3", describe_llama}, {"gemma3_text", describe_llama}};

}  // namespace

Description describe_model(const Json& config, const TensorMap& parameters, const Where& where) {
  const Json named = named_family(config);
  for (const auto& [family, describe] : kDescribed) {
    if (!named.is_string() || named.get_ref<const std::string&>() != family) continue;
    Description description = describe(family, config, parameters, where);
    check_every_tensor(description.network->parameters, parameters, where.checkpoint, family);
    return description;
  }
  throw FormatError(where.config, "model family " + canonical_json(named) + " cannot be run");
}

Json named_family(const Json& config) {
  return config.is_object() ? config.value("architecture", config.value("model_type", Json())) : Json();
}

void check_positions(const std::optional<int64_t>& most_positions, int64_t context, const std::string& path) {
  if (most_positions && context > *most_positions)
    throw UsageError(path + ": a context of " + std::to_string(context) + " tokens, at most " +
                     std::to_string(*most_positions) + " are allowed, the positions that the model has embeddings of");
}

}  // namespace thimble
