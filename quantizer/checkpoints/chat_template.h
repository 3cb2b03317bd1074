// chat_template.h: the chat template that belongs to a tokenizer.
#pragma once

#include <string>

namespace thimble {

// As Hugging Face's library finds it: in chat_template.jinja beside the tokenizer, or else in tokenizer_config.json, of
// several the one that is called "default"; inside a GGUF file. Empty: none. A FormatError for one that cannot be read.
std::string chat_template_of(const std::string& tokenizer_path);

}  // namespace thimble
