// llama_gguf_tokenizers.cpp: what llama.cpp knows by name, as tokenizer.json spells it.
#include <array>

#include "runtime/families/gguf_text_rules.h"

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
constexpr const char* kWordsByCase =
    R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":)"
    R"("[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|)"
    R"([^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|)"
    R"(\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},)"
    R"("behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]})";
constexpr const char* kComposed = R"({"type":"NFC"})";

}  // namespace

std::span<const GgufTextRules> gguf_text_rules() {
  static constexpr std::array<GgufTextRules, 7> kKnown = {{{"gpt-2", kByteLevel},
                                                           {"smollm", kDigitsThenByteLevel},
                                                           {"llama-bpe", kThreeDigits, "null", true, true},
                                                           {"llama3", kThreeDigits, "null", true, true},
                                                           {"llama-v3", kThreeDigits, "null", true, true},
                                                           {"qwen2", kOneDigit, kComposed},
                                                           {"tekken", kWordsByCase, "null", true}}};
  return kKnown;
}

const char* const kGgufByteLevelModel = "gpt2";
const char* const kGgufSentencePieceModel = "llama";

}  // namespace thimble
