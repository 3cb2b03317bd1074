// linear_layers.h: the matrices of a model that multiply activations, by unbanked name, below the output head: of a
// Model, and of what has fields of the same names in device memory.
#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/families/golf/golf_layout.h"
#include "runtime/families/golf/model_config.h"
#include "runtime/families/gpt2/gpt2_model.h"

namespace thimble {

template <typename AnyModel>
auto linear_layers(AnyModel& model) {
  std::vector<std::pair<std::string, decltype(&model.bigram_projection)>> found;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    LayerNames names(static_cast<int64_t>(i));
    auto& layer = model.layers[i];
    found.insert(found.end(), {{names.query, &layer.query},
                               {names.key, &layer.key},
                               {names.value, &layer.value},
                               {names.output, &layer.output},
                               {names.up, &layer.up},
                               {names.down, &layer.down}});
  }
  if (model.config.bigram_vocab_size > 0) found.emplace_back(kBigramProjection, &model.bigram_projection);
  if (!model.config.ve_layers.empty()) found.emplace_back(kValueProjection, &model.value_projection);
  return found;
}

// `model`: a Gpt2Model, const or not.
template <typename AnyGpt2>
requires std::is_same_v<std::remove_const_t<AnyGpt2>, Gpt2Model>
auto linear_layers(AnyGpt2& model) {
  std::vector<std::pair<std::string, decltype(&model.untied_head)>> found;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const Gpt2LayerNames names(static_cast<int64_t>(i));
    auto& layer = model.layers[i];
    found.insert(found.end(), {{names.query_key_value, &layer.query_key_value.weight},
                               {names.attention_output, &layer.attention_output.weight},
                               {names.up, &layer.up.weight},
                               {names.down, &layer.down.weight}});
  }
  return found;
}

template <typename AnyModel>
auto& head_matrix(AnyModel& model) {
  return model.config.tie_embeddings ? model.token_embedding : model.untied_head;
}

}  // namespace thimble
