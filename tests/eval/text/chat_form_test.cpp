// chat_form_test.cpp: whose templates are known.
#include "eval/text/chat_form.h"

#include <gtest/gtest.h>

namespace thimble::chat_form_test {
namespace {

TEST(ChatForm, IsKnownByItsMarks) {
  EXPECT_EQ(chat_form_of("{% for m in messages %}{{'<|im_start|>' + m['role']}}{% endfor %}")->user_end,
            "<|im_end|>\n");
  EXPECT_EQ(chat_form_of("'<|start_header_id|>' + role + '<|end_header_id|>'")->user_end, "<|eot_id|>");
  EXPECT_EQ(chat_form_of("{{ bos_token }}'<start_of_turn>' + role")->assistant_begin, "<start_of_turn>model\n");
  EXPECT_EQ(chat_form_of("[INST] {{ m }} [/INST]")->user_end, " [/INST]");
  EXPECT_EQ(chat_form_of("{{ '<|user|>\n' }}")->assistant_begin, "<|assistant|>\n");
  EXPECT_FALSE(chat_form_of(""));
  EXPECT_FALSE(chat_form_of("{{ m['content'] }}"));
}

}  // namespace
}  // namespace thimble::chat_form_test
