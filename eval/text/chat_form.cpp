// chat_form.cpp: see chat_form.h.
#include "eval/text/chat_form.h"

#include <algorithm>
#include <iterator>

namespace thimble {
namespace {

struct KnownForm {
  std::string_view mark;  // that no other form has
  ChatForm form;
};

constexpr KnownForm kForms[] = {
    {"<|im_start|>", {"<|im_start|>user\n", "<|im_end|>\n", "<|im_start|>assistant\n", "<|im_end|>\n"}},
    {"<|start_header_id|>",
     {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>", "<|start_header_id|>assistant<|end_header_id|>\n\n",
      "<|eot_id|>"}},
    {"<start_of_turn>", {"<start_of_turn>user\n", "<end_of_turn>\n", "<start_of_turn>model\n", "<end_of_turn>\n"}},
    {"[INST]", {"[INST] ", " [/INST]", "", "</s>"}},
    {"<|user|>", {"<|user|>\n", "</s>\n", "<|assistant|>\n", "</s>\n"}},
};

}  // namespace

std::optional<ChatForm> chat_form_of(std::string_view chat_template) {
  const auto* known = std::ranges::find_if(
      kForms, [&](const KnownForm& form) { return chat_template.find(form.mark) != std::string_view::npos; });
  if (known == std::end(kForms)) return std::nullopt;
  return known->form;
}

}  // namespace thimble
