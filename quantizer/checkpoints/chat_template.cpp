// chat_template.cpp: see chat_template.h.
#include "quantizer/checkpoints/chat_template.h"

#include <filesystem>

#include "eval/text/special_tokens.h"
#include "quantizer/formats/gguf_tokenizer_json.h"
#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/base/json.h"

namespace thimble {
namespace {

constexpr const char *kTemplateFile = "chat_template.jinja", *kTemplateKey = "chat_template";

std::string template_of_config(const std::string& path) {
  const std::string text = read_text_file(path, kMaxTokenizerConfigBytes);
  const Json config = parse_json(as_bytes_of(text), path);
  if (!config.is_object() || !config.contains(kTemplateKey)) return "";
  const Json& found = config.at(kTemplateKey);
  if (found.is_string()) return found.get<std::string>();
  if (found.is_array())
    for (const Json& named : found)
      if (named.is_object() && named.value("name", Json()) == Json("default") &&
          named.value("template", Json()).is_string())
        return named.at("template").get<std::string>();
  if (found.is_null() || found.is_array()) return "";
  throw FormatError(path, std::string("key '") + kTemplateKey + "' is neither a string nor a list");
}

}  // namespace

std::string chat_template_of(const std::string& tokenizer_path) {
  if (holds_gguf_tokenizer(tokenizer_path)) return gguf_chat_template(tokenizer_path);
  const std::string path = (std::filesystem::path(tokenizer_path).parent_path() / kTemplateFile).string();
  if (file_exists(path)) return read_text_file(path, kMaxTokenizerConfigBytes);
  const std::string config = tokenizer_config_beside(tokenizer_path);
  return config.empty() ? "" : template_of_config(config);
}

}  // namespace thimble
