// llama_gguf_tokenizers.cpp: pre-tokenizers that llama.cpp knows by name, as tokenizer.json spells them.
#include <array>

#include "runtime/families/gguf_model.h"

namespace thimble {
namespace {

constexpr const char* kByteLevel =
    R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";
constexpr const char* kDigitsThenByteLevel =
    R"({"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},)"
    R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}]})";
constexpr const char* kThreeDigits =
    R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":)"
    R"("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},)"
    R"("behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]})";
constexpr const char* kOneDigit =
    R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":)"
    R"("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},)"
    R"("behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}]})";

}  // namespace

std::span<const GgufPreTokenizer> gguf_pre_tokenizers() {
  static constexpr std::array<GgufPreTokenizer, 4> kKnown = {
      {{"gpt-2", kByteLevel}, {"smollm", kDigitsThenByteLevel}, {"llama-bpe", kThreeDigits}, {"qwen2", kOneDigit}}};
  return kKnown;
}

const char* const kGgufByteLevelTokenizer = "gpt2";
const char* const kGgufSentencePieceTokenizer = "llama";

}  // namespace thimble
