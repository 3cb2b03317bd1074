// chat_form.h: how a model that was tuned to talk marks the turns of a conversation. A chat template is a program in a
// language of its own (Jinja); of those that are common, the marks alone say what its output looks like.
#pragma once

#include <optional>
#include <string_view>

namespace thimble {

// What stands before and after what each of the two says, in characters; special tokens are spelled out.
struct ChatForm {
  std::string_view user_begin, user_end, assistant_begin, assistant_end;
};

// The form that a chat template writes; nothing for one that is not known.
std::optional<ChatForm> chat_form_of(std::string_view chat_template);

}  // namespace thimble
